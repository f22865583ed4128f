"""How a version of a shard comes into force: published, found unchanged, or proved after an unclean boot.

In the step that puts it into force it is in the ledger and promised to everybody who waits: there is no moment at which it
could go, and nothing is awaited in between.
"""

from __future__ import annotations

import asyncio
import time

from cachedaemon.arrival import Arrived, digest_of
from cachedaemon.background import Background
from cachedaemon.entries import Entry, Flight
from cachedaemon.errors import Changed
from cachedaemon.events import Events
from cachedaemon.eviction import Eviction
from cachedaemon.grace import Grace, Promise
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Validators
from cachedaemon.shelf import Shelf
from cachedaemon.sources import Configured
from cachedaemon.store import Held, Published, Staged, Store
from cachedaemon.trash import Trash


class Publication:
    """The last step of a flight."""

    def __init__(  # noqa: PLR0913 - everything that hears of a shard which comes
        self,
        *,
        ledger: Ledger,
        store: Store,
        shelf: Shelf,
        grace: Grace,
        trash: Trash,
        eviction: Eviction,
        metrics: Metrics,
        events: Events,
        background: Background,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._shelf = shelf
        self._grace = grace
        self._trash = trash
        self._eviction = eviction
        self._metrics = metrics
        self._events = events
        self._background = background
        self.unsynced: asyncio.Queue[Entry] = asyncio.Queue()
        """Shards that were published and are not durable yet."""

    async def publish(
        self, flight: Flight, source: Configured, staged: Staged, arrived: Arrived, validators: Validators
    ) -> list[Promise]:
        """Make what has come visible, unless it is what was published before under the same name."""
        name = source.name_of(flight.ref.key, arrived.digest)
        same = self._ledger.version(flight.ref, name)
        if same is not None:
            await self._store.note_validators(flight.ref, name, validators)
            if (promises := await self._again(flight, source, same)) is not None:
                return promises
        meta = arrived.meta(flight.ref, validators)
        published = await self._store.publish(flight.ref, name, staged, arrived.sealed, meta)
        return self._commit(flight, name, arrived, published)

    def _commit(self, flight: Flight, name: str, arrived: Arrived, published: Published) -> list[Promise]:
        """The shard is visible: it is in the ledger, and promised to everybody who waits, before anything else happens."""
        ref, now = flight.ref, time.monotonic()
        blocks = arrived.sealed.blocks
        entry = Entry(ref, name, published.stamp, arrived.size, blocks, arrived.inodes, now, asked=flight.asked)
        self._ledger.commit(flight, entry)
        self._store.trouble.over("room", "shortage", f"source {ref.source}")
        if self._trash.ghosts.came(ref):
            self._metrics.refetched.labels(ref.source).inc()
        if past := self._ledger.past():
            self._background.begin(self._eviction.retire(past))
        return self._promise(flight, entry, published)

    async def still(self, flight: Flight, source: Configured) -> list[Promise]:
        """The version that is here is the origin's latest: promises for everybody who waits. Raises `Changed`."""
        entry = self._ledger.get(flight.ref)
        if entry is None or (promises := await self._again(flight, source, entry)) is None:
            raise Changed(f"{flight.ref} went while the origin was asked whether it changed")
        return promises

    async def _again(self, flight: Flight, source: Configured, entry: Entry) -> list[Promise] | None:
        """A version that was published before is in force (again); None when it is not what it was."""
        held = await self._shelf.hold(source, entry)
        if held is None:
            return None
        if not self._ledger.has(entry):  # it was chosen to go meanwhile: our own lock must not keep it
            self._background.begin(self._store.let_go(held))
            return None
        if entry.past:
            self._ledger.revive(entry, time.monotonic())
            self.unsynced.put_nowait(entry)
        entry.asked = flight.asked
        self._ledger.land(flight)
        if flight.demand:
            self._shelf.use(entry)
        elif flight.job is not None:
            self._ledger.announce(entry, time.monotonic(), flight.job)
        return self._promises(flight, held)

    async def prove(self, flight: Flight, source: Configured) -> list[Promise]:
        """Check a shard that an unclean boot has left; no promises when it cannot be published again.

        Nor where its origin is to be asked first whether it changed.
        """
        entry = self._ledger.get(flight.ref)
        if entry is None or not entry.suspect:
            return []
        if not await self._store.proves(entry.ref, entry.name, digest_of):
            await self._eviction.lose(entry)
            return []
        published = await self._store.restore(entry.ref, entry.name, entry.stamp)
        entry.stamp, entry.suspect = published.stamp, False
        if flight.demand and not self._shelf.is_good(source, flight.ref):
            self.unsynced.put_nowait(entry)
            self._background.begin(self._store.let_go(published.held))
            return []
        self._ledger.land(flight)
        return self._promise(flight, entry, published)

    def _promise(self, flight: Flight, entry: Entry, published: Published) -> list[Promise]:
        self.unsynced.put_nowait(entry)
        self._events.tell("ready", entry.ref, size=entry.size, path=self._shelf.path_of(entry))
        return self._promises(flight, published.held)

    def _promises(self, flight: Flight, held: Held) -> list[Promise]:
        return self._grace.promises(flight.ref, held, flight.waiters)
