"""Shards of a watched folder, as their files appear there."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cachedaemon_client import process
from cachedaemon_client.connection import Pause, unavailable
from cachedaemon_client.errors import CacheError, DaemonUnavailable, OriginFailed, ShardMissing
from cachedaemon_client.feed import Feed

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.cache import ShardCache
    from cachedaemon_client.job import Job
    from cachedaemon_client.local import Local
    from cachedaemon_client.shard import Shard

AHEAD = 16
"""Files that wait to be opened and are fetched meanwhile, as far as they fit."""
TURN = 1.0
"""Seconds after which it is looked whether somebody has waited long enough."""


class Line:
    """The files that were told and wait to be opened, and the shard that is out. The base of both clients' watches."""

    def __init__(self, cache: Local[Any], idle: float | None) -> None:
        self._local = cache
        self._idle = float("inf") if idle is None else idle
        self._target = f"/v1/events?watch={quote(cache.source, safe='')}"
        self._waiting: deque[str] = deque()
        self._seen: dict[str, str] = {}
        """The version of each key that has been told: a new connection tells everything again."""
        self._away: tuple[float, str] | None = None
        """Since when the folder cannot be read, and why."""
        self._shard: Shard | None = None

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "away":
            self._away = self._away or (time.monotonic(), event["message"])
            return
        self._away = None
        if event["event"] == "appeared" and self._seen.get(event["key"]) != event["version"]:
            self._seen[event["key"]] = event["version"]
            self._waiting.append(event["key"])

    def _lose_patience(self) -> None:
        if self._away is not None and time.monotonic() - self._away[0] > self._local.wait:
            message, self._away = self._away[1], (time.monotonic(), self._away[1])
            raise OriginFailed(message, code="origin_unavailable", source=self._local.source, retryable=True)

    def _ahead(self) -> list[str]:
        """What is to be fetched while the next one is in use. What comes of it shows when they are opened."""
        return list(islice(self._waiting, 1, 1 + AHEAD))

    def _pause(self, cause: Exception, pause: Pause) -> float:
        """How long to wait before the daemon, which may be about to restart, is tried again; or raises what there is to say.

        A socket that may not be used, or at which something else answers, is not waited for.
        """
        if isinstance(cause, CacheError):
            if cause.code != "stopping" or pause.left <= 0:
                raise cause
        elif pause.left <= 0 or isinstance(cause, (PermissionError, ConnectionAbortedError)):
            raise unavailable(self._local.socket, cause, self._local.source) from None
        return pause.next()

    def _let_go(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()


class Watch(Line):
    """An iterator over opened shards in order of arrival: those that lie in the folder, then those that come.

    Each is closed when the next is asked for. A shard that cannot be had raises its error, and the next call goes on with the
    one after it; one whose file has been taken away again is left out. It ends after `idle` seconds without a new file (None: never).
    A forked child has none of it.
    """

    def __init__(self, cache: ShardCache, idle: float | None = None) -> None:
        super().__init__(cache, idle)
        self._cache = cache
        self._job: Job | None = None
        self._feed: Feed | None = self._open()
        process.forkables.add(self)

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Shard:
        """The next shard, opened. Raises `OriginFailed` when the folder cannot be read for the cache's `wait`."""
        while True:
            self._let_go()
            key = self._next_key()
            try:
                self._shard = self._cache.open(key)
            except ShardMissing:
                continue
            return self._shard

    def _next_key(self) -> str:
        since = time.monotonic()
        while not self._waiting:
            left = since + self._idle - time.monotonic()
            if left <= 0 or self._feed is None:
                raise StopIteration
            self._hear(self._feed, min(left, TURN))
            self._lose_patience()
        self._fetch_ahead()
        try:
            return self._waiting.popleft()
        except IndexError:  # closed meanwhile, by another thread or a signal's handler
            raise StopIteration from None

    def _hear(self, feed: Feed, seconds: float) -> None:
        try:
            events = feed.hear(seconds)
        except OSError:
            feed.close()
            if self._feed is feed:  # and not closed meanwhile
                self._feed = self._open()
            return
        for event in events:
            self._take(event)

    def _fetch_ahead(self) -> None:
        """Have what waits fetched. Only a daemon that is away is an error already here."""
        if not (ahead := self._ahead()):
            return
        try:
            if self._job is not None and self._job.refresh().state != "running":
                self._job = None
            if self._job is None:
                self._job = self._cache.prefetch(ahead)
        except DaemonUnavailable:
            raise
        except CacheError:
            self._job = None

    def _open(self) -> Feed:
        """A connection to the daemon, which may be about to restart."""
        pause = Pause.of(self._cache.wait)
        while True:
            try:
                return Feed(self._cache.socket, self._target, self._cache.source, pause.patience)
            except (CacheError, OSError) as cause:
                seconds = self._pause(cause, pause)
            time.sleep(seconds)

    def close(self) -> None:
        """End it, and the lease of its last shard."""
        self._let_go()
        feed, self._feed = self._feed, None  # first: whoever hears it must see that it was closed, not lost
        if feed is not None:
            feed.close()
        self._waiting.clear()

    def forked(self) -> None:
        """In a forked child: the connection, and what is yet to come, are the parent's."""
        self._shard = None
        self.close()

    def __enter__(self) -> Self:
        """Itself, closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """One that was dropped leaves no warning of its socket; its last shard may be in use yet."""
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None:
            feed.close()
