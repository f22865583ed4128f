"""The objects of one fsspec file system, as its process sees them: plain calls, which may hang or fail at any time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

import fsspec  # type: ignore[import-untyped]
from fsspec.core import split_protocol  # type: ignore[import-untyped]

from cachedaemon.foreign.failures import failed
from cachedaemon.foreign.process import Failure

KEY = "{key}"
"""Where a key goes in a URL; without it, at the end."""
STEP_LEAST, STEP_MOST = 128 << 10, 8 << 20
"""Bytes of one call. It grows while calls are quick, so that a slow source shows its progress and a fast one is asked seldom."""
QUICK, SLOW = 0.1, 0.5
"""Seconds of a call, after which the next one asks for more, or less."""
_ETAGS = ("ETag", "etag", "e_tag")
_VERSIONS = (
    "VersionId",
    "version_id",
    "versionId",
    "generation",
    "checksum",
    "blob_id",
    "sha",
    "CRC",
    "md5Hash",
    "md5",
)
_TIMES = (
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "modified",
    "modify",
    "updated",
    "modificationTime",
)

Write = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file system says of one object now."""

    size: int | None
    etag: str | None
    version: str | None
    modified: str | None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Seen:
        """From what `info` answers; which names it has depends on the file system."""
        size = info.get("size")
        found = [_first(info, names) for names in (_ETAGS, _VERSIONS, _TIMES)]
        return cls(int(size) if size is not None else None, *found)

    def said(self) -> dict[str, Any]:
        """As the conversation carries it."""
        return asdict(self)


def _first(info: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    found = next((info[name] for name in names if info.get(name) is not None), None)
    return found if found is None else str(found)


class Tree:
    """The objects below one URL. Calls raise what fsspec and its implementations raise."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        protocol, _ = split_protocol(url)
        kind = fsspec.get_filesystem_class(protocol)
        given = {**_from_url(kind, url), **self.made_for(options)}
        self.fs: Any = kind(skip_instance_cache=True, **given)
        self._root = str(kind._strip_protocol(url)).rstrip("/")  # noqa: SLF001 - what url_to_fs calls
        self._is_folder = url.endswith("/")
        self.used = False

    def made_for(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the file system is made with."""
        return options

    def path(self, key: str) -> str:
        """The object of a key: where {key} stands, in the folder, or appended to what a name begins with."""
        if KEY in self._root:
            return self._root.replace(KEY, key)
        return f"{self._root}/{key}" if self._is_folder else self._root + key

    def look(self, key: str) -> Seen:
        """Its state now, as the file system says it and not as it was remembered."""
        self.fs.invalidate_cache()
        path = self.path(key)
        try:
            info = self.info(path)
        except FileNotFoundError:
            self.check()
            raise
        if info.get("type") == "directory":
            raise IsADirectoryError
        return Seen.of(info)

    def info(self, path: str) -> Mapping[str, Any]:
        """What the file system says of a path."""
        return self.fs.info(path)  # type: ignore[no-any-return]

    def check(self) -> None:
        """`Failure` when the source's folder is not there: an outage is never "missing"."""
        top = self._top()
        if top and not self.fs.isdir(top):
            raise Failure("OriginUnavailable", "the source's folder is not there")

    def _top(self) -> str:
        """The folder that must be there; "" where it is the file system itself, or part of the key."""
        before, found, _ = self._root.partition(KEY)
        whole = self._is_folder and not found
        return before if whole else before.rpartition("/")[0]

    def pour(self, key: str, start: int, stop: int, write: Write) -> None:
        """The bytes from `start` up to `stop`. Each call is one request, of this part of the object."""
        path, step = self.path(key), STEP_LEAST
        while start < stop:
            most = min(start + step, stop)
            began = time.monotonic()
            piece = self.fs.cat_file(path, start=start, end=most)
            if len(piece) != most - start:
                raise Failure("NoParts", "the file system gives another part than it is asked for")
            step = next_step(step, time.monotonic() - began)
            write(piece)
            start = most

    def pour_whole(self, key: str, write: Write) -> None:
        """All bytes of an object whose size the file system does not tell."""
        with self.fs.open(self.path(key), "rb") as file:
            while piece := file.read(STEP_LEAST):
                write(piece)

    def walk(self) -> Iterator[list[str]]:
        """All keys, a folder at a time."""
        self.check()
        self.fs.invalidate_cache()
        top = self._top()
        start = _whole(self._root) + ("/" if self._is_folder and self._root else "")
        for _, _, files in self.fs.walk(top or "/", detail=True, on_error="raise"):
            names = [_whole(info["name"]) for info in files.values()]
            yield [name[len(start) :] for name in names if name.startswith(start) and len(name) > len(start)]

    def close(self) -> None:
        """Let go of the connection, where there is one."""


def _from_url(kind: Any, url: str) -> dict[str, Any]:
    """Storage options that a URL names (host, port, username, password), percent-escapes decoded."""
    found = kind._get_kwargs_from_urls(url)  # noqa: SLF001 - what url_to_fs calls
    return {name: unquote(value) if isinstance(value, str) else value for name, value in found.items()}


def _whole(name: str) -> str:
    """A path with its leading slash, which some file systems leave out."""
    return "/" + name.lstrip("/")


def next_step(step: int, seconds: float) -> int:
    """Bytes to ask for after a call of `step` bytes that took so long."""
    if seconds < QUICK:
        return min(step * 2, STEP_MOST)
    return max(step // 2, STEP_LEAST) if seconds > SLOW else step


@contextlib.contextmanager
def mapped() -> Iterator[None]:
    """Foreign exceptions become `Failure`."""
    try:
        yield
    except Exception as cause:
        raise failed(cause) from cause
