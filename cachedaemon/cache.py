"""The cache: the walk of a miss, from a key to a published shard, and the only owner of the ledger.

Decisions are the ledger's, synchronous and pure; what they ask for is done here, and reported back. Nothing is awaited
between reading the ledger and changing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from cachedaemon.archives.workers import Workers
from cachedaemon.arrival import Arrival, is_looked_into
from cachedaemon.background import Background
from cachedaemon.entries import Flight
from cachedaemon.errors import (
    CacheDaemonError,
    Missing,
    NoSpace,
    OriginUnavailable,
    Shortage,
    WaitExpired,
)
from cachedaemon.events import Events
from cachedaemon.eviction import Eviction
from cachedaemon.fetch import Impatient, Stops, tries
from cachedaemon.flights import Ended, Flights, Landed, end_of
from cachedaemon.grace import Grace, Promise
from cachedaemon.landing import Landing
from cachedaemon.ledger import Ledger
from cachedaemon.logs import tell_failure
from cachedaemon.metrics import Metrics
from cachedaemon.model import Need, Ref
from cachedaemon.origins import Stream
from cachedaemon.publication import Publication
from cachedaemon.renewal import Renewal
from cachedaemon.room import Partial, Room, cache_full
from cachedaemon.shelf import Shelf
from cachedaemon.sources import Configured, Sources
from cachedaemon.store import Staged, Store
from cachedaemon.trash import Trash
from cachedaemon.turns import Turns

log = logging.getLogger(__name__)

STALE = 10.0
"""Seconds until an origin is asked again that could not be asked whether a shard changed."""
PATIENCE = 10.0
"""Seconds that an origin is kept waiting with an open answer while there is no room."""
CHECK = "check"
"""The job of a flight that only proves a suspect shard."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A shard that is local; the promise holds it until the reader has its own lease."""

    path: str
    size: int
    result: str
    promise: Promise


