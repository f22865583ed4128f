"""A store in a folder, and a disk whose k-th call fails, or is the last before a kill. For the tests of the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cachedaemon.model import Meta, Ref
from cachedaemon.store import (
    Opened,
    Published,
    SourceMark,
    Store,
    directory,
    disk,
    files,
    plans,
    removal,
    scan,
    shards,
    staged,
    start,
)
from cachedaemon.store.layout import Layout, Modes
from cachedaemon_client import lease
from cachedaemon_client.names import name_of
from tests.fakes import content

CALLS = {
    "open",
    "write",
    "pwritev",
    "pwrite",
    "rename",
    "unlink",
    "mkdir",
    "makedirs",
    "rmdir",
    "ftruncate",
    "truncate",
}
CALLS |= {"chmod", "fchmod", "chown", "fchown", "utime", "stat", "lstat", "fstat", "scandir", "fsync", "fdatasync"}
CALLS |= {"statvfs", "preadv"}
SIZE = 5000


class Killed(BaseException):
    """The process is not there any more."""


class Disk:
    """The `os` module as the store sees it. One call fails with an error, or that one and all after it never happen."""

    def __init__(self) -> None:
        self.calls = 0
        self._at = 0
        self._raise: Callable[[], BaseException] | None = None
        self._for_ever = False
        self._lock = threading.Lock()
        self.path = os.path

    def fail(self, k: int, number: int) -> None:
        """The k-th call from now on fails once."""
        self._at, self._for_ever = self.calls + k, False
        self._raise = lambda: OSError(number, os.strerror(number))

    def kill(self, k: int) -> None:
        """From the k-th call on nothing reaches the disk."""
        self._at, self._for_ever = self.calls + k, True
        self._raise = Killed

    def heal(self) -> bool:
        """No more failures; whether there was one."""
        hit = self._raise is not None and self.calls >= self._at
        self._raise = None
        return hit

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.wrapped(real) if name in CALLS else real

    def wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted."""
        return lambda *args, **how: self._call(real, args, how)

    def _call(self, real: Callable[..., Any], args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        with self._lock:
            self.calls += 1
            error = self._raise
            hit = self.calls == self._at or (self._for_ever and self.calls > self._at)
        if error is not None and hit:
            raise error()
        return real(*args, **how)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk under every module that calls it for the store."""
    made = Disk()
    for module in (sys.modules[Store.__module__], directory, disk, files, plans, removal, scan, shards, staged, start):
        monkeypatch.setattr(module, "os", made)
    for name in ("open_file", "fstat", "lstat"):
        monkeypatch.setattr(lease, name, made.wrapped(getattr(lease, name)))
    return made


MARK = SourceMark("s", "digest", "opaque", direct=True)


@contextlib.asynccontextmanager
async def opened(root: Path, *marks: SourceMark, group: int | None = None) -> AsyncIterator[tuple[Store, Opened]]:
    """A store on `root`, in use."""
    store = Store(Layout(root), Modes.for_group(group))
    try:
        yield store, await store.open(marks or (MARK,))
    finally:
        await asyncio.to_thread(store.close)


async def publish(store: Store, key: str, *, folder: bool = False, size: int = SIZE) -> Published:
    """Bring a shard from staging to its place, as the cache does; its lease is given back."""
    async with store.staging("s") as staged:
        await store.expect(staged, size)
        await store.write(staged, [content.data(key, size)])
        if folder:
            inner = f"{staged.folder}/tree"
            await asyncio.to_thread(_unpack, Path(inner), content.data(key, size))
            await store.drop_packed(staged)
            sealed = await store.seal_folder(inner, 8192)
        else:
            sealed = await store.seal(staged)
        await asyncio.to_thread(Path(store.table_of("s", staged)).write_bytes, b"table")
        digest = f"tree-{staged.digest}" if folder else staged.digest
        meta = Meta(key, size, digest, sealed.blocks, 3, time.time())
        published = await store.publish(Ref("s", key), name_of(key), staged, sealed, meta)
        published.close()
    return published


def _unpack(folder: Path, data: bytes) -> None:
    folder.mkdir()
    (folder / "member").write_bytes(data)


def whole(root: Path) -> list[str]:
    """Names of the published shards; AssertionError when one is not complete."""
    names = sorted(os.listdir(root / "shards/s"))
    for name in names:
        place = root / "shards/s" / name
        place = place / "member" if place.is_dir() else place
        assert content.matches(place, name, SIZE), f"{name} is visible and not whole"
    return names
