"""Prefetch jobs: shards brought in order, as long as they displace nothing that the job brought and nobody has read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cachedaemon.cache import Cache
from cachedaemon.errors import CacheDaemonError
from cachedaemon.jobs import Job, Jobs
from cachedaemon.model import Ref


@dataclass(slots=True, kw_only=True)
class Prefetching(Job):
    """One prefetch."""

    source: str
    full: bool = False
    """The next key would have displaced what the job brought and nobody has read."""

    def finish(self) -> None:
        """It has brought what it could."""
        self.end("partial" if self.full else "failed" if self.done < self.total else "done")


class Prefetch:
    """All prefetches. `width` says how many keys of a source are under way at once."""

    def __init__(self, cache: Cache, jobs: Jobs, width: Callable[[str], int]) -> None:
        self._cache = cache
        self._jobs = jobs
        self._width = width
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, source: str, keys: list[str], user: int = 0) -> Job:
        """Begin a user's job. Its keys have been checked: for a million of them that is no work for the loop."""
        job = Prefetching(source=source, total=len(keys), user=user)
        self._jobs.add(job)
        task = asyncio.create_task(self._run(job, keys), name=f"prefetch {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Prefetching, keys: list[str]) -> None:
        """Bring the keys in order, several at once; stop where the rest would displace unread ones."""
        waiting = iter(keys)
        over = asyncio.Event()

        async def bring() -> None:
            for key in waiting:
                if not await self._bring(job, Ref(job.source, key)):
                    over.set()
                if over.is_set():
                    return
                await asyncio.sleep(0)  # a key that is here, or fails at once, waits for nothing: others get their turn

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(keys), self._width(job.source))):
                    group.create_task(bring())
        finally:
            job.finish()

    async def _bring(self, job: Prefetching, ref: Ref) -> bool:
        """Whether the job goes on after this key."""
        job.under_way.append(ref)
        try:
            here = await self._cache.bring(ref.source, ref.key, job.id)
        except CacheDaemonError as cause:
            job.fail(ref, cause)
            return cause.code != "stopping"
        finally:
            job.under_way.remove(ref)
        if here:
            job.done += 1
            job.bytes += self._cache.bytes_of(ref.source, ref.key)
        job.full |= not here
        return here

    async def close(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
