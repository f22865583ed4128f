"""A mounted folder: RAID, NFS, Lustre, or any other. Plain reads in threads of this source's own.

A mount that hangs keeps its threads, and nothing else: no other code waits for them, their number is bounded, and they
write nothing to the cache's disk. A thread that has hung is left alone; what it opens late is closed when it returns.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import BadRequest, CacheDaemonError, Changed, Cut, Missing, OriginRefused, OriginUnavailable
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import KEY, PIECE, Piece, refuse_dots
from cachedaemon.origins.mount import File, Tree, some

T = TypeVar("T")

BUFFER = 2 * PIECE
"""Bytes read at once. Each buffer costs four changes of thread: at 1 MiB that was a seventh of all CPU (bench/fill.py)."""
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL}
)
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


class FileOrigin:
    """Files below one folder."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._place = unquote(urlsplit(source.url).path)
        self._tree = Tree(self._place)
        self._settle = source.settle
        self._stall = fetch.stall_timeout or None
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(source.concurrency, f"mount-{name}")

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[FileStream]:
        """The file of a key, once nobody writes to it any more."""
        refuse_dots(self._name, key)
        ref = Ref(self._name, key)
        file = await self._asked(ref, lambda: self._tree.open(key), close=File.close)
        try:
            while (wait := self._settle - abs(time.time() - file.seen.st_mtime)) > 0:
                await asyncio.sleep(wait)
                await self._asked(ref, file.look)
            yield FileStream(self, ref, file)
        finally:
            self._later(file.close)

    async def keys(self) -> list[str]:
        """All files below the folder, as keys."""
        if KEY in self._place:
            raise BadRequest(f"{self._name}: a source whose url has {KEY} cannot list its keys; name them")
        ref, walk, found = Ref(self._name, "*"), self._tree.walk(), list[str]()
        while more := await self._asked(ref, lambda: some(walk)):
            found += more
        return sorted(found)

    async def close(self) -> None:
        """Leave the threads; one that hangs in a dead mount cannot be joined."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _asked(self, ref: Ref, work: Callable[[], T], close: Callable[[T], None] | None = None) -> T:
        """The result of a call to the mount, counted."""
        status = "ok"
        try:
            return await self.call(ref, work, close)
        except CacheDaemonError as cause:
            status = cause.code
            raise
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()

    async def call(self, ref: Ref, work: Callable[[], T], close: Callable[[T], None] | None = None) -> T:
        """Run a call in the source's threads, and wait for it no longer than the stall limit.

        `close` takes a result that comes too late; a call that no thread has begun yet is never made.
        """
        try:
            job = self._pool.submit(work)
        except RuntimeError:
            raise OriginUnavailable(f"{ref}: the source is being closed") from None
        try:
            async with asyncio.timeout(self._stall) as limit:
                return await asyncio.wrap_future(job)
        except OSError as cause:
            if not limit.expired():  # else it is the mount's own ETIMEDOUT
                raise _mapped(cause, ref) from cause
            self._close_late(job, close)
            raise OriginUnavailable(f"{ref}: the mounted folder does not answer for {self._stall:g} s") from None
        except asyncio.CancelledError:
            self._close_late(job, close)
            raise

    def _close_late(self, job: Future[T], close: Callable[[T], None] | None) -> None:
        if close is None:
            return

        def come(done: Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._later(lambda: close(done.result()))

        job.add_done_callback(come)

    def _later(self, work: Callable[[], None]) -> None:
        """Close something in the threads: a close can hang too."""
        with suppress(RuntimeError):  # the origin is closed, and with it the daemon ends
            self._pool.submit(work)


def _mapped(cause: OSError, ref: Ref) -> CacheDaemonError:
    reason = cause.strerror or str(cause)
    if cause.errno in _MISSING:
        return Missing(f"{ref}: no such file in the source's folder")
    if cause.errno in _REFUSED:
        return OriginRefused(f"{ref}: {reason}")
    return OriginUnavailable(f"{ref}: the mounted folder fails: {reason}")


class FileStream:
    """The bytes of one file; a change while it is read is noticed at the end."""

    def __init__(self, origin: FileOrigin, ref: Ref, file: File) -> None:
        self._origin = origin
        self._ref = ref
        self._file = file
        self._before = file.seen
        self.size: int | None = file.seen.st_size
        self.validators = Validators(modified=str(file.seen.st_mtime_ns))

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, in one buffer that is used again."""
        buffer = memoryview(bytearray(BUFFER))
        total = 0
        while total <= self._before.st_size and (
            count := await self._origin.call(self._ref, lambda: self._file.read(buffer))
        ):
            total += count
            if total <= self._before.st_size:
                yield [buffer[:count]]
        await self._origin.call(self._ref, self._file.look)
        before, after = self._before, self._file.seen
        if total > before.st_size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Changed(f"{self._ref}: the file changed while it was read")
        if total != before.st_size:
            raise Cut(f"{self._ref}: got {total} of {before.st_size} bytes")
