"""Shards of a watched folder, as their files appear there, for asyncio."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING

from cachedaemon_client import process
from cachedaemon_client.aio_feed import Feed
from cachedaemon_client.connection import Pause
from cachedaemon_client.errors import CacheError, ShardMissing
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
        self._closed = False
        process.forkables.add(self)

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Shard:
        """The next shard, opened. Raises `OriginFailed` when the folder cannot be read for the cache's `wait`."""
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
        since = time.monotonic()
        while not self._waiting:
            left = since + self._idle - time.monotonic()
            if left <= 0 or self._closed:
                raise StopAsyncIteration
            await self._hear(min(left, TURN))
            self._lose_patience()
        await self._fetch_ahead()
        if self._closed:
            raise StopAsyncIteration
        return self._waiting.popleft()

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
        if (ahead := self._ahead()) and (self._job is None or (await self._job.refresh()).state != "running"):
            self._job = await self._cache.prefetch(ahead)

    async def _connect(self) -> None:
        """A connection to the daemon, which may be about to restart; none once this is closed."""
        pause = Pause.of(self._cache.wait)
        while self._feed is None and not self._closed:
            try:
                self._feed = await _begun(self._cache.socket, self._target, self._cache.source)
                continue
            except (CacheError, OSError) as cause:
                seconds = self._pause(cause, pause)
            await asyncio.sleep(seconds)
        if self._closed and self._feed is not None:
            self._feed.close()

    async def close(self) -> None:
        """End it, and the lease of its last shard."""
        self._let_go()
        self._closed = True
        self._waiting.clear()
        if self._feed is not None:
            self._feed.close()

    def forked(self) -> None:
        """In a forked child: the connection, and what is yet to come, are the parent's."""
        self._shard = None
        self._closed = True
        self._waiting.clear()
        if self._feed is not None:
            self._feed.drop()

    async def __aenter__(self) -> Self:
        """Itself, closed when the block ends; the daemon has been asked."""
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()


async def _begun(path: str, target: str, source: str) -> Feed:
    feed = Feed(path, target, source)
    try:
        await feed.begin()
    except BaseException:
        feed.close()
        raise
    return feed
