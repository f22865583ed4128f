"""Classes in proportion: a sequence in which no class is ever a whole item ahead of its share, or behind it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def interleaved(counts: Sequence[int]) -> list[int]:
    """Class numbers, class c `counts[c]` times, spread as evenly as can be.

    In the first m items, each class has come its share of m, give or take less than 1; so in any run of items, less than
    2. This is Tijdeman's answer to the chairman assignment problem (Discrete Mathematics 32, 1980): each next item has a
    first and a last place, and of those that may come, the one whose last place is nearest does. About 2 us an item.
    """
    total = sum(counts)
    slack = max(2, 2 * sum(count > 0 for count in counts) - 2)
    coming = [(_first(0, count, total, slack), number) for number, count in enumerate(counts) if count]
    heapify(coming)
    due: list[tuple[int, int]] = []
    seen = [0] * len(counts)
    pattern = []
    for place in range(1, total + 1):
        while coming and coming[0][0] <= place:
            _, number = heappop(coming)
            heappush(due, (_last(seen[number], counts[number], total, slack), number))
        _, number = heappop(due)
        pattern.append(number)
        seen[number] += 1
        heappush(coming, (_first(seen[number], counts[number], total, slack), number))
    return pattern


def _first(seen: int, count: int, total: int, slack: int) -> int:
    """The first place (from 1) at which item number `seen` (from 0) is not too early."""
    return -(-(seen * slack + 1) * total // (slack * count))


def _last(seen: int, count: int, total: int, slack: int) -> int:
    """The last place at which it is not too late."""
    return ((seen + 1) * slack - 1) * total // (slack * count)
