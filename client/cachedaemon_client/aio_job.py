"""A prefetch that runs in the daemon, for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cachedaemon_client.connection import Pause
from cachedaemon_client.errors import CacheError
from cachedaemon_client.job import Counts

if TYPE_CHECKING:
    from cachedaemon_client.aio import ShardCache


class Job(Counts):
    """A prefetch that runs in the daemon. It survives a restart of the daemon."""

    def __init__(self, cache: ShardCache, job: str, keys: list[str] | None = None) -> None:
        super().__init__(cache.source, job, keys)
        self._cache = cache

    async def refresh(self) -> Job:
        """Ask the daemon for the counts."""
        try:
            self._take(await self._cache.call("GET", f"/v1/jobs/{self.id}"))
        except CacheError as cause:
            if not self._is_lost(cause):
                raise
            self.id = (await self._cache.call("POST", "/v1/prefetch", self._body))["job"]
        return self

    async def wait(self, timeout: float | None = None) -> Job:
        """Until the job has ended, for `timeout` seconds at the most (`WaitExpired`)."""
        pause = Pause.of(timeout)
        while (await self.refresh()).state == "running":
            if pause.left <= 0:
                raise self._expired()
            await asyncio.sleep(pause.next())
        return self
