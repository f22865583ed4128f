"""Work that nobody waits for, until everything ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Background:
    """Tasks that run beside everything else, each kept until it has ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[None, None, None], name: str | None = None) -> None:
        """Do something beside everything else."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """Until all have ended, also what they began meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """End all that are under way, each in its own time."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
