"""Figure 4: hits of eight jobs that share one cache, each in an order of its own.

    python bench/jobs.py [--shards 1000] [--epochs 1] [--step 0.08] [--jobs 8] [--parts 0.1 0.2 0.5] [--ranks]

Each job opens a shard, works on it for a step, and opens the next; its plan tells its order. The optimum is reckoned
afterwards, for the very uses that happened, merged by their times: MIN (Belady 1966), which never evicts what is used
soonest again. Two of them: one that may also evict what a job has open at that moment, which no cache can, and one that
may not; the latter is what can be reached. Hits are uses less transfers, for all alike: a shard that was brought ahead
of its use saves waiting, not a transfer. With `policy = "lru"` in the same run, and LRU reckoned for the same uses.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from side_by_side import main, table, verdict
from trainers import Link, Ran, Side, epochs, play

SIZE = 20_000
Merged = Sequence[tuple[int, str]]
"""Which job used which shard, in the order of time."""


def merged(ran: Ran) -> Merged:
    """The uses of all jobs in the order in which they were asked for."""
    uses = sorted((use.at, job, use.key) for job, jobs in enumerate(ran.jobs) for use in jobs)
    return [(job, key) for _, job, key in uses]


def fewest(uses: Merged, cap: int, *, holding: bool) -> int:
    """Transfers of MIN; `holding`: what a job used last stays until it uses the next, as an open shard does.

    The farthest use among what may go is the best victim in both cases: whatever else went could change places with it.
    """
    again = _next_uses(uses)
    held: dict[int, str] = {}
    content: dict[str, float] = {}
    heap: list[tuple[float, str]] = []
    transfers = 0
    for (job, key), later in zip(uses, again, strict=True):
        held.pop(job, None)
        if key not in content:
            transfers += 1
            if len(content) >= cap:
                _evict(content, heap, set(held.values()) if holding else set())
        held[job] = key
        content[key] = later
        heapq.heappush(heap, (-later, key))
    return transfers


def _evict(content: dict[str, float], heap: list[tuple[float, str]], held: set[str]) -> None:
    kept = []
    while heap:
        place = heapq.heappop(heap)
        due, key = place
        if content.get(key) != -due:
            continue
        if key not in held:
            del content[key]
            break
        kept.append(place)
    for place in kept:
        heapq.heappush(heap, place)


def _next_uses(uses: Merged) -> list[float]:
    later: dict[str, int] = {}
    again = [math.inf] * len(uses)
    for index in range(len(uses) - 1, -1, -1):
        key = uses[index][1]
        again[index] = later.get(key, math.inf)
        later[key] = index
    return again


def by_last_use(uses: Merged, cap: int) -> int:
    """Transfers of LRU."""
    content: OrderedDict[str, None] = OrderedDict()
    transfers = 0
    for _, key in uses:
        if key not in content:
            transfers += 1
            if len(content) >= cap:
                content.popitem(last=False)
        content[key] = None
        content.move_to_end(key)
    return transfers


def figure_4(c: float, shards: int, orders: list[list[str]], step: float, lag: float) -> None:
    """One cap: both policies at once, each for its own jobs."""
    cap = int(c * shards)
    sides = [Side(p, shards, Link(SIZE, latency=step / 2), orders, step, cap, p, lag=lag) for p in ("auto", "lru")]
    found = [_reckoned(ran, cap) for ran in play(sides)]
    rows = [[f"c = {c}, {side.name}", *one.cells()] for side, one in zip(sides, found, strict=True)]
    table([f"{len(orders)} jobs, {shards:,} shards", *Reckoned.HEAD], rows)
    what = f"c = {c}, hits / hits of the optimum that leaves open shards alone"
    verdict(4, what, found[0].hits / found[0].possible, at_least=0.95)


@dataclass(frozen=True)
class Reckoned:
    """Hits of one side, and what others would have had for the same uses."""

    HEAD = ("hits", "possible", "MIN", "LRU reckoned", "/ possible", "/ MIN", "local", "CPU s")
    ran: Ran
    hits: int
    possible: int
    best: int
    last: int

    def cells(self) -> list[str]:
        """One row of the table, without its name."""
        counts = [f"{count:,}" for count in (self.hits, self.possible, self.best, self.last)]
        ratios = [f"{self.hits / self.possible:.3f}", f"{self.hits / self.best:.3f}"]
        return [*counts, *ratios, f"{self.ran.hits:.0%}", f"{self.ran.busy:.0f}"]


def _reckoned(ran: Ran, cap: int) -> Reckoned:
    uses = merged(ran)
    transfers = ran.transfers, fewest(uses, cap, holding=True), fewest(uses, cap, holding=False), by_last_use(uses, cap)
    return Reckoned(ran, *(len(uses) - count for count in transfers))


def run() -> None:
    """One cap after the other."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=1000)
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--step", type=float, default=0.08, help="seconds that a job works on a shard")
    options.add_argument("--jobs", type=int, default=8)
    options.add_argument("--parts", type=float, nargs="+", default=(0.1, 0.2, 0.5), help="c: the part that fits")
    options.add_argument("--ranks", action="store_true", help="all in one order, each a step behind the one before")
    chosen = options.parse_args()
    seeds = [0] * chosen.jobs if chosen.ranks else range(chosen.jobs)
    orders = [epochs(chosen.shards, chosen.epochs, seed) for seed in seeds]
    lag = chosen.step if chosen.ranks else chosen.step / chosen.jobs
    for c in chosen.parts:
        print(f"load average {os.getloadavg()[0]:.1f} before")
        figure_4(c, chosen.shards, orders, chosen.step, lag)
    print(f"load average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main(run)
