"""Signs of trouble that no request tells of: room on the file system, and how late the loop is. Metrics show both."""

from __future__ import annotations

import asyncio

from cachedaemon.errors import CacheDaemonError
from cachedaemon.metrics import Metrics
from cachedaemon.model import Disk
from cachedaemon.store import Store

LOOK_AT_DISK = 5.0
BEAT = 1.0
"""Seconds between two measures of the loop's delay."""


class Vitals:
    """Measured in the background, so that a scrape waits for no disk."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._delay = metrics.loop_delay
        self.disk: Disk | None = None
        """The file system of the cache at the last look; None as long as it could not be looked at."""

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_at_disk())
            group.create_task(self._beat())

    async def _look_at_disk(self) -> None:
        while True:
            try:
                self.disk = await self._store.usage()
            except CacheDaemonError:  # whoever needs room tells of it
                self.disk = None
            await asyncio.sleep(LOOK_AT_DISK)

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due = now() + BEAT
            await asyncio.sleep(BEAT)
            self._delay.observe(max(0.0, now() - due))
