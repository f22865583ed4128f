"""Sources that are configured anew while the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from cachedaemon.eviction import Eviction
from cachedaemon.flights import Flights
from cachedaemon.ledger import Ledger
from cachedaemon.trash import Trash


class Renewal:
    """Closes sources to flights while what they brought goes."""

    def __init__(self, ledger: Ledger, flights: Flights, eviction: Eviction, trash: Trash) -> None:
        self._ledger = ledger
        self._flights = flights
        self._eviction = eviction
        self._trash = trash
        self._closed: dict[str, asyncio.Future[None]] = {}

    def closed(self, source: str) -> asyncio.Future[None] | None:
        """Done when a source may be asked again; None when it may be now."""
        return self._closed.get(source)

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
