"""Plans in force and their files, which come and go together: who changes either does it here, one after the other."""

from __future__ import annotations

import asyncio
import time

from cachedaemon.errors import NoSpace
from cachedaemon.ledger import Ledger
from cachedaemon.plans import Plan, Plans
from cachedaemon.regrets import Regrets
from cachedaemon.store import Store


class PlanFiles:
    """All plans that run. Between two steps a plan is in force if and only if its file is there."""

    def __init__(self, plans: Plans, store: Store, ledger: Ledger, regrets: Regrets) -> None:
        self._plans = plans
        self._regrets = regrets
        self._store = store
        self._ledger = ledger
        self.stirred = asyncio.Event()
        """Set when plans came, went or moved: what to fetch ahead may be something else now."""
        self._step = asyncio.Lock()
        """Two looks would find each other's locks, and a plan that is made must not meet its own end half-way."""

    async def put(self, plan: Plan) -> str:
        """Take a plan into force, or replace the one with its id; the file for its owner to hold. Raises `NoSpace`."""
        async with self._step:
            file = await self._store.make_plan(plan.id)
            replaced = self._plans.put(plan)
            if replaced is not None:
                self._regrets.end(replaced)
            self._regrets.begin(plan)
            self._changed()
            return file

    def _changed(self) -> None:
        self._ledger.protected = {plan.tag for plan in self._plans.running()}
        self._ledger.replanned()
        self.stirred.set()

    def move(self, name: str, position: int | None) -> bool:
        """A plan was heard of, and perhaps moved; False when there is none."""
        plan, reckoned = self._plans.get(name), self._plans.reckoned
        if plan is None:
            return False
        before = plan.position
        moved = self._plans.move(plan, position, time.monotonic())
        if plan.position > before:
            self._regrets.use(moved)
        self._ledger.replanned(moved if reckoned == self._plans.reckoned or len(self._plans) == 1 else None)
        self.stirred.set()
        return True

    def note_idle(self) -> None:
        """Plans without progress for long count no more, until they move."""
        if self._plans.look(time.monotonic()):
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

    async def look(self) -> None:
        """End the plans whose owners have gone; OSError, `NoSpace`."""
        async with self._step:
            held = await self._store.held_plans([plan.id for plan in self._plans])
            for name in self._plans.ended(held, time.monotonic()):
                await self._end(name)
