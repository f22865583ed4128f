"""The last minutes of a node, for small plots: a point every two seconds, read from counters that are kept anyway. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEP = 2.0
"""Seconds from one point to the next."""
KEPT = 150
"""Points: five minutes. One takes about 200 bytes and 0.2 ms."""
RECENT = 10.0
"""Seconds over which the present rate of a source is taken."""
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What has been counted up to a moment. `asked` are all shards that were asked for, `hits` those that were here."""

    at: float
    """Unix seconds."""
    asked: float
    hits: float
    waited: tuple[float, float]
    """Seconds that those who were answered have waited, and how many they are."""
    received: Mapping[str, float]
    """Bytes from the origin, by source."""
    failures: Mapping[str, float]
    """Transfers that failed, by source."""
    waiters: int
    """Requests that wait now."""
    regret: float | None


@dataclass(slots=True)
class History:
    """Moments, one after the other. What happened is the difference of two."""

    _moments: deque[Totals] = field(default_factory=lambda: deque(maxlen=KEPT + 1))

    def add(self, now: Totals) -> None:
        """A moment. A clock that was set back begins a new history."""
        if self._moments and now.at <= self._moments[-1].at:
            self._moments.clear()
        self._moments.append(now)

    def points(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Points later than that: the seconds that each stands for, what was asked for, hit and received in it; who waits."""
        return [_point(before, now) for before, now in itertools.pairwise(self._moments) if now.at > since]

    def rate(self, source: str) -> float:
        """Bytes per second that come from a source."""
        return self._over(RECENT, lambda moment: moment.received.get(source, 0.0), per_second=True)

    def failures(self, source: str) -> int:
        """Transfers from a source that failed in the last minute, tries included."""
        return round(self._over(MINUTE, lambda moment: moment.failures.get(source, 0.0)))

    def mean_wait(self) -> float | None:
        """Seconds that those who were answered in the last minute have waited on average; None when there were none."""
        count = self._over(MINUTE, lambda moment: moment.waited[1])
        return self._over(MINUTE, lambda moment: moment.waited[0]) / count if count else None

    def _over(self, seconds: float, value: Callable[[Totals], float], *, per_second: bool = False) -> float:
        """How much a count has grown in the last seconds."""
        if len(self._moments) < 2:
            return 0.0
        now = self._moments[-1]
        before = next((one for one in self._moments if one.at >= now.at - seconds), now)
        return (value(now) - value(before)) / (max(STEP, now.at - before.at) if per_second else 1.0)


def _point(before: Totals, now: Totals) -> dict[str, Any]:
    return {
        "at": now.at,
        "seconds": round(now.at - before.at, 2),
        "asked": round(now.asked - before.asked),
        "hits": round(now.hits - before.hits),
        "bytes": round(sum(now.received.values()) - sum(before.received.values())),
        "waiters": now.waiters,
        "regret": None if now.regret is None else round(now.regret, 4),
    }
