"""Prefetch jobs: shards brought in order, as long as they displace nothing that the job brought and nobody has read."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from cachedaemon.cache import Cache
from cachedaemon.errors import CacheDaemonError, NotFound

KEPT = 3600.0
"""Seconds that a job is kept after its end."""
ERRORS = 100
"""Errors of one job that are kept."""


@dataclass(slots=True)
class Job:
    """One prefetch."""

    id: str
    source: str
    total: int
    state: str = "running"
    done: int = 0
    failed: int = 0
    bytes: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)
    ended: float | None = None

    def fail(self, key: str, cause: CacheDaemonError) -> None:
        """One key did not come."""
        self.failed += 1
        if len(self.errors) < ERRORS:
            self.errors.append({"key": key, "code": cause.code, "message": str(cause)})


class Prefetch:
    """All jobs. `width` says how many keys of a source are under way at once."""

    def __init__(self, cache: Cache, width: Callable[[str], int]) -> None:
        self._cache = cache
        self._width = width
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, source: str, keys: list[str]) -> Job:
        """Begin a job. Its keys have been checked: for a million of them that is no work for the loop."""
        self._forget()
        job = Job(uuid.uuid4().hex, source, len(keys))
        self._jobs[job.id] = job
        task = asyncio.create_task(self._run(job, keys), name=f"prefetch {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def get(self, name: str) -> Job:
        """A job, while it runs and for an hour after."""
        self._forget()
        try:
            return self._jobs[name]
        except KeyError:
            raise NotFound(f"no job {name!r}: jobs are kept for an hour after their end") from None

    def _forget(self) -> None:
        limit = time.monotonic() - KEPT
        for name in [name for name, job in self._jobs.items() if job.ended is not None and job.ended < limit]:
            del self._jobs[name]

    async def _run(self, job: Job, keys: list[str]) -> None:
        """Bring the keys in order, several at once; stop where the rest would displace unread ones."""
        waiting = iter(keys)
        full = asyncio.Event()

        async def bring() -> None:
            for key in waiting:
                if full.is_set() or not await self._bring(job, key):
                    full.set()
                    return

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(keys), self._width(job.source))):
                    group.create_task(bring())
        finally:
            job.state = "partial" if full.is_set() else "failed" if job.done < job.total else "done"
            job.ended = time.monotonic()

    async def _bring(self, job: Job, key: str) -> bool:
        try:
            here = await self._cache.bring(job.source, key, job.id)
        except CacheDaemonError as cause:
            job.fail(key, cause)
            return cause.code != "stopping"
        if here:
            job.done += 1
            job.bytes += self._cache.size_of(job.source, key)
        return here

    async def close(self) -> None:
        """End all jobs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
