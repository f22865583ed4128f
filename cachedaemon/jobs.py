"""Work that goes on when its request has been answered: how far it is, while it runs and for an hour after."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from cachedaemon.errors import CacheDaemonError, NotFound
from cachedaemon.model import Ref

KEPT = 3600.0
"""Seconds that a job is kept after its end."""
KEPT_EACH = 1000
"""Jobs of one user that are kept after their end: who begins a million must not use up the daemon's memory."""
ERRORS = 100
"""Errors of one job that are kept."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One piece of work on a number of shards."""

    total: int
    user: int = 0
    """Whose it is: a user id."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: str = "running"
    done: int = 0
    failed: int = 0
    bytes: int = 0
    """Of the shards that are done."""
    under_way: list[Ref] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    ended: float | None = None
    """Monotonic seconds."""

    def fail(self, ref: Ref, cause: CacheDaemonError) -> None:
        """It went wrong with one shard."""
        self.failed += 1
        if len(self.errors) < ERRORS:
            self.errors.append({"source": ref.source, "key": ref.key, "code": cause.code, "message": str(cause)})

    def end(self, state: str) -> None:
        """It goes on no more."""
        self.state, self.ended = state, time.monotonic()

    def counts(self) -> dict[str, Any]:
        """How far it is, as JSON."""
        names = ("state", "total", "done", "failed", "bytes", "errors")
        return {"job": self.id} | {name: getattr(self, name) for name in names}


class Jobs:
    """All jobs by their ids."""

    def __init__(self) -> None:
        self._all: dict[str, Job] = {}

    def add(self, job: Job) -> None:
        """Keep it from now on, until an hour after its end, or until its user has had a thousand others."""
        self._forget()
        ended = [one.id for one in self.of(job.user) if one.ended is not None]
        for name in ended[: len(ended) - KEPT_EACH + 1]:
            del self._all[name]
        self._all[job.id] = job

    def of(self, user: int) -> list[Job]:
        """A user's jobs, in the order of their beginning."""
        return [job for job in self._all.values() if job.user == user]

    def get(self, name: str) -> Job:
        """A job; `NotFound` when there is none, or none any more."""
        self._forget()
        try:
            return self._all[name]
        except KeyError:
            raise NotFound(f"no job {name!r}: jobs are kept for an hour after their end") from None

    def _forget(self) -> None:
        limit = time.monotonic() - KEPT
        for name in [name for name, job in self._all.items() if job.ended is not None and job.ended < limit]:
            del self._all[name]
