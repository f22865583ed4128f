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
    """Of the keys that are done."""
    under_way: list[str] = field(default_factory=list)
    full: bool = False
    """The next key would have displaced what the job brought and nobody has read."""
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

    def bytes_of(self, job: Job) -> int:
        """Bytes that a job has so far: of its shards that are here, and what has come of those on their way."""
        return job.bytes + sum(self._cache.bytes_of(job.source, key) for key in job.under_way)

    def _forget(self) -> None:
        limit = time.monotonic() - KEPT
        for name in [name for name, job in self._jobs.items() if job.ended is not None and job.ended < limit]:
            del self._jobs[name]

    async def _run(self, job: Job, keys: list[str]) -> None:
        """Bring the keys in order, several at once; stop where the rest would displace unread ones."""
        waiting = iter(keys)
        over = asyncio.Event()

        async def bring() -> None:
            for key in waiting:
                if not await self._bring(job, key):
                    over.set()
                if over.is_set():
                    return
                await asyncio.sleep(0)  # a key that is here, or fails at once, waits for nothing: others get their turn

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(keys), self._width(job.source))):
                    group.create_task(bring())
        finally:
            job.state = "partial" if job.full else "failed" if job.done < job.total else "done"
            job.ended = time.monotonic()

    async def _bring(self, job: Job, key: str) -> bool:
        """Whether the job goes on after this key."""
        job.under_way.append(key)
        try:
            here = await self._cache.bring(job.source, key, job.id)
        except CacheDaemonError as cause:
            job.fail(key, cause)
            return cause.code != "stopping"
        finally:
            job.under_way.remove(key)
        if here:
            job.done += 1
            job.bytes += self._cache.bytes_of(job.source, key)
        job.full |= not here
        return here

    async def close(self) -> None:
        """End all jobs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
