"""Verifying: what is here is read and hashed anew in the background; what is damaged goes, and is fetched again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from cachedaemon.arrival import digest_of
from cachedaemon.cache import CHECK, Cache
from cachedaemon.entries import Entry
from cachedaemon.errors import CacheDaemonError, CacheFull, NotFound, Stopping
from cachedaemon.jobs import Job, Jobs
from cachedaemon.model import Ref
from cachedaemon.store import Store

log = logging.getLogger(__name__)

RATE = 200_000_000
"""Bytes per second that are read at the most: the disk is there for the trainers."""
SPARED = 0.1
"""Seconds that may be made up for: a thread that was kept waiting goes a little faster after it."""


@dataclass(slots=True, kw_only=True)
class Verification(Job):
    """One request to verify; `bytes` are those that were hashed, `done` are shards that are well in the end, or gone."""

    damaged: int = 0
    fetched_again: int = 0
    gone: int = 0
    """Shards that were not here any more when their turn came, or went meanwhile."""
    absent: int = 0
    """Of those that failed, shards that were not here in the first place."""

    def counts(self) -> dict[str, Any]:
        """How far it is, as JSON."""
        names = ("damaged", "fetched_again", "gone", "absent")
        return Job.counts(self) | {name: getattr(self, name) for name in names}


class Verify:
    """All verifications, one at a time."""

    def __init__(self, cache: Cache, store: Store, jobs: Jobs) -> None:
        self._cache = cache
        self._store = store
        self._jobs = jobs
        self._turn = asyncio.Lock()
        self._ended = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, refs: list[Ref]) -> Job:
        """Begin a job, after those that were begun before it."""
        job = Verification(total=len(refs))
        self._jobs.add(job)
        absent = frozenset(ref for ref in refs if self._cache.ledger.get(ref) is None)
        task = asyncio.create_task(self._run(job, refs, absent), name=f"verify {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Verification, refs: list[Ref], absent: frozenset[Ref]) -> None:
        try:
            async with self._turn:
                for ref in refs:
                    await self._deal_with(job, ref, was_here=ref not in absent)
                    await asyncio.sleep(0)  # what is gone takes no time: others get their turn
        finally:
            job.end("done" if job.done == job.total else "failed")

    async def _deal_with(self, job: Verification, ref: Ref, *, was_here: bool) -> None:
        try:
            if was_here or self._cache.ledger.get(ref) is not None:
                await self._verify(job, ref)
            else:
                job.absent += 1
                raise NotFound(f"{ref} is not here")
        except CacheDaemonError as cause:
            job.fail(ref, cause)
        else:
            job.done += 1

    async def _verify(self, job: Verification, ref: Ref) -> None:
        entry = self._cache.ledger.get(ref)
        if entry is None:
            job.gone += 1
        elif entry.suspect:
            await self._prove(job, entry)
        elif not await self._is_sound(job, entry):
            await self._replace(job, entry)

    async def _is_sound(self, job: Verification, entry: Entry) -> bool:
        taken = _Throttle(job, self._ended)
        digest = partial(digest_of, taken=taken)
        return await self._store.is_sound(entry.ref, entry.name, entry.stamp, digest)

    async def _replace(self, job: Verification, entry: Entry) -> None:
        """A shard is not what was published, unless it just went: then there is nothing to be replaced."""
        while (move := self._cache.trash.moving(entry.ref)) is not None:
            await asyncio.wait([move])
        if self._cache.ledger.get(entry.ref) is not entry:
            job.gone += 1
            return
        log.warning("%s is damaged: its bytes are not those that were published; it is fetched again", entry.ref)
        job.damaged += 1
        await self._cache.eviction.lose(entry)
        await self._fetch(job, entry.ref)

    async def _prove(self, job: Verification, suspect: Entry) -> None:
        """A shard that an unclean boot has left is checked as if it were asked for: then it is published again, or lost."""
        ref = suspect.ref
        await self._cache.bring(ref.source, ref.key, CHECK)
        job.bytes += suspect.size
        if self._cache.ledger.get(ref) is not suspect:
            job.damaged += 1
            await self._fetch(job, ref)

    async def _fetch(self, job: Verification, ref: Ref) -> None:
        if not await self._cache.bring(ref.source, ref.key, job.id):
            raise CacheFull(f"{ref} was damaged, and there is no room to fetch it again")
        job.fetched_again += 1

    async def close(self) -> None:
        """End all of them, the thread that hashes too."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class _Throttle:
    """Is told, in the thread that hashes, of every piece: counts it, and waits so long that the rate is kept."""

    def __init__(self, job: Job, ended: threading.Event) -> None:
        self._job = job
        self._ended = ended
        self._due = time.monotonic()

    def __call__(self, count: int) -> None:
        """`count` bytes were read. Raises `Stopping` when the work is to end."""
        self._job.bytes += count
        now = time.monotonic()
        self._due = max(self._due, now - SPARED) + count / RATE
        if self._ended.wait(max(0.0, self._due - now)):
            raise Stopping("the daemon is stopping")
