"""One transfer: its turn among the others, its tries, and how the bytes come to staging."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from cachedaemon.entries import Flight, Line
from cachedaemon.errors import CacheDaemonError, Corrupt, Cut, NoSpace, OriginUnavailable
from cachedaemon.metrics import Metrics
from cachedaemon.model import BLOCK, Need, blocks
from cachedaemon.origins import Stream
from cachedaemon.pace import Paces, Part
from cachedaemon.store import Staged, Store

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
LONGEST_HOLD = 5.0
"""Seconds that a source's other transfers wait because the origin asked one of them to."""
INODES = 3
"""A shard, its meta file and its member table."""
STEP_LEAST, STEP_MOST = 1 << 20, 32 << 20
"""Bytes by which the reservation of a transfer of unknown size grows."""


class Turns:
    """Places for transfers, over all sources and per source; demand first, then the order of asking.

    An origin that says `Retry-After` gets no new transfer of its source before that. `rates` are bandwidths per source, in
    bytes per second, 0 for no limit.
    """

    def __init__(self, total: int, per_source: Mapping[str, int], rates: Mapping[str, int]) -> None:
        self._total = total
        self._per_source = dict(per_source)
        self._paces = Paces(rates)
        self._running: dict[str, int] = {}
        self._waiting = Line()
        self._places: dict[Flight, asyncio.Future[None]] = {}
        self._held: dict[str, float] = {}

    def limit(self, total: int, per_source: Mapping[str, int], rates: Mapping[str, int]) -> None:
        """Change the limits; transfers under way go on, at the new bandwidth."""
        self._total, self._per_source = total, dict(per_source)
        self._paces.limit(rates)
        self._next()

    def demand_waits(self) -> bool:
        """Whether any demand waits for a place."""
        return self._waiting.has_demand()

    @asynccontextmanager
    async def turn(self, flight: Flight) -> AsyncIterator[Part]:
        """Wait for a place, and keep it for the block, with a part of the source's bandwidth."""
        place = self._places[flight] = asyncio.get_running_loop().create_future()
        self._waiting.add(flight)
        self._next()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave(flight)
            else:
                self._waiting.remove(flight)
            raise
        finally:
            del self._places[flight]
        try:
            yield self._paces.part(flight.ref.source)
        except OriginUnavailable as cause:
            self._hold(flight.ref.source, cause.retry_after or 0.0)
            raise
        finally:
            self._leave(flight)

    def _hold(self, source: str, seconds: float) -> None:
        """The origin is overloaded and said for how long: nobody begins a transfer from it before that."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, LONGEST_HOLD)
        if seconds and until > self._held.get(source, 0.0):
            self._held[source] = until
            loop.call_at(until, self._go_on, source, until)

    def _go_on(self, source: str, until: float) -> None:
        if self._held.get(source) == until:
            del self._held[source]
            self._next()

    def _has_no_place(self, source: str) -> bool:
        return source in self._held or self._running.get(source, 0) >= self._per_source.get(source, 1)

    def _leave(self, flight: Flight) -> None:
        self._running[flight.ref.source] -= 1
        self._next()

    def _next(self) -> None:
        while sum(self._running.values()) < self._total:
            flight = self._waiting.first(self._has_no_place)
            if flight is None:
                return
            self._waiting.remove(flight)
            place = self._places[flight]
            if not place.done():  # else it was cancelled just now
                self._running[flight.ref.source] = self._running.get(flight.ref.source, 0) + 1
                place.set_result(None)


class Stopped(Exception):
    """The transfer gives its room to another and queues again in its old place."""


class Impatient(Exception):
    """Room is not to be had while the origin waits with an open answer: let go of it, and ask again with room."""


Stops = dict[Flight, Callable[[], None]]
"""How to stop the try of each flight."""


class Try:
    """One try, as an asynchronous block. It ends a failure that is worth another try, and can be stopped from outside."""

    def __init__(self, flight: Flight, metrics: Metrics, stops: Stops) -> None:
        self._flight = flight
        self._metrics = metrics
        self._stops = stops
        self._task: asyncio.Task[object] | None = None
        self._stopped = False
        self.cause: CacheDaemonError | Stopped | Impatient | None = None

    def stop(self) -> None:
        """End this try: its room is wanted elsewhere."""
        if self._task is not None and not self._stopped:
            self._stopped = True
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._stops[self._flight] = self.stop
        self._flight.empty()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        del self._stops[self._flight]
        if self._stopped and task is not None and task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            error = Stopped()
        self._flight.empty()
        if isinstance(error, Stopped | NoSpace):
            self._flight.give_back()
        if isinstance(error, CacheDaemonError):
            self._metrics.fetch_failures.labels(self._flight.ref.source, error.code).inc()
        if isinstance(error, Stopped | Impatient | OriginUnavailable | NoSpace | Corrupt):
            if task is not None and task.cancelling():  # it came while a thread worked, which is awaited to its end
                raise asyncio.CancelledError from error
            self.cause = error
            return True
        return False


async def tries(flight: Flight, retries: int, metrics: Metrics, *, stops: Stops) -> AsyncIterator[Try]:
    """Tries until one ends well; after `retries` more that failed, the last cause is raised.

    Between them lies a random pause that grows (full jitter), or what the origin asked for with `Retry-After`. Giving way
    to another transfer is no failure.
    """
    failed = 0
    while True:
        one = Try(flight, metrics, stops)
        yield one
        cause = one.cause
        if cause is None:
            return
        if isinstance(cause, CacheDaemonError):
            flight.cause = cause
            if failed >= retries:
                raise cause
            seconds = pause(failed, cause)
            failed += 1
            log.debug("%s: try %d failed, the next comes in %.1f s: %s", flight.ref, failed, seconds, cause)
            await asyncio.sleep(seconds)


def pause(failed: int, cause: CacheDaemonError) -> float:
    """Seconds before the next try."""
    asked = cause.retry_after if isinstance(cause, OriginUnavailable) else None
    most = min(LONGEST_PAUSE, max(FIRST_PAUSE * 2 ** min(failed, 16), (asked or 0.0) / 2))
    return (asked or 0.0) + random.uniform(0, most)  # noqa: S311 - spreads load, keeps no secret


class Landing:
    """Bytes on their way from an origin to staging. `needs` yields how much room is needed in all, before it is used.

    `stage` makes the file, once a size that is announced has its room: what is too large is refused before.
    """

    def __init__(
        self, store: Store, stage: Callable[[], Awaitable[Staged]], flight: Flight, metrics: Metrics, most: int
    ) -> None:
        self._store = store
        self._stage = stage
        self.staged: Staged
        """The file, once it is made."""
        self._flight = flight
        self._bytes = metrics.origin_bytes.labels(flight.ref.source)
        self._most = most

    async def needs(self, stream: Stream, part: Part) -> AsyncGenerator[Need, None]:
        """Write the stream to staging, no faster than its part of the bandwidth lets it.

        Raises `Cut` when its length is not as announced.
        """
        size = stream.size
        if size is not None:
            yield Need(blocks(size), INODES)
        staged = self.staged = await self._stage()
        if size is not None:
            await self._store.expect(staged, size)
        self._flight.growing = size is None
        room = 0
        self._flight.size = size
        async for pieces in stream.pieces():
            count = sum(len(piece) for piece in pieces)
            self._bytes.inc(count)
            await part.take(count)
            after = staged.size + count
            if size is None and after > room:
                room = self._more(after)
                yield Need(blocks(room), INODES)
            elif size is not None and after > size:
                raise Cut(f"{self._flight.ref}: got over {size} bytes, which the origin announced")
            await self._store.write(staged, pieces)
            self._flight.written = self._flight.arrived = staged.size
        if size is not None and staged.size != size:
            raise Cut(f"{self._flight.ref}: got {staged.size} of {size} bytes")

    def _more(self, least: int) -> int:
        step = min(STEP_MOST, max(STEP_LEAST, self.staged.size // 4))
        target = least + step
        most = self._most // BLOCK * BLOCK - BLOCK  # so much fits, rounded up to blocks and with an extent tree
        return max(least, min(target, most)) if self._most else target
