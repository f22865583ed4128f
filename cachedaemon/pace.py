"""Bandwidth: all transfers of a source together take no more than so many bytes per second, and share them alike.

The origin is slowed down by not reading on: its connection fills up and waits. Decisions are `Bucket`'s, which is pure;
`Pace` adds the clock and whoever waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Mapping

BURST = 0.25
"""Seconds of unused bandwidth that are kept: a timer that comes late loses none of it."""
_TICK = 0.001
"""Seconds by which a loop's timer may come early."""


class Bucket:
    """A token bucket of `rate` bytes per second, 0 for no limit, with a fair queue before it. It is told the time.

    A batch passes while nothing is owed, and what it takes beyond the level is owed by the next one: so batches may be
    larger than the bucket. Of those that wait it is the one whose transfer has had least, which is start-time fair queueing
    (Goyal, Vin and Cheng, SIGCOMM 1996): a transfer that comes later, or that was held up, does not catch up on the others.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = 0.0
        self._at = now
        self._virtual = 0.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, int, Callable[[], bool]]] = []

    def limit(self, rate: int, now: float) -> None:
        """Change the rate. What is owed takes no longer to pay than it would have at either rate."""
        self._fill(now)
        if rate < self._rate:
            self._level *= rate / self._rate
        self._rate = rate

    def ask(self, had: float, count: int, go: Callable[[], bool]) -> float:
        """Queue a batch of a transfer that `had` so much: `go` is called when it may pass, and says whether it still wants.

        Returns what the transfer has had with it.
        """
        start = max(had, self._virtual)
        heapq.heappush(self._queue, (start, next(self._order), count, go))
        return start + count

    def let(self, now: float) -> float | None:
        """Let pass what may; the seconds until more may, None when nothing waits."""
        self._fill(now)
        while self._queue:
            if self._level < 0:
                return -self._level / self._rate
            start, _, count, go = heapq.heappop(self._queue)
            if go():
                self._virtual = start
                self._level -= count if self._rate else 0
        return None

    def _fill(self, now: float) -> None:
        self._level = min(self._level + (now - self._at) * self._rate, self._rate * BURST)
        self._at = now


class Pace:
    """The bandwidth of one source."""

    def __init__(self, rate: int) -> None:
        self._bucket = Bucket(rate, time.monotonic())
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, rate: int) -> None:
        """Change it, bytes per second; 0: no limit. It holds for who waits already, too."""
        self._bucket.limit(rate, time.monotonic())
        if self._timer is not None:
            self._timer.cancel()
            self._let()

    def ask(self, had: float, count: int) -> tuple[float, asyncio.Future[None]]:
        """Queue `count` bytes more of a transfer that `had` so much: what it has had with them, and when they may pass."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go() -> bool:
            wanted = not place.done()
            if wanted:
                place.set_result(None)
            return wanted

        after = self._bucket.ask(had, count, go)
        if self._timer is None:
            self._let()
        return after, place

    def _let(self) -> None:
        seconds = self._bucket.let(time.monotonic())
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds + _TICK, self._let)


class Part:
    """One transfer's part of its source's bandwidth, which its streams share."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._had = 0.0
        self.waits = False
        """Whether the last bytes had to wait, so that it is the limit that holds the transfer up."""

    async def take(self, count: int) -> None:
        """Wait until so many bytes more may pass."""
        self._had, passed = self._pace.ask(self._had, count)
        self.waits = not passed.done()
        await passed


class Paces:
    """The paces of all sources, by name."""

    def __init__(self, rates: Mapping[str, int]) -> None:
        self._all: dict[str, Pace] = {}
        self.limit(rates)

    def limit(self, rates: Mapping[str, int]) -> None:
        """Take these bandwidths into force. Transfers of a source that is no more go on at theirs."""
        self._all = {name: self._all.get(name) or Pace(rate) for name, rate in rates.items()}
        for name, rate in rates.items():
            self._all[name].limit(rate)

    def part(self, source: str) -> Part:
        """For a transfer that begins; a source that was removed meanwhile has no limit."""
        return Part(self._all.get(source) or Pace(0))
