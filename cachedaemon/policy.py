"""Which shard goes first. Pure: no clock, no disk, no await.

By the farthest next use over all running plans (MIN: Belady 1966), where there are any; what no plan wants any more goes
before, by last use (LRU). A place may be out of date: a shard that comes up is looked at again. Whatever brings a shard's
turn nearer - a next use that is later than before, or none any more - has to be told (`moved`); what puts it off, a use or a
new plan, need not be at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedKeyList

from cachedaemon.entries import Place

FRONT: Place = (-math.inf, -math.inf, 0)
"""Before all others."""
PATIENCE = 100
"""Places that are put right while one victim is looked for; where more are out of date, shards go as they stand."""


class Evictable(Protocol):
    """What the order needs to know of a shard."""

    used: float
    """Time of the last use, in seconds of the daemon's own clock; never goes back."""
    place: Place | None
    """Where it stands; None while the shard is not in the order."""


T = TypeVar("T", bound=Evictable)


class Order(Generic[T]):
    """Shards in the order in which they go. Not thread-safe: the ledger owns it. `next_use` is a time, infinite for none."""

    def __init__(self, next_use: Callable[[T], float] = lambda _: math.inf) -> None:
        self._next_use = next_use
        self._sorted = SortedKeyList(key=attrgetter("place"))
        self._arrivals = 0

    def add(self, one: T) -> None:
        """Take a shard into the order."""
        self._arrivals += 1
        one.place = self._place(one, self._arrivals)
        self._sorted.add(one)

    def _place(self, one: T, arrival: int) -> Place:
        return -self._next_use(one), one.used, arrival

    def moved(self, one: T) -> None:
        """Its last or next use is another one than before."""
        if one.place is not None and (place := self._place(one, one.place[2])) != one.place:
            self._sorted.remove(one)
            one.place = place
            self._sorted.add(one)

    def discard(self, one: T) -> None:
        """Take a shard out."""
        if one.place is not None:
            self._sorted.remove(one)
            one.place = None

    def first_to_go(self) -> Iterator[T]:
        """All shards, the one that goes first first. Shards may be discarded meanwhile."""
        last, patience = FRONT, PATIENCE
        while (one := next(self._sorted.irange_key(last, inclusive=(False, True)), None)) is not None:
            before = one.place
            if patience:
                self.moved(one)
            if one.place <= before:
                last = max(last, one.place)  # one that stands further back now is met this once
                yield one
            else:
                patience -= 1
