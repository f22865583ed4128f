"""Regret: how much more was transferred than any policy would have had to, for the same uses and cap. Pure.

For each plan that has ended: bytes that came while it ran, over the bytes that MIN (Belady 1966) would have brought for the
uses of all plans in that time, in the order in which they were told.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cachedaemon.model import Ref

MOST = 2_000_000
"""Uses that are kept at the most. A plan that lives through more of them ends uncounted."""


def least(uses: Sequence[Ref], cap: int, here: AbstractSet[Ref]) -> list[Ref]:
    """What MIN brings for these uses, with room for `cap` shards, of which `here` are there already.

    It takes long for many uses: in a thread. Of `here` only those count that are used; others make way at once.
    """
    again, first = _next_uses(uses)
    content: dict[Ref, float] = {ref: index for ref, index in first.items() if ref in here}
    heap = [(-due, ref) for ref, due in content.items()]
    heapq.heapify(heap)
    brought: list[Ref] = []
    for index, ref in enumerate(uses):
        if ref not in content:
            brought.append(ref)
            while len(content) >= cap and heap:
                due, victim = heapq.heappop(heap)
                if content.get(victim) == -due:
                    del content[victim]
        content[ref] = again[index]
        heapq.heappush(heap, (-again[index], ref))
    return brought


def _next_uses(uses: Sequence[Ref]) -> tuple[list[float], dict[Ref, int]]:
    """For each use the index of the same shard's next one; and of each shard the index of its first."""
    later: dict[Ref, int] = {}
    again = [math.inf] * len(uses)
    for index in range(len(uses) - 1, -1, -1):
        again[index] = later.get(uses[index], math.inf)
        later[uses[index]] = index
    return again, later


@dataclass(frozen=True, slots=True)
class Begin:
    """What there was when a plan began."""

    at: int
    """Its place in the log of uses."""
    received: float
    """Bytes that had come from its source."""
    here: AbstractSet[Ref]


@dataclass(slots=True)
class Sum:
    """Bytes of all plans of a source that have ended."""

    received: float = 0.0
    least: float = 0.0

    @property
    def ratio(self) -> float | None:
        """How many times the least came; None before a plan has ended that needed any."""
        return self.received / self.least if self.least else None


@dataclass(slots=True)
class Account:
    """The uses that plans told of, as long as a plan runs that saw them, and what came of the plans that have ended."""

    uses: list[Ref] = field(default_factory=list)
    dropped: int = 0
    """Uses before those, which no running plan saw."""
    begins: dict[str, Begin] = field(default_factory=dict)
    """How each plan that runs began."""
    sums: dict[str, Sum] = field(default_factory=dict)

    def now(self, received: float, here: AbstractSet[Ref]) -> Begin:
        """What there is for a plan that begins now; `here`, which nobody changes any more, are the shards of all sources."""
        return Begin(self.dropped + len(self.uses), received, here)

    def knows(self, begin: Begin) -> bool:
        """Whether all uses since then are kept: another plan may count from there too."""
        return begin.at >= self.dropped

    def use(self, refs: Sequence[Ref]) -> None:
        """A plan has moved past these."""
        self.uses.extend(refs)
        if len(self.uses) > MOST:
            first = self.dropped + len(self.uses) - MOST
            self.begins = {plan: begin for plan, begin in self.begins.items() if begin.at >= first}
            self._drop_unseen()

    def end(self, plan: str) -> tuple[Begin, list[Ref]] | None:
        """A plan has ended: how it began, and the uses of all sources since."""
        begin = self.begins.pop(plan, None)
        if begin is None:
            return None
        seen = self.uses[begin.at - self.dropped :]
        self._drop_unseen()
        return begin, seen

    def _drop_unseen(self) -> None:
        first = min((begin.at for begin in self.begins.values()), default=self.dropped + len(self.uses))
        del self.uses[: first - self.dropped]
        self.dropped = first

    def add(self, source: str, received: float, fewest: float) -> None:
        """What came, and the least that could have."""
        total = self.sums.setdefault(source, Sum())
        total.received += received
        total.least += fewest

    def ratio(self, source: str | None = None) -> float | None:
        """Of one source, or of all."""
        found = [one for name, one in self.sums.items() if source in (None, name)]
        return Sum(sum(one.received for one in found), sum(one.least for one in found)).ratio
