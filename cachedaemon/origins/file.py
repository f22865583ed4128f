"""A mounted folder: RAID, NFS, Lustre, or any other. Plain reads in threads of this source's own.

A mount that hangs keeps its threads, and nothing else: no other code waits for them, their number is bounded, and they
write nothing to the cache's disk. A thread that has hung is left alone; what it opens late is closed when it returns.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import BadRequest, CacheDaemonError, Changed, Cut, Missing, OriginRefused, OriginUnavailable
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import KEY, PIECE, Piece, refuse_dots

T = TypeVar("T")

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK the open of a FIFO would never return
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL}
)
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


class FileOrigin:
    """Files below one folder."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._place = unquote(urlsplit(source.url).path)
        self._settle = source.settle
        self._stall = fetch.stall_timeout or None
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(source.concurrency, f"mount-{name}")

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[FileStream]:
        """The file of a key, once nobody writes to it any more."""
        refuse_dots(self._name, key)
        ref = Ref(self._name, key)
        file = await self._asked(ref, lambda: _open(self._place, key), close=_File.close)
        try:
            while (wait := self._settle - abs(time.time() - file.seen.st_mtime)) > 0:
                await asyncio.sleep(wait)
                await self._asked(ref, file.look)
            yield FileStream(self, ref, file)
        finally:
            with suppress(RuntimeError):  # the origin is closed, and with it the daemon ends
                self._pool.submit(file.close)

    async def keys(self) -> list[str]:
        """All files below the folder, as keys."""
        if KEY in self._place:
            raise BadRequest(f"{self._name}: a source whose url has {KEY} cannot list its keys; name them")
        return await self._asked(Ref(self._name, "*"), lambda: _walk(self._place))

    async def close(self) -> None:
        """Leave the threads; one that hangs in a dead mount cannot be joined."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _asked(self, ref: Ref, work: Callable[[], T], close: Callable[[T], None] | None = None) -> T:
        """The result of a call to the mount, which is not waited for longer than the stall limit."""
        status = "ok"
        try:
            return await self.call(ref, work, close)
        except CacheDaemonError as cause:
            status = cause.code
            raise
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()

    async def call(self, ref: Ref, work: Callable[[], T], close: Callable[[T], None] | None = None) -> T:
        """Run a call in the source's threads; `close` takes a result that comes too late."""
        job = self._pool.submit(work)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(job)), self._stall)
        except TimeoutError:
            raise OriginUnavailable(f"{ref}: the mounted folder does not answer for {self._stall:g} s") from None
        except OSError as cause:
            raise _mapped(cause, ref) from cause
        except BaseException:
            if close is not None:
                job.add_done_callback(lambda done: _close_late(done, close))
            raise


def _close_late(job: Future[T], close: Callable[[T], None]) -> None:
    if not job.cancelled() and job.exception() is None:
        close(job.result())


def _mapped(cause: OSError, ref: Ref) -> CacheDaemonError:
    reason = cause.strerror or str(cause)
    if cause.errno in _MISSING:
        return Missing(f"{ref}: no such file in the source's folder")
    if cause.errno in _REFUSED:
        return OriginRefused(f"{ref}: {reason}")
    return OriginUnavailable(f"{ref}: the mounted folder fails: {reason}")


def _path(place: str, key: str) -> tuple[str, str]:
    """The file of a key, and the folder that must be there for a file to be missing."""
    if KEY in place:
        return place.replace(KEY, key), os.path.dirname(place.partition(KEY)[0])
    if place.endswith("/") or os.path.isdir(place):
        return f"{place.rstrip('/')}/{key}", place
    return place + key, os.path.dirname(place)


def _open(place: str, key: str) -> _File:
    path, folder = _path(place, key)
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        if not os.path.isdir(folder):  # the mount is away: an outage is never "missing"
            raise OSError(errno.ENOTCONN, "the source's folder is not there") from None
        raise
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return _File(descriptor, seen)


def _walk(folder: str) -> list[str]:
    found: list[str] = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders.sort()
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return sorted(found)


def _raise(cause: OSError) -> None:
    raise cause


class _File:
    """An open file of the mount. A read that hangs keeps it open, so that its descriptor cannot become another's."""

    def __init__(self, descriptor: int, seen: os.stat_result) -> None:
        self.seen = seen
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._readers = 0
        self._closing = False

    def look(self) -> None:
        """Take its state anew."""
        with self._used():
            self.seen = os.fstat(self._descriptor)

    def read(self, buffer: memoryview) -> int:
        """Fill a buffer as far as the file goes."""
        got = 0
        with self._used():
            while got < len(buffer) and (count := os.readv(self._descriptor, [buffer[got:]])):
                got += count
        return got

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            if self._closing:
                raise OSError(errno.EBADF, "closed")
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Close it, when the last read has returned."""
        with self._lock:
            self._closing = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing and not self._readers and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FileStream:
    """The bytes of one file; a change while it is read is noticed at the end."""

    def __init__(self, origin: FileOrigin, ref: Ref, file: _File) -> None:
        self._origin = origin
        self._ref = ref
        self._file = file
        self._before = file.seen
        self.size: int | None = file.seen.st_size
        self.validators = Validators(modified=str(file.seen.st_mtime_ns))

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, a MiB at a time, in one buffer that is used again."""
        buffer = memoryview(bytearray(PIECE))
        total = 0
        while count := await self._origin.call(self._ref, lambda: self._file.read(buffer)):
            total += count
            yield [buffer[:count]]
        await self._origin.call(self._ref, self._file.look)
        before, after = self._before, self._file.seen
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Changed(f"{self._ref}: the file changed while it was read")
        if total != before.st_size:
            raise Cut(f"{self._ref}: got {total} of {before.st_size} bytes")
