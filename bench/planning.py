"""What planning costs: 1,000 plans of 100,000 keys in all, beside 10,000 or 100,000 shards that are here.

    python bench/planning.py [--residents 10000 100000] [--plans 1000] [--seconds 10]

The plans, their files, the index and what looks ahead are the daemon's own, on uvloop; transfers only take time. How long the
loop is held is told by a clock that ticks each millisecond: by the processor time of this program between two ticks,
which other programs do not lengthen. It counts a thread that keeps the interpreter's lock from the loop, too. A decision is a
shard that was begun, or a step of a plan.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from side_by_side import folder, main, table

from cachedaemon import garbage
from cachedaemon.ahead import Ahead
from cachedaemon.cache import Cache
from cachedaemon.course import Course
from cachedaemon.entries import Entry, Evict
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import BLOCK, Caps, Disk, Need, Ref, Stamp
from cachedaemon.planfiles import PlanFiles
from cachedaemon.plans import Plan, Plans
from cachedaemon.regrets import Regrets
from cachedaemon.store import Store
from cachedaemon.store.layout import Layout, Modes

TICK = 0.001
FETCH = 0.05
"""Seconds that a transfer takes."""
KEYS = 100_000
WIDTH = 16
"""Transfers at once."""
ONE = Need(BLOCK, 1)
_ROOMY = Disk(1 << 50, 1 << 50, 0, 0)


class _Nothing:
    """No part of the file system is left to others."""

    def of(self, total_bytes: int) -> int:  # noqa: ARG002 - the protocol's
        return 0

    def of_inodes(self, total_inodes: int, total_bytes: int) -> int:  # noqa: ARG002
        return 0


class Transfers:
    """Instead of the cache: transfers that take their time and nothing else."""

    def __init__(self, ledger: Ledger) -> None:
        """Into this index."""
        self.ledger = ledger
        self.sources = SimpleNamespace(all=lambda: [SimpleNamespace(name="s")])
        self.begun = 0

    def add(self, ref: Ref) -> Entry:
        """A shard that is here."""
        return Entry(ref, ref.key, Stamp(0, 0, BLOCK, 0), BLOCK, ONE.bytes, ONE.inodes, time.monotonic())

    async def bring(self, source: str, key: str, job: str, *, ahead: bool = False) -> bool:
        """As `Cache.bring`."""
        self.begun += 1
        flight, _ = self.ledger.join(Ref(source, key), job=job, ahead=ahead)
        verdict = self.ledger.reserve(flight, ONE, _ROOMY)
        if isinstance(verdict, Evict):
            for victim in verdict.victims:
                self.ledger.trashed(victim)
                self.ledger.deleted(Need(victim.blocks, victim.inodes))
            self.ledger.reserve(flight, ONE, _ROOMY)
        try:
            await asyncio.sleep(FETCH)
        finally:
            self.ledger.leave(flight)
            self.ledger.land(flight)
        if not flight.slot:
            return False
        self.ledger.commit(flight, self.add(flight.ref))
        return True


class Held:
    """The longest time that the loop was held, in each part of the run."""

    def __init__(self) -> None:
        """Not held yet."""
        self.worst = self.late = self.own = 0.0

    async def tick(self) -> None:
        """Look at the clock again and again."""
        while True:
            used, own, seen = time.process_time(), time.thread_time(), time.perf_counter()
            await asyncio.sleep(TICK)
            self.own = max(self.own, time.thread_time() - own)
            self.worst = max(self.worst, time.process_time() - used)
            self.late = max(self.late, time.perf_counter() - seen - TICK)


class Node:
    """Plans at work."""

    def __init__(self, home: Path, residents: int) -> None:
        """So many shards are here, and there is room for no more."""
        self.plans, self.residents = Plans(), residents
        self.ledger = Ledger(Caps(residents, 0, _Nothing()), self.plans.next_use)
        self.store = Store(Layout(home), Modes.for_group(None))
        self.files = PlanFiles(self.plans, self.store, self.ledger, Regrets(self.ledger, Metrics("bench")))
        self.cache = Transfers(self.ledger)
        self.ahead = Ahead(cast("Cache", self.cache), self.plans, self.files, lambda: WIDTH)
        self.steps = 0
        for number in range(residents):
            self.ledger.add(self.cache.add(Ref("s", f"images-{number}.zip")))

    async def put(self, name: str, keys: list[str]) -> None:
        """Take a plan into force, as the API does."""
        course = await asyncio.to_thread(Course, keys)
        await self.files.put(Plan(name, "s", course, 1, time.monotonic()))

    def step(self, plan: Plan) -> None:
        """Its consumer opened the next shard."""
        self.steps += 1
        self.files.move(plan.id, plan.position + 1)

    async def go_on(self, seconds: float) -> None:
        """Each plan makes a step a second."""
        loop, all_of_them = asyncio.get_running_loop(), list(self.plans)
        until, turn = loop.time() + seconds, 0
        while loop.time() < until:
            for _ in range(max(1, len(all_of_them) // 100)):
                self.step(all_of_them[turn % len(all_of_them)])
                turn += 1
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)

    async def end(self, name: str) -> None:
        """End a plan."""
        await self.files.end(name)

    async def storm(self) -> None:
        """All consumers open a shard at the same time; their calls come one after the other."""
        for _ in range(10):
            for plan in self.plans:
                self.step(plan)
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)


@asynccontextmanager
async def beside(*tasks: Awaitable[None]) -> Any:
    """What goes on meanwhile."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Parts:
    """A row for each part of a run."""

    def __init__(self, node: Node) -> None:
        """Of this node, on whose loop the clock ticks."""
        self.node, self.held = node, Held()
        self.rows: list[list[str]] = []

    async def part(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """What it costs, beside what goes on."""
        node, self.held.worst, self.held.late, self.held.own = self.node, 0.0, 0.0, 0.0
        node.steps, node.cache.begun = 0, 0
        used, began = time.process_time(), time.perf_counter()
        await work()
        await asyncio.sleep(0.2)
        used, took = time.process_time() - used, time.perf_counter() - began
        decisions = node.steps + node.cache.begun
        times = [f"{1e3 * seconds:.1f}" for seconds in (self.held.own, self.held.worst, self.held.late)]
        each = f"{1e3 * used / decisions:.2f}" if decisions else ""
        counts = [f"{node.steps:,}", f"{node.cache.begun:,}", f"{took:.1f}"]
        self.rows.append([f"{node.residents:,} here, {what}", *times, each, *counts])


async def nothing() -> None:
    """The machine by itself."""
    await asyncio.sleep(1)


async def count() -> None:
    """A thread that keeps the interpreter busy: what any thread costs the loop."""
    until = time.monotonic() + 2

    def busy() -> None:
        while time.monotonic() < until:
            pass

    await asyncio.to_thread(busy)


async def measure(home: Path, residents: int, number: int, seconds: float) -> list[list[str]]:
    """All parts, beside so many residents."""
    node, chance = Node(home, residents), random.Random(1)
    gc.freeze()  # as the daemon does with what it finds at its start
    garbage.spare_the_loop()
    parts = Parts(node)
    keys = [f"images-{number}.zip" for number in range(2 * residents)]
    orders = [chance.sample(keys, KEYS // number) for _ in range(number)]
    large = chance.choices(keys, k=KEYS)

    async def put_all() -> None:
        for name, order in enumerate(orders):
            await node.put(f"p{name}", order)

    async def end_some() -> None:
        for name in range(min(20, number)):
            await node.end(f"p{name}")

    def idle_all() -> Awaitable[None]:
        for plan in node.plans:
            plan.steps[-1] = (plan.steps[-1][0] - 1e5, plan.position)
        node.files.note_idle()
        return nothing()

    async with beside(parts.held.tick()):
        await parts.part("nothing", nothing)
        await parts.part("a thread that counts", count)
        async with beside(node.ahead.run()):
            await parts.part(f"{number} plans come", put_all)
            await parts.part("they go on", lambda: node.go_on(seconds))
            await parts.part("all step at once, 10 times", node.storm)
            await parts.part("a plan of 100,000 keys more", lambda: node.put("large", large))
            await parts.part("all go on", lambda: node.go_on(seconds))
            await parts.part("it is replaced", lambda: node.put("large", large))
            await parts.part("it ends", lambda: node.end("large"))
            await parts.part("all are idle", idle_all)
            await parts.part("20 of them end", end_some)
    return parts.rows


def run() -> None:
    """Each number of residents in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--residents", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    rows: list[list[str]] = []
    for residents in chosen.residents:
        with folder("/tmp") as home:
            (home / "plans").mkdir()
            rows += uvloop.run(measure(home, residents, chosen.plans, chosen.seconds))
    table(["", "loop ms", "held ms", "late ms", "ms/decision", "steps", "begun", "s"], rows)
    print(f"  load average {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main(run)
