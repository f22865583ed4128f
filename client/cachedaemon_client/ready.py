"""Shards in the order in which they become local, for work that does not care about order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cachedaemon_client.connection import Pause
from cachedaemon_client.job import Counts
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from cachedaemon_client.cache import ShardCache
    from cachedaemon_client.job import Job
    from cachedaemon_client.local import Local


class Arrivals:
    """Which of the keys that are left have become local, looked for when a job got on. Shared by both clients."""

    def __init__(self, cache: Local[Any], keys: Iterable[str]) -> None:
        self._cache = cache
        self._seen: tuple[str, int] | None = None
        self.left = dict.fromkeys(keys)

    def of(self, job: Counts) -> list[str]:
        """Keys that are local, given the job's latest counts."""
        seen, self._seen = self._seen, (job.id, job.done)
        if seen == self._seen and job.state == "running":
            return []
        return [key for key in self.left if self._cache.is_local(key)]

    def in_earnest(self) -> list[str]:
        """The first that is missing: when nothing arrives, it is asked for, so that the loop ends whatever the cap is."""
        return list(self.left)[:1]


def as_ready(cache: ShardCache, keys: Iterable[str]) -> Iterator[Shard]:
    """Opened shards as they arrive; each is closed when the next is asked for. A shard that fails raises its error.

    What is local is taken as it comes; the rest is prefetched as far as it fits.
    """
    cache.learn()
    arrivals = Arrivals(cache, keys)
    job: Job | None = None
    while arrivals.left:
        if job is None or job.state != "running":
            job = cache.prefetch(arrivals.left)
        for key in _next(arrivals, job, cache.wait) or arrivals.in_earnest():
            del arrivals.left[key]
            with cache.open(key) as shard:
                yield shard


def _next(arrivals: Arrivals, job: Job, wait: float) -> list[str]:
    """Keys that are local; none when the job has ended without."""
    pause = Pause.of(wait)
    while not (here := arrivals.of(job.refresh())) and job.state == "running" and pause.left > 0:
        time.sleep(pause.next())
    return here
