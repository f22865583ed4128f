"""Fetching ahead for the plans that run: looks what is wanted next, has it brought, and ends what is wanted no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable

from cachedaemon.cache import Cache
from cachedaemon.errors import CacheDaemonError
from cachedaemon.foresight import Scene, Wanted, choose
from cachedaemon.model import Ref
from cachedaemon.planfiles import PlanFiles
from cachedaemon.plans import Plan, Plans
from cachedaemon.shares import beyond

log = logging.getLogger(__name__)

LOOK = 0.1
"""Seconds between two looks at the least."""
OFTEN = 0.5
"""Seconds between two looks at the most, while plans run: shards come and go for others' sake too."""
OF_THE_LOOP = 10
"""A look that takes long comes so many times more seldom."""
SPARE = 2
"""Transfers that a look chooses, for each that may be under way: when one ends, the next begins without another look."""
SMALL, SHORT = 2000, 10_000
"""Plans times shards, and uses to come, from which on the choice is made in a thread: it reads the plans, which may move meanwhile."""
REMEMBERED = 0.2
"""Weight of the latest transfer in the measured time of one."""
CROWDED = 2.0
"""Seconds until an origin is asked again, at the most, for a shard that found no room when it was asked."""
PAUSE, LONGEST, KEPT = 5.0, 600.0, 10
"""Seconds until a shard that could not be had is tried ahead again; whoever needs it asks for it meanwhile.

One that will hardly be had next time either (it is missing, or refused) is tried half as often after each failure, which is
known for so many pauses.
"""


class Ahead:
    """The driver. `width` is how many transfers may be under way at once, over all sources."""

    def __init__(self, cache: Cache, plans: Plans, files: PlanFiles, width: Callable[[], int]) -> None:
        self._cache = cache
        self._plans = plans
        self._files = files
        self._width = width
        self._under_way: dict[Ref, tuple[asyncio.Task[None], Plan]] = {}
        """What is being brought, and for which plan."""
        self._chosen: deque[Wanted] = deque()
        """What the last look chose and has not begun yet, the soonest needed first."""
        self._put_off: dict[Ref, tuple[float, float]] = {}
        """Of shards that could not be had, until when they are left alone, and how long that pause is."""
        self.fetch = 1.0
        """Seconds that a transfer takes, measured."""

    async def run(self) -> None:
        """Look again and again, for ever."""
        try:
            while True:
                await self._stirred()
                await self._files.settle()
                began = time.monotonic()
                await self._look()
                await self._rest(max(LOOK, OF_THE_LOOP * (time.monotonic() - began)))
        finally:
            self._chosen.clear()
            tasks = [task for task, _ in self._under_way.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _stirred(self) -> None:
        """Until plans came, went or moved, or a while later: a transfer that has come whole makes way for the next one."""
        busy = self._under_way or not self._files.settled
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK if busy else OFTEN if len(self._plans) else None):
                await self._files.stirred.wait()
        self._files.stirred.clear()

    async def _rest(self, seconds: float) -> None:
        """Meanwhile the order of eviction is kept up to date, or a victim would be looked for among many that have moved."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await self._files.settle()
            await asyncio.sleep(min(LOOK, left))

    async def _look(self) -> None:
        """Begin what is wanted next, and end what nobody wants any more."""
        for ref, (task, _) in self._under_way.items():
            if self._plans.next_use(ref) == math.inf:
                task.cancel()
        self._chosen.clear()
        known = {source.name for source in self._cache.sources.all()}
        running = [plan for plan in self._plans.running() if plan.position < plan.keys and plan.source in known]
        if not running:
            return
        for entry in beyond(running, self._cache.ledger.unread(), self._cache.ledger.fits(), self._plans.next_use):
            self._cache.ledger.expose(entry)
        scene, most = self._scene(), SPARE * self._width() + self._left_alone()
        uses = sum(plan.keys - plan.position for plan in running)
        if len(running) * len(scene.here) > SMALL or uses > SHORT:
            wanted = await asyncio.to_thread(choose, running, scene, most, self._plans.wanting)
        else:
            wanted = choose(running, scene, most, self._plans.wanting)
        now = time.monotonic()
        self._chosen.extend(one for one in wanted if self._put_off.get(one.ref, (0.0, 0.0))[0] <= now)
        self._fill()

    def _fill(self) -> None:
        """Begin what was chosen, as far as transfers may be under way."""
        while self._chosen and self._transfers() < self._width():
            one = self._chosen.popleft()
            if one.ref not in self._under_way and self._plans.next_use(one.ref) < math.inf:
                self._begin(one)

    def _transfers(self) -> int:
        """How many of its shards have not come whole; those that have are being checked, and wait for no origin."""
        flights = self._cache.ledger.flights
        return sum((flight := flights.get(ref)) is None or flight.arrived != flight.size for ref in self._under_way)

    def _scene(self) -> Scene:
        ledger = self._cache.ledger
        unread = {entry.ref: str(entry.unread_of) for entry in ledger.unread() if entry.unread_of in ledger.protected}
        unread |= {ref: plan.tag for ref, (_, plan) in self._under_way.items()}
        return Scene(ledger.present(), ledger.fits(), self.fetch, unread)

    def _begin(self, one: Wanted) -> None:
        task = asyncio.create_task(self._bring(one), name=f"ahead {one.ref}")
        self._under_way[one.ref] = task, one.plan
        task.add_done_callback(lambda _: self._ended(one.ref))

    def _ended(self, ref: Ref) -> None:
        del self._under_way[ref]
        self._fill()
        self._files.stirred.set()

    async def _bring(self, one: Wanted) -> None:
        began = time.monotonic()
        if one.ref in self._put_off and not self._cache.ledger.has_place(one.ref):
            self._pause(one.ref, LOOK, LOOK)
            return
        try:
            here = await self._cache.bring(one.ref.source, one.ref.key, one.plan.tag, ahead=True)
        except CacheDaemonError as cause:
            log.debug("%s is not fetched ahead: %s", one.ref, cause)
            self._pause(one.ref, PAUSE, PAUSE if cause.retryable else LONGEST)
            return
        if here:
            self._put_off.pop(one.ref, None)
            self.fetch += REMEMBERED * (time.monotonic() - began - self.fetch)
        else:
            self._pause(one.ref, LOOK, CROWDED)

    def _left_alone(self) -> int:
        """How many shards are put off now."""
        now = time.monotonic()
        self._put_off = {ref: one for ref, one in self._put_off.items() if one[0] + KEPT * one[1] > now}
        return sum(until > now for until, _ in self._put_off.values())

    def _pause(self, ref: Ref, least: float, most: float) -> None:
        """Put it off, for twice as long as the last time, within these bounds."""
        _, before = self._put_off.get(ref, (0.0, 0.0))
        pause = min(max(least, 2 * before), most)
        self._put_off[ref] = (time.monotonic() + pause, pause)
