"""Shards on their way out: renamed to trash under the exclusive lock, deleted by threads, and counted until they are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from cachedaemon.events import Events
from cachedaemon.ledger import Entry, Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Need
from cachedaemon.store import REAPERS, Store
from cachedaemon_client import lease

log = logging.getLogger(__name__)

RETRY = 1.0
"""Seconds until a folder in trash is tried again that a reader was still in, or that the disk refused to delete."""


class Trash:
    """The way out. `changed` is told whenever room may have come back."""

    def __init__(
        self, ledger: Ledger, store: Store, metrics: Metrics, events: Events, changed: Callable[[], None]
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._metrics = metrics
        self._events = events
        self._changed = changed
        self._thrown: asyncio.Queue[tuple[str, Need]] = asyncio.Queue()
        self.failing: str | None = None
        """Why the disk refused to evict or delete, the last time it was tried."""

    async def evict(self, victims: Iterable[Entry], reason: str) -> None:
        """Move shards that have left the index to trash; those that somebody holds go back into it."""
        for entry in victims:
            await self._evict(entry, reason)
        self._changed()

    async def _evict(self, entry: Entry, reason: str) -> None:
        ref = entry.ref
        try:
            path = await self._store.evict(ref, entry.name, entry.stamp, suspect=entry.suspect)
        except lease.Busy:
            self._ledger.put_back(entry, busy=True)
        except lease.Gone:
            self._ledger.vanished(entry)
        except OSError as cause:
            self.failing = f"evicting {ref}: {cause.strerror}"
            log.warning(self.failing)
            self._ledger.put_back(entry, busy=True)
        else:
            if entry.unread_of is not None:
                self._metrics.evicted_unread.labels(ref.source).inc()
            self._metrics.evictions.labels(ref.source, reason).inc()
            self._gone(entry, path)
            self._events.tell("evicted", ref, reason=reason)

    async def discard(self, entry: Entry) -> None:
        """Move a damaged shard to trash, whoever holds it."""
        path = None
        try:
            path = await self._store.discard(entry.ref, entry.name, suspect=entry.suspect)
        except OSError as cause:
            self.failing = f"removing {entry.ref}: {cause.strerror}"
            log.warning(self.failing)
        if path is None:
            self._ledger.vanished(entry)
        else:
            self._gone(entry, path)
        self._metrics.evictions.labels(entry.ref.source, "damaged").inc()
        self._events.tell("evicted", entry.ref, reason="damaged")
        self._changed()

    def _gone(self, entry: Entry, path: str) -> None:
        self._ledger.trashed(entry)
        self.throw(path, Need(entry.blocks, entry.inodes))

    def throw(self, path: str, room: Need) -> None:
        """Delete something in trash that the ledger counts."""
        self._thrown.put_nowait((path, room))

    async def empty(self) -> None:
        """Delete what comes, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(REAPERS):
                group.create_task(self._reap())

    async def _reap(self) -> None:
        while True:
            path, room = await self._thrown.get()
            if await self._is_deleted(path):
                self._ledger.deleted(room)
                self._changed()
            else:
                asyncio.get_running_loop().call_later(RETRY, self.throw, path, room)

    async def _is_deleted(self, path: str) -> bool:
        try:
            done = await self._store.reap(path)
        except OSError as cause:
            self.failing = f"deleting from trash: {cause.strerror}"
            log.warning(self.failing)
            return False
        if done:
            self.failing = None
        return done
