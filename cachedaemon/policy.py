"""Which shard goes first. Pure: no clock, no disk, no await.

LRU by last use, kept in a heap whose keys are lower bounds: a use only raises an entry's `used`, so the heap is
corrected when an entry comes up, and a touch costs nothing here. Ties go in the order of adding.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

SLACK = 64
"""Places of shards that have left which the heap keeps at the least."""


class Evictable(Protocol):
    """What the order needs to know of a shard."""

    used: float
    """Time of the last use, in seconds of the daemon's own clock; never goes back."""
    ticket: int
    """Place among equals; negative while the shard is not in the order."""


T = TypeVar("T", bound=Evictable)


class Recency(Generic[T]):
    """Shards in the order of their last use. Not thread-safe: the ledger owns it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._tickets = 0
        self._live = 0

    def add(self, one: T) -> None:
        """Take a shard into the order."""
        self._tickets += 1
        self._live += 1
        one.ticket = self._tickets
        heapq.heappush(self._heap, (one.used, one.ticket, one))
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [place for place in self._heap if place[2].ticket == place[1]]
            heapq.heapify(self._heap)

    def discard(self, one: T) -> None:
        """Take a shard out; its place in the heap is dropped when it comes up, or when most places are such."""
        self._live -= one.ticket >= 0
        one.ticket = -1

    def oldest_first(self) -> Iterator[T]:
        """All shards, the one that was not used for the longest time first. Shards may be discarded meanwhile."""
        passed: list[tuple[float, int, T]] = []
        try:
            while self._heap:
                used, ticket, one = heapq.heappop(self._heap)
                if one.ticket != ticket:
                    continue
                if one.used > used:
                    heapq.heappush(self._heap, (one.used, ticket, one))
                    continue
                passed.append((used, ticket, one))
                yield one
        finally:
            for place in passed:
                if place[2].ticket == place[1]:
                    heapq.heappush(self._heap, place)
