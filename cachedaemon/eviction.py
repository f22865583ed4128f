"""Shards that go by name, because they are damaged, or because a later version is here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cachedaemon.entries import Entry
from cachedaemon.errors import Leased, NotFound
from cachedaemon.grace import Grace
from cachedaemon.ledger import Ledger
from cachedaemon.model import Ref
from cachedaemon.sources import Sources
from cachedaemon.store import Store
from cachedaemon.trash import Trash
from cachedaemon_client.names import unversioned


class Eviction:
    """What goes for another reason than room."""

    def __init__(self, ledger: Ledger, store: Store, grace: Grace, trash: Trash, sources: Sources) -> None:
        self._ledger = ledger
        self._store = store
        self._grace = grace
        self._trash = trash
        self._sources = sources

    async def evict(self, ref: Ref) -> None:
        """Remove a shard by name.

        Raises `NotFound`, `Leased` when a reader holds it or it is being fetched, `NoSpace` when the disk refuses.
        """
        await self._withdraw(ref)
        if ref in self._ledger.flights:
            raise Leased(f"{ref} is being fetched")
        entry = self._ledger.get(ref)
        if entry is None:
            raise NotFound(f"{ref} is not here")
        self._ledger.take_out(entry)
        for refusal in await self._trash.evict((entry,), "asked"):
            raise refusal
        if self._ledger.get(ref) is entry:
            raise Leased(f"{ref} is leased by a reader")

    async def _withdraw(self, ref: Ref) -> None:
        """End all promises of a shard; wait until it is known whether it goes, if it is about to."""
        while True:
            if (held := self._grace.drop(ref)) is not None:
                await self._store.let_go(held)
            elif (move := self._trash.moving(ref)) is not None:
                await asyncio.wait([move])
            else:
                return

    async def lose(self, entry: Entry) -> None:
        """A shard is not what was published: it leaves, whoever holds it, and is fetched again when it is asked for."""
        if self._ledger.has(entry):
            if not entry.past:
                self._grace.release(entry.ref)
            self._ledger.take_out(entry)
            await self._trash.discard(entry)

    async def retire(self, past: Collection[Entry]) -> None:
        """Earlier versions go that nobody holds any more, or that readers would come upon who do not ask."""
        await self.unshadow([source.name for source in self._sources.all() if source.direct])
        going = [entry for entry in past if entry.past and self._ledger.has(entry)]
        for entry in going:
            self._ledger.take_out(entry)
        await self._trash.evict(going, "replaced")

    async def unshadow(self, direct: Collection[str]) -> None:
        """Earlier versions that lie where readers of these sources look without asking go, whoever holds them."""
        for entry in self._ledger.past():
            if entry.ref.source in direct and unversioned(entry.name) == entry.name:
                await self.lose(entry)
