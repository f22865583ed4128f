"""Which shard goes first. Pure: no clock, no disk, no await.

By the farthest next use over all running plans (MIN: Belady 1966), where there are any; what no plan wants any more goes
before, by last use (LRU). A heap whose places may be out of date: one that comes up is looked at again. Whatever brings a
shard's turn nearer - a next use that is later than before, or none any more - has to be told (`moved`); what puts it off, a
use or a new plan, need not be.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

SLACK = 64
"""Places that are out of date which the heap keeps at the least."""


class Evictable(Protocol):
    """What the order needs to know of a shard."""

    used: float
    """Time of the last use, in seconds of the daemon's own clock; never goes back."""
    ticket: int
    """Its place in the heap; negative while the shard is not in the order."""


T = TypeVar("T", bound=Evictable)
Rank = tuple[float, float]


class Order(Generic[T]):
    """Shards in the order in which they go. Not thread-safe: the ledger owns it. `next_use` is a time, infinite for none."""

    def __init__(self, next_use: Callable[[T], float] = lambda _: math.inf) -> None:
        self._next_use = next_use
        self._heap: list[tuple[Rank, int, T]] = []
        self._tickets = 0
        self._live = 0

    def _rank(self, one: T) -> Rank:
        return -self._next_use(one), one.used

    def add(self, one: T) -> None:
        """Take a shard into the order."""
        self._live += 1
        self._place(one)

    def _place(self, one: T) -> None:
        self._tickets += 1
        one.ticket = self._tickets
        heapq.heappush(self._heap, (self._rank(one), one.ticket, one))
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [place for place in self._heap if place[2].ticket == place[1]]
            heapq.heapify(self._heap)

    def moved(self, one: T) -> None:
        """Its next use is another one than before."""
        if one.ticket >= 0:
            self._place(one)

    def discard(self, one: T) -> None:
        """Take a shard out; its place in the heap is dropped when it comes up, or when most places are such."""
        self._live -= one.ticket >= 0
        one.ticket = -1

    def first_to_go(self) -> Iterator[T]:
        """All shards, the one that goes first first. Shards may be discarded meanwhile."""
        passed: list[tuple[Rank, int, T]] = []
        try:
            while self._heap:
                rank, ticket, one = heapq.heappop(self._heap)
                if one.ticket != ticket:
                    continue
                if (now := self._rank(one)) > rank:
                    heapq.heappush(self._heap, (now, ticket, one))
                    continue
                passed.append((rank, ticket, one))
                yield one
        finally:
            for place in passed:
                if place[2].ticket == place[1]:
                    heapq.heappush(self._heap, place)
