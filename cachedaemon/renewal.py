"""Sources that are configured anew while the daemon runs, and what the disk says they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from cachedaemon.background import Background
from cachedaemon.eviction import Eviction
from cachedaemon.flights import Flights
from cachedaemon.ledger import Ledger
from cachedaemon.sources import Configured, Sources
from cachedaemon.store import Store
from cachedaemon.trash import Trash


class Renewal:
    """Closes sources to flights while what they brought goes."""

    def __init__(  # noqa: PLR0913 - everything that knows a source's shards
        self,
        *,
        ledger: Ledger,
        store: Store,
        sources: Sources,
        flights: Flights,
        eviction: Eviction,
        trash: Trash,
        background: Background,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._sources = sources
        self._flights = flights
        self._eviction = eviction
        self._trash = trash
        self._background = background
        self._marking = asyncio.Lock()
        """Held by whoever writes to the disk which sources its shards came from."""
        self._closed: dict[str, asyncio.Future[None]] = {}

    def closed(self, source: str) -> asyncio.Future[None] | None:
        """Done when a source may be asked again; None when it may be now."""
        return self._closed.get(source)

    async def take(self, made: list[Configured]) -> None:
        """Into force, once the disk has nothing more of what a source was that now reads from elsewhere."""
        unused = [one for one in made if one not in self._sources.all()]
        try:
            async with self._marking:
                marks = [source.mark for source in made]
                async with self.of(await self._store.outdated(marks)):
                    await self._eviction.unshadow([source.name for source in made if source.direct])
                    await self._store.renew(marks)
                    unused = self._sources.take(made)
        finally:
            for one in unused:
                self._background.begin(self._retire(one))

    async def _retire(self, source: Configured) -> None:
        await self._flights.without(source.name)
        await source.origin.close()

    async def remake(self) -> bool:
        """Make the cache directory anew as far as somebody removed it; whether that was so."""
        async with self._marking:
            return await self._store.remake([source.mark for source in self._sources.all()])

    @contextlib.asynccontextmanager
    async def of(self, sources: Collection[str]) -> AsyncIterator[None]:
        """These sources read from elsewhere after the block. In it they have no flight, and nothing of them is here.

        Whoever asks for their shards waits until its end, and has them from what is in force then.
        """
        closed = asyncio.get_running_loop().create_future()
        self._closed.update(dict.fromkeys(sources, closed))
        try:
            for source in sources:
                await self._forget(source)
            yield
        finally:
            for source in sources:
                del self._closed[source]
            closed.set_result(None)

    async def _forget(self, source: str) -> None:
        """End the flights of a source that is closed, and move what it brought to trash, whoever holds it."""
        self._flights.end_all(source)
        await self._flights.without(source)
        while True:
            here = [*self._ledger.entries(), *self._ledger.past()]
            for entry in [entry for entry in here if entry.ref.source == source]:
                await self._eviction.lose(entry)
            if not (moves := self._trash.moves(source)):
                return
            await asyncio.wait(moves)  # what is leased comes back into the ledger
