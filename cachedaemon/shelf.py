"""The shards that are here: whether they may be given out, who holds them, and when they were used."""

from __future__ import annotations

import time
from collections.abc import Collection

from cachedaemon.arrival import is_indexed
from cachedaemon.entries import Entry
from cachedaemon.errors import Locked
from cachedaemon.eviction import Eviction
from cachedaemon.grace import Grace
from cachedaemon.ledger import Ledger
from cachedaemon.locks import Holders
from cachedaemon.model import Ref
from cachedaemon.sources import Configured
from cachedaemon.store import Held, Store
from cachedaemon_client import lease


class Shelf:
    """What is published, as the disk and its readers have it."""

    def __init__(self, ledger: Ledger, store: Store, grace: Grace, eviction: Eviction) -> None:
        self._ledger = ledger
        self._store = store
        self._grace = grace
        self._eviction = eviction
        self._holders = Holders()
        self.used: dict[Ref, Entry] = {}
        """Shards whose last use the disk does not know yet."""

    def is_good(self, source: Configured, ref: Ref) -> bool:
        """Whether a shard is here and needs no asking of its origin before it is given out."""
        entry = self._ledger.get(ref)
        return entry is not None and not entry.suspect and source.believes(time.monotonic() - entry.asked)

    async def hold(self, source: Configured, entry: Entry) -> Held | None:
        """The daemon's own lease on a version that is as it was published; what is damaged goes. Raises `Locked`."""
        indexed = source.settings.archives == "index" and is_indexed(entry.ref.key)
        try:
            held = await self._store.hold(entry.ref, entry.name, entry.stamp, indexed=indexed, checked=entry.checked)
        except lease.Busy:
            raise Locked(f"{entry.ref}: {await self._holders.of(self.path_of(entry), entry.stamp)}") from None
        except lease.Gone:
            await self._eviction.lose(entry)
            return None
        entry.checked = True
        return held

    def touch(self, ref: Ref, age: float) -> bool:
        """A shard was used so many seconds ago; whether it is here."""
        entry = self._ledger.get(ref)
        if entry is not None:
            self.use(entry, age)
        return entry is not None

    def use(self, entry: Entry, age: float = 0.0) -> None:
        """A version was used so many seconds ago."""
        self._ledger.touch(entry, time.monotonic() - max(0.0, age))
        self.used[entry.ref] = entry

    async def is_leased(self, entry: Entry) -> bool:
        """Whether a reader holds the shard; the daemon's own lease does not count."""
        return not entry.suspect and await self._store.is_leased(entry.ref, entry.name, self._grace.held(entry.ref))

    async def leased_among(self, entries: Collection[Entry]) -> set[Ref]:
        """Which of these shards readers hold, in one look; none where the disk cannot say."""
        sound = [entry for entry in entries if not entry.suspect]
        held = await self._store.leased([(entry.ref, entry.name, self._grace.held(entry.ref)) for entry in sound])
        return {entry.ref for entry, is_held in zip(sound, held, strict=True) if is_held}

    def path_of(self, entry: Entry) -> str:
        """Where the shard is published."""
        return self._store.layout.shard(entry.ref.source, entry.name)
