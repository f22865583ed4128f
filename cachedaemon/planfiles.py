"""Plans in force and their files, which come and go together: who changes either does it here, one after the other."""

from __future__ import annotations

import asyncio
import time

from cachedaemon.errors import NoSpace
from cachedaemon.plans import Plan, Plans
from cachedaemon.store import Store


class PlanFiles:
    """All plans that run. Between two steps a plan is in force if and only if its file is there."""

    def __init__(self, plans: Plans, store: Store) -> None:
        self._plans = plans
        self._store = store
        self._step = asyncio.Lock()
        """Two looks would find each other's locks, and a plan that is made must not meet its own end half-way."""

    async def put(self, plan: Plan) -> str:
        """Take a plan into force, or replace the one with its id; the file for its owner to hold. Raises `NoSpace`."""
        async with self._step:
            file = await self._store.make_plan(plan.id)
            self._plans.put(plan)
            return file

    async def end(self, name: str) -> bool:
        """End a plan; False when there is none. Raises `NoSpace`; then it still runs."""
        async with self._step:
            return await self._end(name)

    async def _end(self, name: str) -> bool:
        plan = self._plans.get(name)
        if plan is None:
            return False
        self._plans.end(name)  # at once: who ends a plan does not wait for the disk
        try:
            await self._store.drop_plan(name)
        except NoSpace:
            self._plans.put(plan)
            raise
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
