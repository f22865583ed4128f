"""Shards of a watched folder, as their files appear there, for asyncio."""

from __future__ import annotations

import asyncio
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from cachedaemon_client import process
from cachedaemon_client.aio_feed import Feed
from cachedaemon_client.connection import Pause
from cachedaemon_client.errors import CacheError, DaemonUnavailable, ShardMissing
from cachedaemon_client.feed import SILENCE
from cachedaemon_client.watch import TURN, Line

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.aio import ShardCache
    from cachedaemon_client.aio_job import Job
    from cachedaemon_client.shard import Shard


class Watch(Line):
    """Opened shards in order of arrival, for `async for`; else as the blocking client's.

    The daemon is asked with the first shard that is wanted, or by `async with`. A cancelled wait for the next shard loses none:
    it is the next one's. For one task at a time; another one may `close` it, which ends the iteration.
    """

    def __init__(self, cache: ShardCache, idle: float | None = None) -> None:
        super().__init__(cache, idle)
        self._cache = cache
        self._job: Job | None = None
        self._feed: Feed | None = None
        self._idled = 0.0
        """Seconds of cancelled waits since the last file."""
        self._asking: Asking | None = None
        self._closed = False
        process.forkables.add(self)

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Shard:
        """The next shard, opened. Raises `OriginFailed` when the folder cannot be read for the cache's `wait`."""
        if self._closed:
            raise StopAsyncIteration
        asking = self._asking = Asking()
        try:
            return await self._next()
        except (CacheError, asyncio.CancelledError) as cause:
            if self._is_end(cause, asking):
                raise StopAsyncIteration from None
            raise
        finally:
            self._asking = None
            asking.end()

    def _is_end(self, cause: BaseException, asking: Asking) -> bool:
        """Whether this is only how `close` looks to whoever waited."""
        return self._closed and not (isinstance(cause, asyncio.CancelledError) and asking.is_cancelled)

    async def _next(self) -> Shard:
        while True:
            self._let_go()
            key = await self._next_key()
            try:
                shard = await self._cache.open(key)
            except ShardMissing:
                continue
            except asyncio.CancelledError:
                self._waiting.appendleft(key)
                raise
            return self._out(shard)

    def _out(self, shard: Shard) -> Shard:
        """The shard, unless this was closed while it was opened."""
        if self._closed:
            shard.close()
            raise StopAsyncIteration
        self._shard = shard
        return shard

    async def _next_key(self) -> str:
        since, self._idled = time.monotonic() - self._idled, 0.0
        try:
            await self._wait(since + self._idle)
            await self._fetch_ahead()
        except asyncio.CancelledError:
            self._idled = time.monotonic() - since
            raise
        if self._closed:
            raise StopAsyncIteration
        return self._waiting.popleft()

    async def _wait(self, until: float) -> None:
        """For a key, until then (monotonic seconds)."""
        while not self._waiting:
            left = until - time.monotonic()
            if left <= 0 or self._closed:
                raise StopAsyncIteration
            await self._hear(min(left, TURN))
            self._lose_patience()

    async def _hear(self, seconds: float) -> None:
        await self._connect()
        feed = self._feed
        if feed is None:
            return
        try:
            events = await feed.hear(seconds)
        except OSError:
            feed.close()
            self._feed = None
            return
        for event in events:
            self._take(event)

    async def _fetch_ahead(self) -> None:
        """Have what waits fetched. Only a daemon that is away is an error already here."""
        if not (ahead := self._ahead()):
            return
        try:
            if self._job is not None and (await self._job.refresh()).state != "running":
                self._job = None
            if self._job is None:
                self._job = await self._cache.prefetch(ahead)
        except DaemonUnavailable:
            raise
        except CacheError:
            self._job = None

    async def _connect(self) -> None:
        """A connection to the daemon, which may be about to restart; none once this is closed."""
        pause = Pause.of(self._cache.wait)
        while self._feed is None and not self._closed:
            try:
                self._feed = await self._begun(min(pause.patience, SILENCE))
                continue
            except (CacheError, OSError) as cause:
                seconds = self._pause(cause, pause)
            await asyncio.sleep(seconds)
        if self._closed and self._feed is not None:
            self._feed.close()

    async def _begun(self, seconds: float) -> Feed:
        feed = Feed(self._cache.socket, self._target, self._cache.source)
        try:
            await feed.begin(seconds)
        except BaseException:
            feed.close()
            raise
        return feed

    async def close(self) -> None:
        """End it, and the lease of its last shard."""
        self._let_go()
        self._closed = True
        self._waiting.clear()
        if self._asking is not None:
            self._asking.break_off()
        if self._feed is not None:
            self._feed.close()

    def forked(self) -> None:
        """In a forked child: what is yet to come is the parent's, and so is the connection, which closes by itself."""
        self._shard = None
        self._closed = True
        self._waiting.clear()

    async def __aenter__(self) -> Self:
        """Itself, closed when the block ends; the daemon has been asked."""
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()


class Asking:
    """What this task awaits, and another one may break off: by cancelling it, which is taken back in the end."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._cancels
        self._broken_off = False

    def break_off(self) -> None:
        """Have it end with a `CancelledError`."""
        if self._task is not None and not self._broken_off:
            self._broken_off = True
            self._task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task is cancelled by somebody else. Before Python 3.11 a break-off hides that."""
        return not self._broken_off or self._cancels > self._before + 1

    @property
    def _cancels(self) -> int:
        """How often the task was cancelled; 0 before Python 3.11, which does not count."""
        cancels: int = getattr(self._task, "cancelling", int)()
        return cancels

    def end(self) -> None:
        """It has ended."""
        if sys.version_info >= (3, 11) and self._broken_off and self._task is not None:
            self._task.uncancel()
