"""Which settings do something for the sources of which scheme: elsewhere they are refused, so that nobody relies on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachedaemon.config.settings import Source

FSSPEC = "fsspec+"
"""What the scheme of a source for fsspec begins with; in the table it stands for all of them."""
_WEB = ("http", "https")
_STORES = ("s3", "gs", "az")

WITH_EFFECT = {
    "settle": ("file",),
    "headers": (*_WEB, "ais"),
    "proxy": (*_WEB, "ais", *_STORES, "ytdlp"),
    "ca": (*_WEB, "ais", *_STORES),
    "insecure": (*_WEB, "ais", *_STORES, "ytdlp", f"{FSSPEC}sftp", f"{FSSPEC}ssh"),
    "endpoint": ("ais", *_STORES),
    "region": ("s3",),
    "anonymous": _STORES,
    "credentials": ("ais", *_STORES, FSSPEC),
    "etl": ("ais",),
}
"""Settings that not every source heeds, and the schemes of those that do."""


def useless(path: str, scheme: str, source: Source) -> Iterator[str]:
    """A line for each setting, changed from what holds without it, that does nothing for a source of this scheme."""
    for setting, schemes in WITH_EFFECT.items():
        if not _heeded(scheme, schemes) and getattr(source, setting) != _unset(source, setting):
            yield (
                f"{path}.{setting}: has no effect on a source of {scheme}: allowed is it for {', '.join(schemes)} alone, "
                "so leave it out"
            )


def _heeded(scheme: str, schemes: tuple[str, ...]) -> bool:
    return scheme in schemes or (scheme.startswith(FSSPEC) and FSSPEC in schemes)


def _unset(source: Source, setting: str) -> object:
    """The value as it is where nobody gives one: `"2s"` has become seconds."""
    return getattr(type(source)(), setting)
