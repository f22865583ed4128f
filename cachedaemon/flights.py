"""Flights under way: one task a shard, however many wait for it, and what becomes of it when they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from cachedaemon.entries import Flight
from cachedaemon.errors import Stopping
from cachedaemon.grace import Grace, Promise
from cachedaemon.ledger import Ledger
from cachedaemon.logs import about
from cachedaemon.model import Ref


class Ended(Exception):
    """A flight was ended before it brought anything: whoever waits asks again, and hears what is true then."""


Landed = asyncio.Task[list[Promise]]
"""A flight under way; it ends with a promise for each of its waiters."""


class Flights:
    """The tasks of all flights in the ledger."""

    def __init__(self, ledger: Ledger, grace: Grace) -> None:
        self._ledger = ledger
        self._grace = grace
        self._tasks: dict[Flight, Landed] = {}
        self._stopping = False

    def join(
        self,
        ref: Ref,
        fly: Callable[[Flight], Coroutine[None, None, list[Promise]]],
        *,
        job: str | None = None,
        ahead: bool = False,
    ) -> tuple[Flight, Landed, bool]:
        """The flight of a shard, with this waiter counted, and whether it is new: then it begins to `fly`."""
        if self._stopping:
            raise Stopping("the daemon is stopping")
        flight, new = self._ledger.join(ref, job=job, ahead=ahead)
        if new:
            with about(source=ref.source, key=ref.key, flight=flight.number):
                task = self._tasks[flight] = asyncio.create_task(fly(flight), name=f"fetch {ref}")
            task.add_done_callback(lambda done: self._landed(flight, done))
        return flight, self._tasks[flight], new

    def leave(self, flight: Flight, task: Landed, promise: Promise | None) -> None:
        """A waiter goes; with the last one the flight ends. A promise that it did not take ends too."""
        last = self._ledger.leave(flight)
        if promise is None and task.done() and not task.cancelled() and not task.exception() and task.result():
            self._grace.end(task.result().pop())
        if last:
            _end(flight, task)

    def _landed(self, flight: Flight, task: Landed) -> None:
        """After the end of a flight: with no waiter left nobody else looks at its failure, or takes its promises."""
        del self._tasks[flight]
        self._ledger.land(flight)
        if not task.cancelled() and task.exception() is None:
            for _ in range(len(task.result()) - flight.waiters):
                self._grace.end(task.result().pop())

    def dying(self, ref: Ref) -> Landed | None:
        """The flight of a shard that was ended and has not come to its end yet: nobody can join it."""
        flight = self._ledger.flights.get(ref)
        return self._tasks[flight] if flight is not None and flight.ended else None

    def tasks(self, source: str | None = None) -> list[Landed]:
        """All that are under way, or those of one source."""
        return [task for flight, task in self._tasks.items() if source in (None, flight.ref.source)]

    def end_all(self, source: str | None = None) -> None:
        """End all flights, or those of one source, each to its last disk call."""
        for flight, task in self._tasks.items():
            if source in (None, flight.ref.source):
                _end(flight, task)

    def stop(self) -> None:
        """End all, for good."""
        self._stopping = True
        self.end_all()

    async def without(self, source: str) -> None:
        """Until none of a source's flights that are under way now is left."""
        if under_way := self.tasks(source):
            await asyncio.wait(under_way)


def _end(flight: Flight, task: Landed) -> None:
    """End a flight before its time; nobody can join it any more."""
    if not flight.ended:
        flight.ended = True
        task.cancel()


async def end_of(task: Landed) -> list[Promise]:
    """What a flight came to, for one of its waiters, whose own cancellation leaves it alone; `Ended` when it was ended.

    Told here and not by the flight, which may be ended before it has begun.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise Ended
    return task.result()
