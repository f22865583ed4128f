"""What went wrong lately, for the health that the daemon reports."""

from __future__ import annotations

import time
from collections.abc import Callable

LASTS = 30.0
"""Seconds that a failure counts after it was last seen. A disk that fails now and then is not well in between."""


class Trouble:
    """The last failure of each area."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, str]] = {}

    def report(self, area: str, what: str) -> bool:
        """Something failed just now; whether that is news (what goes on failing need not be logged each time)."""
        news = self.now().get(area) != what
        self._seen[area] = (self._clock(), what)
        return news

    def over(self, *areas: str) -> None:
        """What failed has just gone well."""
        for area in areas:
            self._seen.pop(area, None)

    def now(self) -> dict[str, str]:
        """What is wrong, by area; empty when all is well."""
        since = self._clock() - LASTS
        self._seen = {area: seen for area, seen in self._seen.items() if seen[0] >= since}
        return {area: what for area, (_, what) in self._seen.items()}