class Cache:
    """See the module. `retries` and `ledger.caps` may change at run time."""

    def __init__(  # noqa: PLR0913 - everything it works with, built once
        self,
        *,
        ledger: Ledger,
        store: Store,
        sources: Sources,
        workers: Workers,
        turns: Turns,
        metrics: Metrics,
        events: Events,
        grace: float,
        retries: int,
    ) -> None:
        self.ledger = ledger
        self.sources = sources
        self.retries = retries
        self.turns = turns
        self._store = store
        self._workers = workers
        self._metrics = metrics
        self._events = events
        self._stops: Stops = {}
        self.background = Background()
        self.grace = Grace(grace, lambda held: self.background.begin(store.let_go(held)))
        self.trash = Trash(ledger, store, metrics, events, lambda: self.room.changed())  # noqa: PLW0108 - made after this
        self.flights = Flights(ledger, self.grace)
        self.eviction = Eviction(ledger, store, self.grace, self.trash, sources)
        self.renewal = Renewal(
            ledger=ledger,
            store=store,
            sources=sources,
            flights=self.flights,
            eviction=self.eviction,
            trash=self.trash,
            background=self.background,
        )
        self.shelf = Shelf(ledger, store, self.grace, self.eviction)
        self.publication = Publication(
            ledger=ledger,
            store=store,
            shelf=self.shelf,
            grace=self.grace,
            trash=self.trash,
            eviction=self.eviction,
            metrics=metrics,
            events=events,
            background=self.background,
        )
        self.room = Room(ledger, store.usage, self.trash.evict, self._stops, turns.is_due_to_another)
        self.absent: Callable[[], Awaitable[None]] = _nothing
        """Looks whether somebody removed the cache directory, and makes it anew."""

    # ---- asking

    async def acquire(self, source: str, key: str, wait: float) -> Answer:
        """A shard that is local, once it is; `wait` in seconds, 0: only if it is here."""
        configured, ref = self.sources.shard(source, key)
        began = time.monotonic()
        try:
            while (
                answer := await self._hit(configured, ref) or await self._miss(configured, ref, began + wait)
            ) is None:
                configured, ref = self.sources.shard(source, key)  # a reload may have come meanwhile
        except CacheDaemonError:
            self._metrics.requests.labels(source, "failed").inc()
            raise
        self._metrics.requests.labels(source, answer.result).inc()
        self._metrics.acquire_wait.labels(source).observe(time.monotonic() - began)
        log.debug("given out: %s, a %s after %.3f s", ref, answer.result, time.monotonic() - began)
        return answer

    async def _hit(self, source: Configured, ref: Ref) -> Answer | None:
        """A shard that is here as it was published, leased for the asker; what is damaged goes."""
        if not self.shelf.is_good(source, ref):
            return None
        entry = self.ledger.get(ref)
        assert entry is not None
        held = await self.shelf.hold(source, entry)
        if held is None:
            return None
        promise = self.grace.promise(ref, held)
        self.shelf.use(entry)
        return Answer(self.shelf.path_of(entry), entry.size, "hit", promise)

    async def _miss(self, source: Configured, ref: Ref, deadline: float) -> Answer | None:
        """Wait for the shard's flight, as one of any number of waiters; None: it is here, or has gone again."""
        if deadline <= time.monotonic():
            state = "has to be asked for again" if self.ledger.get(ref) else "is not here"
            raise WaitExpired(f"{ref} {state}, and the request allows no time to fetch it")
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                await self._settled(ref)
        except TimeoutError:
            raise WaitExpired(f"{ref}: what became of it before could not be told in time") from None
        if self.shelf.is_good(source, ref):
            return None
        before = self.ledger.get(ref)
        flight, task, new = self._join(ref)
        log.debug("waiting for %s: flight %d, %s", ref, flight.number, "which begins" if new else "under way")
        promise: Promise | None = None
        try:
            async with asyncio.timeout_at(_loop_time(deadline)) as limit:
                promise = (await end_of(task)).pop()
        except TimeoutError:
            if not limit.expired():  # it is the flight's own, and a fault
                raise
            raise self._expired(flight) from None
        except Ended:
            return None
        finally:
            self.flights.leave(flight, task, promise)
        entry = self.ledger.get(ref)
        if entry is None:  # evicted by name between the publishing and this answer
            self.grace.end(promise)
            return None
        result = "hit" if entry is before else "miss" if new else "joined"
        return Answer(self.shelf.path_of(entry), entry.size, result, promise)

    async def bring(self, source: str, key: str, job: str, *, ahead: bool = False) -> bool:
        """Have a shard fetched for a prefetch; False when the rest would displace what the job brought (`Partial`).

        `ahead`: for a plan, by whose order what is needed sooner must not be displaced.
        """
        while True:
            configured, ref = self.sources.shard(source, key)
            await self._settled(ref)
            entry = self.ledger.get(ref)
            if entry is not None and self.shelf.is_good(configured, ref):
                self.ledger.announce(entry, time.monotonic(), job)
                return True
            flight, task, _ = self._join(ref, job=job, ahead=ahead)
            try:
                await end_of(task)
            except Ended:
                continue
            except Partial:
                if flight.job == job:
                    return False
            else:
                if job == CHECK or flight.job != CHECK:
                    return True
            finally:
                self.flights.leave(flight, task, None)

    async def _settled(self, ref: Ref) -> None:
        """Until it is known what becomes of a shard on its way to trash, of its flight that nobody can join, or source."""
        while (
            pending := self.trash.moving(ref) or self.flights.dying(ref) or self.renewal.closed(ref.source)
        ) is not None:
            await asyncio.wait([pending])

    def _join(self, ref: Ref, *, job: str | None = None, ahead: bool = False) -> tuple[Flight, Landed, bool]:
        """The flight of a shard that is settled and not here, with this waiter counted; and whether it is new."""
        source = self.sources[ref.source]  # as it is now: a reload may have come between the asking and this
        return self.flights.join(ref, lambda flight: self._fly(flight, source), job=job, ahead=ahead)

    def _expired(self, flight: Flight) -> CacheDaemonError:
        full = self.room.blocks(flight)
        if full is not None:
            return cache_full(flight, full, len(self.ledger))
        cause = f"; last cause: {flight.cause}" if flight.cause else ""
        return WaitExpired(f"{flight.ref} did not become local in time{cause}")

    # ---- the walk of a miss

    async def _fly(self, flight: Flight, source: Configured) -> list[Promise]:
        """From the origin to `shards/`. Whatever happens, nothing partial is visible, and the reservation ends."""
        ref, began = flight.ref, time.monotonic()
        try:
            promises = await self.publication.prove(flight, source)
            if promises or (flight.job == CHECK and not flight.demand):
                return promises
            async for attempt in tries(flight, self.retries, self._metrics, stops=self._stops):
                async with attempt, contextlib.AsyncExitStack() as till_the_end:
                    await self._wanted(flight)
                    async with self.turns.turn(flight) as turn, self._opened(flight, source) as stream:
                        flight.replaces = stream is not None
                        if stream is None:
                            promises = await self.publication.still(flight, source)
                            continue
                        if is_looked_into(ref.key, source.settings):
                            self._workers.expect()
                        stage = partial(till_the_end.enter_async_context, self._staging(ref.source))
                        landing = Landing(self._store, stage, flight, self._metrics, self.ledger.caps.max_bytes)
                        async with contextlib.aclosing(landing.needs(stream, turn, self.retries)) as needs:
                            async for need in needs:
                                await self._reserve(flight, need)
                        self._metrics.fetch.labels(ref.source).observe(time.monotonic() - began)
                    arrival = Arrival(self._store, self._workers, self._metrics, flight, landing.staged)
                    async with contextlib.aclosing(arrival.needs(source.settings)) as needs:
                        async for need in needs:
                            await self.room.reserve(flight, need)
                    promises = await self.publication.publish(
                        flight, source, landing.staged, arrival.result, stream.validators
                    )
                    log.debug("%s is here: %d bytes, %.2f s", ref, arrival.result.size, time.monotonic() - began)
        except CacheDaemonError as cause:
            if isinstance(cause, Missing) and (entry := self.ledger.get(ref)) is not None:
                self.ledger.supersede(entry)
            if (area := _area(ref, cause)) is not None:
                self._store.trouble.report(area, str(cause))
            self._events.tell("failed", ref, code=cause.code)
            tell_failure(log, ref, cause)
            raise
        finally:
            self.ledger.land(flight)
            self.room.changed()
        return promises

    @contextlib.asynccontextmanager
    async def _opened(self, flight: Flight, source: Configured) -> AsyncIterator[Stream | None]:
        """The origin's answer; None: what is here is what to give.

        An origin that cannot be asked whether something changed is believed a little longer, where its word holds for
        some time anyway.
        """
        entry = self.ledger.get(flight.ref)
        known = await self._store.validators(flight.ref, entry.name) if entry is not None else None
        flight.asked = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(source.open(flight.ref.key, known))
            except OriginUnavailable as cause:
                if known is None or not source.outlasts:
                    raise
                if self._store.trouble.report(f"source {source.name}", "whether shards changed cannot be asked"):
                    log.warning("%s is given out as it is: whether it changed cannot be asked: %s", flight.ref, cause)
                stream = None
                flight.asked += source.until(max(STALE, cause.retry_after or 0.0))
            yield stream

    async def _wanted(self, flight: Flight) -> None:
        """Wait for the room that an earlier try could not wait for."""
        if flight.wanted is not None:
            await self.absent()
            await self.room.reserve(flight, flight.wanted)
            flight.wanted = None

    @contextlib.asynccontextmanager
    async def _staging(self, source: str) -> AsyncIterator[Staged]:
        """A place in staging. It holds a folder and a descriptor, so nobody has one who waits for a turn or an origin."""
        await self.absent()
        async with self._store.staging(source) as staged:
            yield staged

    async def _reserve(self, flight: Flight, need: Need) -> None:
        """Room for a transfer. The origin is not kept waiting for long; what grows has its bytes in staging and waits.

        Nor does a prefetch that waits keep a demand from its turn.
        """
        if flight.slot:
            await self.room.reserve(flight, need)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self.room.reserve(flight, need, holds_turn=True)
        except (TimeoutError, Impatient):
            flight.wanted = need
            raise Impatient from None

    @property
    def troubles(self) -> dict[str, str]:
        """What holds transfers up that are under way, by the area that health tells it under."""
        causes = ((flight.ref, flight.held_up_by) for flight in self.ledger.flights.values())
        return {area: str(cause) for ref, cause in causes if (area := _area(ref, cause)) is not None}

    def bytes_of(self, source: str, key: str) -> int:
        """Bytes of a shard that is here, or what has come so far of one that is on its way."""
        ref = Ref(source, key)
        if (flight := self.ledger.flights.get(ref)) is not None:
            return flight.arrived
        entry = self.ledger.get(ref)
        return entry.size if entry is not None else 0

    # ---- the end

    async def drain(self) -> None:
        """End all flights, each to its last disk call; waiters get `stopping`."""
        self.flights.stop()
        while tasks := self.flights.tasks():
            await asyncio.wait(tasks)
        await self.background.ended()

    async def let_go(self) -> None:
        """Give all leases of the daemon back, once nobody can be promised anything any more."""
        self.grace.end_all()
        await self.background.ended()


def _area(ref: Ref, cause: Exception | None) -> str | None:
    """What is not well when a transfer fails so; None: nothing but the transfer, or the store has told of it."""
    if isinstance(cause, OriginUnavailable):
        return f"source {ref.source}"
    if isinstance(cause, Shortage):
        return "shortage"
    return "room" if isinstance(cause, NoSpace) and not isinstance(cause.__cause__, OSError) else None


def _loop_time(deadline: float) -> float:
    return asyncio.get_running_loop().time() + deadline - time.monotonic()


async def _nothing() -> None:
    return
