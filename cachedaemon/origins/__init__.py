"""Origins by the scheme of a source's URL: one file a scheme, and one line here."""

from __future__ import annotations

from collections.abc import Callable

from cachedaemon.config import Fetch, Source
from cachedaemon.metrics import Metrics
from cachedaemon.origins.base import Origin, Piece, Stream
from cachedaemon.origins.file import FileOrigin
from cachedaemon.origins.http import HttpOrigin

_SCHEMES: dict[str, Callable[[str, Source, Fetch, Metrics], Origin]] = {
    "file": FileOrigin,
    "http": HttpOrigin,
    "https": HttpOrigin,
}


def origin_of(name: str, source: Source, fetch: Fetch, metrics: Metrics) -> Origin:
    """The origin that a source's URL names; the configuration has checked the scheme."""
    return _SCHEMES[source.url.partition(":")[0].lower()](name, source, fetch, metrics)


__all__ = ["Origin", "Piece", "Stream", "origin_of"]
