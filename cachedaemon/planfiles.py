"""Plans in force and their files, which come and go together: who changes either does it here, one after the other."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

from cachedaemon.errors import Forbidden, NoSpace
from cachedaemon.ledger import Ledger
from cachedaemon.model import Ref
from cachedaemon.plans import Plan, Plans
from cachedaemon.regrets import Regrets
from cachedaemon.store import Store

AT_ONCE, TURNS = 200, 50
"""Shards whose place in the order is looked up between two turns of others, and such turns before ahead is looked again."""
ALIKE = 1.5
"""Rates of use that differ by less are alike."""


class PlanFiles:
    """All plans that run. Between two steps a plan is in force if and only if its file is there."""

    def __init__(self, plans: Plans, store: Store, ledger: Ledger, regrets: Regrets) -> None:
        self._plans = plans
        self._regrets = regrets
        self._store = store
        self._ledger = ledger
        self._to_tell: dict[object, Iterator[Ref]] = {}
        """Shards whose next use is another one, which the ledger was not told yet; of those that follow one order, once."""
        self._once_more: dict[object, Plan] = {}
        """Orders that changed again while they are told of."""
        self.stirred = asyncio.Event()
        """Set when plans came, went or moved: what to fetch ahead may be something else now."""
        self._step = asyncio.Lock()
        """Two looks would find each other's locks, and a plan that is made must not meet its own end half-way."""

    async def put(self, plan: Plan) -> str:
        """Take a plan into force, or replace the one with its id; the file for its owner to hold.

        Raises `NoSpace`, and `Forbidden` where that one is another user's.
        """
        async with self._step:
            if (before := self._plans.get(plan.id)) is not None and before.user != plan.user:
                raise Forbidden(f"plan {plan.id} is another user's: allowed is a plan of an id of its own")
            file = await self._store.make_plan(plan.id)
            replaced = self._plans.put(plan)
            if replaced is not None:
                self._regrets.end(replaced)
                self._retell(replaced)
            self._regrets.begin(plan)
            self._retell(plan)
            self._changed()
            return file

    def _changed(self) -> None:
        self._ledger.protected = {plan.tag for plan in self._plans.running()}
        self.stirred.set()

    def _retell(self, plan: Plan) -> None:
        """What a plan wants, or still wanted, is used at another time than was known; so is what others of its order want.

        Of a new one the order of eviction would find that out by itself, but all at once, with the first victim.
        """
        order = (plan.source, plan.course.order)
        if order in self._to_tell:
            self._once_more[order] = plan
        else:
            self._to_tell[order] = self._left_of(plan)

    def _left_of(self, plan: Plan) -> Iterator[Ref]:
        slowest = min((plan, *self._plans.team(plan)), key=lambda one: one.position)
        return (Ref(plan.source, key) for _, key in slowest.course.ahead())

    async def settle(self) -> None:
        """Index new plans, and tell the ledger of next uses that have changed, some at a time: others have their turn between.

        Many at the most: more may come all the time, and what is told late costs little.
        """
        for _ in self._plans.index():
            await asyncio.sleep(0)
        for _ in range(TURNS):
            if not self._to_tell:
                return
            self._tell_some()
            await asyncio.sleep(0)

    @property
    def settled(self) -> bool:
        """Whether the ledger knows of all next uses that have changed."""
        return not self._to_tell

    def _tell_some(self) -> None:
        order, walk = next(iter(self._to_tell.items()))
        some = list(itertools.islice(walk, AT_ONCE))
        self._ledger.replanned(some)
        if not some:
            del self._to_tell[order]
            if (plan := self._once_more.pop(order, None)) is not None:
                self._retell(plan)

    def move(self, name: str, position: int | None) -> bool:
        """A plan was heard of, and perhaps moved; False when there is none."""
        plan, reckoned = self._plans.get(name), self._plans.reckoned
        if plan is None:
            return False
        before, gap = plan.position, plan.clock[2]
        moved = self._plans.move(plan, position, time.monotonic())
        if plan.position > before:
            self._regrets.use(moved)
        self._ledger.replanned(moved[:AT_ONCE])
        if len(moved) > AT_ONCE:
            self._to_tell[object()] = iter(moved[AT_ONCE:])
        if reckoned != self._plans.reckoned and self._counts(plan.clock[2] / gap):
            self._retell(plan)
        if plan.idle and moved:
            self.note_idle()
        self.stirred.set()
        return True

    def _counts(self, slower: float) -> bool:
        """Whether a new reckoning changes what is used before what.

        Of one plan alone it hardly does, as long as times of before may stand beside those of now.
        """
        return len(self._plans) > 1 or not 1 / ALIKE < slower < ALIKE

    def note_idle(self) -> None:
        """Plans without progress for long count no more, until they move."""
        changed = self._plans.look(time.monotonic())
        for plan in changed:
            self._retell(plan)
        if changed:
            self._changed()

    async def end(self, name: str) -> bool:
        """End a plan; False when there is none. Raises `NoSpace`; then it still runs."""
        async with self._step:
            return await self._end(name)

    async def _end(self, name: str) -> bool:
        plan = self._plans.get(name)
        if plan is None:
            return False
        self._plans.end(name)  # at once: who ends a plan does not wait for the disk
        self._retell(plan)
        self._changed()
        try:
            await self._store.drop_plan(name)
        except NoSpace:
            self._plans.put(plan)
            self._changed()
            raise
        self._regrets.end(plan)
        return True

    async def end_all(self) -> None:
        """No plan survives its cache directory."""
        async with self._step:
            for plan in self._plans:
                await self._end(plan.id)

    async def look_at(self, name: str) -> None:
        """See whether one plan's file is held: from now on its loss would end the plan. OSError."""
        async with self._step:
            held = await self._store.held_plans([name])
            if held and (plan := self._plans.get(name)) is not None:
                plan.seen_held = True

    async def look(self) -> None:
        """End the plans whose owners have gone; OSError, `NoSpace`."""
        async with self._step:
            held = await self._store.held_plans([plan.id for plan in self._plans])
            for name in self._plans.ended(held, time.monotonic()):
                await self._end(name)
