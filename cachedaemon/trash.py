"""Shards on their way out: renamed to trash under the exclusive lock, deleted by threads, and counted until they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cachedaemon.entries import Entry
from cachedaemon.errors import NoSpace
from cachedaemon.events import Events
from cachedaemon.ghosts import Ghosts
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Need, Ref
from cachedaemon.store import REAPERS, Store
from cachedaemon.store.disk import disk_error
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
        self.ghosts = Ghosts()
        self._thrown: asyncio.Queue[tuple[str, Need]] = asyncio.Queue()
        self._moving: dict[Ref, asyncio.Future[None]] = {}
        self._moving_past: dict[Entry, asyncio.Future[None]] = {}
        """Likewise earlier versions, which nobody waits for but who has a source forgotten."""
        store.displaced = self._leftover

    def moving(self, ref: Ref) -> asyncio.Future[None] | None:
        """Done when it is known whether a shard goes that has left the index; None when it has not."""
        return self._moving.get(ref)

    def moves(self, source: str) -> list[asyncio.Future[None]]:
        """Likewise for all shards of a source."""
        past = [move for entry, move in self._moving_past.items() if entry.ref.source == source]
        return past + [move for ref, move in self._moving.items() if ref.source == source]

    async def evict(self, victims: Sequence[Entry], reason: str) -> list[NoSpace]:
        """Move shards that have left the index to trash; those that somebody holds go back into it.

        So do those that the disk refuses to move: its refusals.
        """
        refusals = []
        with contextlib.ExitStack() as moves:
            ends = [moves.enter_context(self._move(entry)) for entry in victims]
            for entry, ended in zip(victims, ends, strict=True):
                refusals.append(await self._evict(entry, reason))
                ended()
        self._changed()
        return [one for one in refusals if one is not None]

    @contextlib.contextmanager
    def _move(self, entry: Entry) -> Iterator[Callable[[], None]]:
        """While a shard has left the index and may come back to it, to be called when that is decided.

        What nobody decided on by the end goes back.
        """
        move: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if entry.past:
            forget = partial(self._moving_past.pop, entry)
            self._moving_past[entry] = move
        else:
            forget = partial(self._moving.pop, entry.ref)
            self._moving[entry.ref] = move

        def ended() -> None:
            self._ledger.put_back(entry)
            if not move.done():
                forget()
                move.set_result(None)

        try:
            yield ended
        finally:
            ended()

    async def _evict(self, entry: Entry, reason: str) -> NoSpace | None:
        ref = entry.ref
        try:
            path = await self._store.evict(ref, entry.name, entry.stamp, suspect=entry.suspect)
        except lease.Busy:
            self._ledger.put_back(entry, busy=True)
        except lease.Gone:
            return await self._evict_other(entry)
        except OSError as cause:
            return self._stays(entry, cause)
        else:
            if entry.unread_of is not None:
                self._metrics.evicted_unread.labels(ref.source).inc()
            self._ledger.trashed(entry)
            self.throw(path, Need(entry.blocks, entry.inodes))
            self._tell(entry, reason)
        return None

    async def _evict_other(self, entry: Entry) -> NoSpace | None:
        """Somebody exchanged or removed a shard that was to go: what stands in its place is not left to readers."""
        try:
            await self._discard(entry)
        except OSError as cause:
            return self._stays(entry, cause)
        return None

    def _stays(self, entry: Entry, cause: OSError) -> NoSpace:
        self._ledger.put_back(entry, busy=True)
        return self._report(f"evicting {entry.ref}", cause)

    def _tell(self, entry: Entry, reason: str) -> None:
        self._metrics.evictions.labels(entry.ref.source, reason).inc()
        if reason == "room" and not entry.past:
            self.ghosts.went(entry.ref, len(self._ledger))
        self._events.tell("evicted", entry.ref, reason=reason)
        log.debug("%s is evicted: %s", entry.ref, reason)

    async def discard(self, entry: Entry) -> None:
        """Move a damaged shard to trash, whoever holds it. Raises `NoSpace` when the disk refuses: it is here still."""
        with self._move(entry):
            try:
                await self._discard(entry)
            except OSError as cause:
                raise self._report(f"removing {entry.ref}", cause) from cause
        self._changed()

    async def _discard(self, entry: Entry) -> None:
        """What stands in a shard's place goes, and counts for what it is."""
        moved = await self._store.discard(entry.ref, entry.name, suspect=entry.suspect)
        self._ledger.vanished(entry)
        if moved is not None:
            self._leftover(*moved)
        self._tell(entry, "damaged")

    def _leftover(self, path: str, room: Need) -> None:
        """Something was moved to trash: it counts until it is deleted."""
        self._ledger.leftover(room)
        self.throw(path, room)

    def throw(self, path: str, room: Need) -> None:
        """Delete something in trash that the ledger counts."""
        self._thrown.put_nowait((path, room))

    def _throw_again(self, path: str, room: Need) -> None:
        self._ledger.unstuck(room)
        self.throw(path, room)

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
                self._ledger.stuck(room)
                self._changed()
                asyncio.get_running_loop().call_later(RETRY, self._throw_again, path, room)

    async def _is_deleted(self, path: str) -> bool:
        try:
            return await self._store.reap(path)
        except OSError as cause:
            self._report("deleting from trash", cause)
            return False

    def _report(self, what: str, cause: OSError) -> NoSpace:
        error = disk_error(cause, what)
        if self._store.trouble.report("trash", str(error)):
            log.warning("%s", error)
        return error
