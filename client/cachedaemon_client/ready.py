"""Shards in the order in which they become local, for work that does not care about order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cachedaemon_client import lease
from cachedaemon_client.connection import Pause
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from cachedaemon_client.cache import ShardCache
    from cachedaemon_client.job import Job


def as_ready(cache: ShardCache, keys: Iterable[str]) -> Iterator[Shard]:
    """Opened shards as they arrive; each is closed when the next is asked for. A shard that fails raises its error.

    What is local is taken as it comes; the rest is prefetched as far as it fits. When nothing arrives, the first that is
    missing is asked for in earnest, so that the loop ends whatever the cap is.
    """
    left = dict.fromkeys(keys)
    while left:
        arrived = False
        job = cache.prefetch(left)
        for key in _arrivals(cache, job, left):
            arrived = True
            del left[key]
            with cache.open(key) as shard:
                yield shard
        if not arrived and left:
            key = next(iter(left))
            del left[key]
            with cache.open(key) as shard:
                yield shard


def _arrivals(cache: ShardCache, job: Job, left: dict[str, None]) -> Iterator[str]:
    """Keys of `left` that are local, until the job has ended and none is."""
    pause = Pause(time.monotonic() + cache.wait)
    while left:
        here = [key for key in left if _is_local(cache, key)]
        yield from here
        if here:
            pause = Pause(time.monotonic() + cache.wait)
        elif job.refresh().state != "running" or pause.left <= 0:
            return
        else:
            time.sleep(pause.next())


def _is_local(cache: ShardCache, key: str) -> bool:
    path = cache.path_of(key)
    if path is None:
        return False
    try:
        lease.give_back(lease.take(path)[0])
    except (lease.Gone, lease.Busy):
        return False
    return True
