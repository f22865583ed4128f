"""A prefetch that runs in the daemon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cachedaemon_client.connection import Pause
from cachedaemon_client.errors import WaitExpired

if TYPE_CHECKING:
    from cachedaemon_client.cache import ShardCache


class Job:
    """A prefetch: `refresh` asks how far it is, `wait` until it has ended."""

    def __init__(self, cache: ShardCache, job: str) -> None:
        self._cache = cache
        self.id = job
        self.state = "running"
        """running, done, partial (the rest would displace what nobody has read yet) or failed."""
        self.total = 0
        self.done = 0
        self.failed = 0
        self.bytes = 0
        self.errors: list[dict[str, Any]] = []

    def refresh(self) -> Job:
        """Ask the daemon for the counts."""
        said = self._cache.call("GET", f"/v1/jobs/{self.id}")
        self.state, self.total, self.done = said["state"], said["total"], said["done"]
        self.failed, self.bytes, self.errors = said["failed"], said["bytes"], said["errors"]
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Until the job has ended, for `timeout` seconds at the most (`WaitExpired`)."""
        pause = Pause(float("inf") if timeout is None else time.monotonic() + timeout)
        while self.refresh().state == "running":
            if pause.left <= 0:
                raise WaitExpired(f"prefetch {self.id}: {self.done} of {self.total}", code="wait_expired")
            time.sleep(pause.next())
        return self

    def __repr__(self) -> str:
        """For people."""
        return f"<Job {self.id} {self.state} {self.done}/{self.total}>"
