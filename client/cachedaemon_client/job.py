"""A prefetch that runs in the daemon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cachedaemon_client.connection import Pause
from cachedaemon_client.errors import CacheError, WaitExpired

if TYPE_CHECKING:
    from cachedaemon_client.cache import ShardCache


class Counts:
    """How far a prefetch is, as the daemon last said: nothing yet before the first `refresh`. The base of both clients' jobs."""

    def __init__(self, source: str, job: str, keys: list[str] | None) -> None:
        self._body: dict[str, Any] = {"source": source} if keys is None else {"source": source, "keys": keys}
        self.id = job
        self.state = "running"
        """running, done, partial (the rest would displace what nobody has read yet) or failed."""
        self.total = len(keys or ())
        self.done = 0
        self.failed = 0
        self.bytes = 0
        self.errors: list[dict[str, Any]] = []
        self._asked = False

    def _take(self, said: dict[str, Any]) -> None:
        self.state, self.total, self.done = said["state"], said["total"], said["done"]
        self.failed, self.bytes, self.errors = said["failed"], said["bytes"], said["errors"]
        self._asked = True

    def _is_lost(self, cause: CacheError) -> bool:
        """Whether the job went with its daemon. It is begun again then: what it brought counts as done at once."""
        return cause.code == "not_found" and self.state == "running"

    def _expired(self) -> WaitExpired:
        return WaitExpired(
            f"prefetch {self.id}: {self.done} of {self.total}", code="wait_expired", source=self._body["source"]
        )

    def __repr__(self) -> str:
        """For people."""
        far = (
            f"{self.state} {self.done}/{self.total}"
            if self._asked
            else f"of {self.total} keys, not asked yet: refresh()"
        )
        return f"<Job {self.id} {far}>"


class Job(Counts):
    """A prefetch: `refresh` asks how far it is, `wait` until it has ended. It survives a restart of the daemon."""

    def __init__(self, cache: ShardCache, job: str, keys: list[str] | None = None) -> None:
        super().__init__(cache.source, job, keys)
        self._cache = cache

    def refresh(self) -> Job:
        """Ask the daemon for the counts."""
        try:
            self._take(self._cache.call("GET", f"/v1/jobs/{self.id}"))
        except CacheError as cause:
            if not self._is_lost(cause):
                raise
            self.id = self._cache.call("POST", "/v1/prefetch", self._body)["job"]
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Until the job has ended, for `timeout` seconds at the most (`WaitExpired`)."""
        pause = Pause.of(timeout)
        while self.refresh().state == "running":
            if pause.left <= 0:
                raise self._expired()
            time.sleep(pause.next())
        return self
