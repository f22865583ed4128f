"""Places for transfers: how many run at once, over all sources and of each, and who is next."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from cachedaemon.entries import Flight, Line
from cachedaemon.errors import OriginUnavailable, Overloaded
from cachedaemon.pace import Paces, Part

LONGEST_HOLD = 5.0
"""Seconds that a source's other transfers wait because the origin asked one of them to."""
GAP = 0.1
"""Seconds, at most, between two transfers that begin when a source was held: they come back one by one."""
KEPT = 1.0
"""Seconds of a pause in which a transfer keeps its place; from longer ones others have it."""


class Allowance:
    """How many connections a source is given at once. It is told the time.

    Half as many once the origin shows that it is asked for too much, and one more after each round that went well, up to
    what is configured (additive increase, multiplicative decrease: Chiu and Jain 1989).
    """

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._well = 0
        self._since = -math.inf

    def limit(self, most: int) -> None:
        """Change what is configured; who has all of it has all of the new one."""
        self.now = most if self.now == self._most else min(self.now, most)
        self._most = most

    def went_well(self) -> None:
        """A transfer, or a part of one, has come."""
        self._well += 1
        if self._well >= self.now:
            self.now, self._well = min(self.now + 1, self._most), 0

    def was_too_much(self, began: float, now: float) -> None:
        """A request that began then was refused now. Those that were under way together count once."""
        if began >= self._since:
            self.now, self._well, self._since = max(1, self.now // 2), 0, now


class Turns:
    """Places for transfers, over all sources and per source; demand first, then the order of asking.

    An origin that says `Retry-After` gets no new transfer of its source before that. `rates` are bandwidths per source, in
    bytes per second, 0 for no limit.
    """

    def __init__(self, total: int, per_source: Mapping[str, int], rates: Mapping[str, int]) -> None:
        self._total = total
        self._allowances = {name: Allowance(most) for name, most in per_source.items()}
        self._paces = Paces(rates)
        self._running: dict[str, int] = {}
        self._waiting = Line()
        self._places: dict[Flight, asyncio.Future[None]] = {}
        self._held: dict[str, float] = {}
        self._spaced: dict[str, int] = {}
        """How many more transfers of a source that was held begin apart from each other."""

    def limit(self, total: int, per_source: Mapping[str, int], rates: Mapping[str, int]) -> None:
        """Change the limits; transfers under way go on, at the new bandwidth."""
        self._total = total
        self._allowances = {name: self._allowances.get(name) or Allowance(most) for name, most in per_source.items()}
        for name, most in per_source.items():
            self._allowances[name].limit(most)
        self._paces.limit(rates)
        self._next()

    def is_due_to_another(self, flight: Flight) -> bool:
        """Whether a flight that waits for room keeps its place from one that goes first.

        That is who has room already, since others wait for it, and a demand before a prefetch.
        """
        source = flight.ref.source
        first = self._waiting.first(lambda other: self._has_no_place(other, less=int(other == source)))
        if first is None:
            return False
        return first.demand and first.slot if flight.demand else first.demand or first.slot

    def allowance(self, source: str) -> Allowance:
        """How many connections a source is given now; one to those that were removed and have transfers left."""
        return self._allowances.get(source) or Allowance(1)

    @asynccontextmanager
    async def turn(self, flight: Flight) -> AsyncIterator[Turn]:
        """Wait for a place, and keep it for the block, with a part of the source's bandwidth."""
        turn = Turn(self, flight, self._paces.part(flight.ref.source))
        await turn.enter()
        try:
            yield turn
        except OriginUnavailable as cause:
            turn.heed(cause)
            raise
        else:
            turn.went_well()
        finally:
            turn.leave()

    async def enter(self, flight: Flight) -> None:
        """Wait for a place."""
        place = self._places[flight] = asyncio.get_running_loop().create_future()
        self._waiting.add(flight)
        self._next()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(flight.ref.source)
            else:
                self._waiting.remove(flight)
            raise
        finally:
            del self._places[flight]

    def leave(self, source: str) -> None:
        """Give a place of a source back."""
        self._running[source] -= 1
        self._next()

    def take_spare(self, source: str) -> bool:
        """Take a place that is free, if there is one: then nobody waits who could have it."""
        if sum(self._running.values()) >= self._total or self._has_no_place(source):
            return False
        self._running[source] = self._running.get(source, 0) + 1
        return True

    def wants(self, source: str) -> bool:
        """Whether a place of a source is wanted back: somebody waits who would get it, or there are too many."""
        if self._running[source] > self.allowance(source).now or sum(self._running.values()) > self._total:
            return True
        return self._waiting.first(lambda other: self._has_no_place(other, less=int(other == source))) is not None

    def hold(self, source: str, seconds: float) -> None:
        """The origin said for how long it wants no request: nobody begins a transfer from it before that."""
        if seconds:
            self._spaced[source] = self.allowance(source).now
            self._pause(source, min(seconds, LONGEST_HOLD))

    def _pause(self, source: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if until > self._held.get(source, 0.0):
            self._held[source] = until
            loop.call_at(until, self._go_on, source, until)

    def _go_on(self, source: str, until: float) -> None:
        if self._held.get(source) == until:
            del self._held[source]
            self._next()

    def _has_no_place(self, source: str, *, less: int = 0) -> bool:
        return source in self._held or self._running.get(source, 0) - less >= self.allowance(source).now

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
                self._space(flight.ref.source)

    def _space(self, source: str) -> None:
        """Not all who waited for the end of a hold begin in the same moment."""
        if self._spaced.get(source):
            self._spaced[source] -= 1
            self._pause(source, random.uniform(0, GAP))  # noqa: S311 - spreads load, keeps no secret


class Turn:
    """A transfer's place, for one connection to its source, and its part of the source's bandwidth."""

    def __init__(self, turns: Turns, flight: Flight, part: Part) -> None:
        self._turns = turns
        self._flight = flight
        self._source = flight.ref.source
        self._part = part
        self._has_place = False
        self._began = 0.0
        self._heeded: OriginUnavailable | None = None

    async def enter(self) -> None:
        """Wait for the place."""
        await self._turns.enter(self._flight)
        self._begin()

    def _begin(self) -> None:
        self._has_place, self._began = True, time.monotonic()

    def leave(self) -> None:
        """Give the place back, unless that was done."""
        if self._has_place:
            self._has_place = False
            self._turns.leave(self._source)

    async def take(self, count: int) -> None:
        """Wait until so many bytes more may pass."""
        await self._part.take(count)

    def is_paced(self) -> bool:
        """Whether the source's bandwidth holds the transfer up."""
        return self._part.waits

    def spare(self) -> Turn | None:
        """A place for a further connection of the same transfer, if there is one that nobody waits for."""
        if not self._turns.take_spare(self._source):
            return None
        other = Turn(self._turns, self._flight, self._part)
        other._begin()
        return other

    def is_wanted(self) -> bool:
        """Whether a further connection should end, for others' sake or the origin's."""
        return self._turns.wants(self._source)

    def went_well(self) -> None:
        """The origin gave what was asked for."""
        self._turns.allowance(self._source).went_well()

    def heed(self, cause: OriginUnavailable) -> None:
        """Be as modest towards the origin as it asks for, once for each failure."""
        if cause is self._heeded:
            return
        self._heeded, now = cause, time.monotonic()
        if isinstance(cause, Overloaded):
            self._turns.allowance(self._source).was_too_much(self._began, now)
        self._began = now
        self._turns.hold(self._source, cause.retry_after or 0.0)

    async def rest(self, seconds: float) -> None:
        """Pause. If it is a long one others have the place meanwhile, and it is waited for again."""
        if seconds <= KEPT:
            await asyncio.sleep(seconds)
            return
        self.leave()
        await asyncio.sleep(seconds)
        await self.enter()
