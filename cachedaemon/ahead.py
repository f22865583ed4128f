"""Fetching ahead for the plans that run: looks what is wanted next, has it brought, and ends what is wanted no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable

from cachedaemon.cache import Cache
from cachedaemon.errors import CacheDaemonError
from cachedaemon.foresight import Scene, Wanted, choose
from cachedaemon.model import Ref
from cachedaemon.planfiles import PlanFiles
from cachedaemon.plans import Plan, Plans

log = logging.getLogger(__name__)

LOOK = 0.1
"""Seconds between two looks at the least."""
OFTEN = 0.5
"""Seconds between two looks at the most, while plans run: shards come and go for others' sake too."""
OF_THE_LOOP = 10
"""A look that takes long comes so many times more seldom."""
SMALL = 2000
"""Plans times shards from which on the choice is made in a thread: it reads the plans, which may move meanwhile."""
REMEMBERED = 0.2
"""Weight of the latest transfer in the measured time of one."""
PAUSE = 5.0
"""Seconds until a shard that could not be had is tried ahead again; whoever needs it asks for it meanwhile."""


class Ahead:
    """The driver. `width` is how many transfers may be under way at once, over all sources."""

    def __init__(self, cache: Cache, plans: Plans, files: PlanFiles, width: Callable[[], int]) -> None:
        self._cache = cache
        self._plans = plans
        self._files = files
        self._width = width
        self._tasks: dict[Ref, asyncio.Task[None]] = {}
        self._for: dict[Ref, Plan] = {}
        self._not_before: dict[Ref, float] = {}
        self.fetch = 1.0
        """Seconds that a transfer takes, measured."""

    async def run(self) -> None:
        """Look again and again, for ever."""
        try:
            while True:
                await self._stirred()
                began = time.monotonic()
                await self._files.settle()
                await self._look()
                await asyncio.sleep(max(LOOK, OF_THE_LOOP * (time.monotonic() - began)))
        finally:
            for task in self._tasks.values():
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks.values())

    async def _stirred(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OFTEN if len(self._plans) else None):
                await self._files.stirred.wait()
        self._files.stirred.clear()

    async def _look(self) -> None:
        """Begin what is wanted next, and end what nobody wants any more."""
        for ref, task in self._tasks.items():
            if self._plans.next_use(ref) == math.inf:
                task.cancel()
        known = {source.name for source in self._cache.sources.all()}
        running = [plan for plan in self._plans.running() if plan.position < plan.keys and plan.source in known]
        if not running:
            return
        scene = self._scene()
        if len(running) * len(scene.here) > SMALL:
            wanted = await asyncio.to_thread(choose, running, scene, self._width(), self._plans.wanting)
        else:
            wanted = choose(running, scene, self._width(), self._plans.wanting)
        for one in wanted:
            if len(self._tasks) >= self._width():
                return
            if one.ref not in self._tasks and self._may(one, scene):
                self._begin(one)
                scene.unread[one.plan.tag] = scene.unread.get(one.plan.tag, 0) + 1

    def _scene(self) -> Scene:
        ledger = self._cache.ledger
        here = {entry.ref for entry in ledger.entries()} | ledger.flights.keys()
        unread = Counter(entry.unread_of for entry in ledger.entries() if entry.unread_of in ledger.protected)
        unread.update(plan.tag for plan in self._for.values())
        return Scene(here, self._cache.ledger.fits(), self.fetch, {str(tag): count for tag, count in unread.items()})

    def _may(self, one: Wanted, scene: Scene) -> bool:
        """Whether it is not one that failed just now, and its user has not more unread shards than a fair part."""
        if self._not_before.get(one.ref, 0.0) > time.monotonic():
            return False
        users = {plan.user for plan in self._plans.running()}
        if len(users) < 2:
            return True
        unread = sum(scene.unread.get(plan.tag, 0) for plan in self._plans if plan.user == one.plan.user)
        return unread < scene.cap // len(users)

    def _begin(self, one: Wanted) -> None:
        task = self._tasks[one.ref] = asyncio.create_task(self._bring(one), name=f"ahead {one.ref}")
        self._for[one.ref] = one.plan
        task.add_done_callback(lambda _: self._ended(one.ref))

    def _ended(self, ref: Ref) -> None:
        del self._tasks[ref], self._for[ref]
        self._files.stirred.set()

    async def _bring(self, one: Wanted) -> None:
        began = time.monotonic()
        try:
            here = await self._cache.bring(one.ref.source, one.ref.key, one.plan.tag, ahead=True)
        except CacheDaemonError as cause:
            log.debug("%s is not fetched ahead: %s", one.ref, cause)
            self._put_off(one.ref, PAUSE)
            return
        if here:
            self.fetch += REMEMBERED * (time.monotonic() - began - self.fetch)
        else:
            self._put_off(one.ref, LOOK)

    def _put_off(self, ref: Ref, seconds: float) -> None:
        now = time.monotonic()
        self._not_before = {other: until for other, until in self._not_before.items() if until > now}
        self._not_before[ref] = now + seconds
