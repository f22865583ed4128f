"""Problems that no single setting has: combinations, and a cache folder that overlaps a source."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from cachedaemon.config import aistore, buckets, extras, plugins
from cachedaemon.config.effects import useless
from cachedaemon.config.urls import KEY, folder_of, scheme_of, schemes
from cachedaemon.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cachedaemon.config.settings import Cache, Settings, Source

_LOOK = 5.0  # seconds; a look at a mount that hangs never returns


def problems(settings: Settings, environ: Mapping[str, str], *, need_sources: bool) -> Iterator[str]:
    """A line for each problem."""
    if need_sources and not settings.sources:
        yield "sources: there is none: allowed are tables [sources.NAME] with a url, or --source NAME=URL"
    yield from of_parts(settings.cache, settings.sources, environ)


def of_parts(cache: Cache | None, sources: Mapping[str, Source], environ: Mapping[str, str]) -> Iterator[str]:
    """A line for each problem of what is good setting by setting; `cache` is None where it is not."""
    if cache is not None and not cache.max_shards and not cache.max_bytes:
        yield "cache.max_bytes: 0 is refused while cache.max_shards is 0: allowed is a cap in one of them"
    for name, source in sources.items():
        yield from _of_source(f"sources.{name}", source, environ)
        if cache is not None:
            yield from _overlap(cache.dir, name, source)


def _of_source(path: str, source: Source, environ: Mapping[str, str]) -> Iterator[str]:
    yield from _of_urls(path, source)
    scheme = "http" if source.urls is not None else scheme_of(source.url)
    if scheme in schemes() or extras.is_fsspec(scheme):
        yield from useless(path, scheme, source)
    if scheme == extras.YTDLP or extras.is_fsspec(scheme):
        yield from extras.problems(path, source)
    elif scheme in buckets.SCHEMES:
        yield from buckets.problems(path, scheme, source, environ)
    elif scheme == "ais":
        yield from aistore.problems(path, source)
    elif scheme and scheme not in schemes():
        yield from _of_plugin(path, scheme)


def _of_urls(path: str, source: Source) -> Iterator[str]:
    if source.watch and not (source.url.startswith("file:") and source.url.endswith("/") and KEY not in source.url):
        yield f"{path}.watch: true is refused: allowed is a source whose url is a folder, file:///PATH/ with the last slash"
    if source.urls is not None:
        if source.url:
            yield f"{path}.urls: is refused beside a url: allowed is one of the two"
    elif not source.url:
        yield f"{path}.url: is required, or a file of URLs in {path}.urls"


def _of_plugin(path: str, scheme: str) -> Iterator[str]:
    try:
        plugins.origin_class(scheme)
    except ConfigError as cause:
        yield f"{path}.url: {cause}"


def _overlap(cache: Path, name: str, source: Source) -> list[str]:
    """Evicting must never reach an original: the cache is neither the source's folder, nor in it, nor around it."""
    if urlsplit(source.url).scheme != "file":
        return []
    how = _within(cache, source.url)
    if how is None:
        return []
    line = (
        f"cache.dir: {str(cache)!r} is refused: it is {how} the folder of sources.{name} "
        "(symbolic links followed); allowed is a folder apart from every source"
    )
    return [line]


def _within(cache: Path, url: str) -> str | None:
    """How the two folders lie, by their real paths; by the paths as written when a mount does not answer."""
    answer: list[str | None] = []

    def look() -> None:
        folder = folder_of(url)
        if folder is not None:
            answer.append(_lie(Path(os.path.realpath(cache)), Path(os.path.realpath(folder))) or _same(cache, folder))

    # A daemon thread: nobody can end a look at a dead mount, and it must not keep the process from ending.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_LOOK)
    if answer:
        return answer[0]
    return _lie(cache, Path(os.path.normpath(unquote(urlsplit(url).path.partition(KEY)[0]))))


def _lie(cache: Path, folder: Path) -> str | None:
    if cache == folder:
        return "the same as"
    if cache.is_relative_to(folder):
        return "inside"
    return "around" if folder.is_relative_to(cache) else None


def _same(cache: Path, folder: Path) -> str | None:
    """What bind mounts hide from paths: the one folder among the ancestors of the other, by device and inode."""
    first, second = _identities(cache), _identities(folder)
    if first and second:
        if first[0] == second[0] and cache.exists():
            return "the same as"
        if folder.exists() and second[0] in first:
            return "inside"
        if cache.exists() and first[0] in second:
            return "around"
    return None


def _identities(path: Path) -> list[tuple[int, int]]:
    """Device and inode of the folder (where it exists) and of all folders above it, nearest first."""
    real = Path(os.path.realpath(path))
    stats = [step.stat() for step in (real, *real.parents) if step.exists()]
    return [(stat.st_dev, stat.st_ino) for stat in stats]
