"""Signs of trouble that no request tells of: what the file system is like, descriptors, and how late the loop is."""

from __future__ import annotations

import asyncio
import os
import resource

from cachedaemon.errors import CacheDaemonError
from cachedaemon.metrics import Metrics
from cachedaemon.model import Disk
from cachedaemon.store import Store

LOOK_AT_DISK = 5.0
LOOK_AT_DESCRIPTORS = 5.0
FEW = 0.05
"""The part of all descriptors that is few to have left."""
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
            group.create_task(self._look_at_descriptors())
            group.create_task(self._beat())

    async def _look_at_disk(self) -> None:
        while True:
            try:
                self.disk = await self._store.usage()
            except CacheDaemonError:  # whoever needs room tells of it
                self.disk = None
            if self.disk is not None and self.disk.read_only:
                self._store.trouble.report("disk", "the file system of the cache is read-only")
            await asyncio.sleep(LOOK_AT_DISK)

    async def _look_at_descriptors(self) -> None:
        while True:
            if (few := await asyncio.to_thread(few_descriptors)) is not None:
                self._store.trouble.report("descriptors", few)
            await asyncio.sleep(LOOK_AT_DESCRIPTORS)

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due = now() + BEAT
            await asyncio.sleep(BEAT)
            self._delay.observe(max(0.0, now() - due))


def few_descriptors() -> str | None:
    """How many descriptors this process has open, if few are left. Blocks, 10 ms with 20,000."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd")) - 1
    except OSError as cause:  # the look itself takes one
        return f"how many descriptors are open cannot be seen: {cause.strerror}"
    return f"{used} of {most} descriptors are open (RLIMIT_NOFILE)" if used > most * (1 - FEW) else None
