"""Origins by the scheme of a source's URL: one file a scheme, and one line here; or an entry point of another distribution."""

from __future__ import annotations

from collections.abc import Callable

from cachedaemon.config import Fetch, Source, is_fsspec, scheme_of
from cachedaemon.metrics import Metrics
from cachedaemon.origins.ais import AisOrigin
from cachedaemon.origins.anything import FsspecOrigin
from cachedaemon.origins.base import Origin, Piece, Stream
from cachedaemon.origins.brought import brought
from cachedaemon.origins.file import FileOrigin
from cachedaemon.origins.http import HttpOrigin
from cachedaemon.origins.videos import VideoOrigin


def _objects(name: str, source: Source, fetch: Fetch, metrics: Metrics) -> Origin:
    from cachedaemon.origins.objects import ObjectOrigin  # noqa: PLC0415 - 5 MB that other sources do without

    return ObjectOrigin(name, source, fetch, metrics)


_SCHEMES: dict[str, Callable[[str, Source, Fetch, Metrics], Origin]] = {
    "file": FileOrigin,
    "http": HttpOrigin,
    "https": HttpOrigin,
    "ais": AisOrigin,
    "s3": _objects,
    "gs": _objects,
    "az": _objects,
    "ytdlp": VideoOrigin,
}


def origin_of(name: str, source: Source, fetch: Fetch, metrics: Metrics) -> Origin:
    """The origin that a source's URL names; the configuration has checked the scheme.

    Raises ConfigError for an origin of another distribution that cannot be made.
    """
    scheme = "http" if source.urls is not None else scheme_of(source.url)
    ours = FsspecOrigin if is_fsspec(scheme) else _SCHEMES.get(scheme)
    return ours(name, source, fetch, metrics) if ours else brought(scheme, name, source, fetch, metrics)


__all__ = ["Origin", "Piece", "Stream", "origin_of"]
