"""What one user may have under way at once, so that none starves the others.

Demands wait for room strictly in the order of their asking, whoever asks. So the number of a user's waiters is what bounds
how many stand before somebody else's. Root and the daemon's own user have no limits: they could stop the daemon, too.
Leases cannot be limited: the kernel grants them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext

from aiohttp import web

from cachedaemon.config import Server
from cachedaemon.errors import BadRequest, TooMany
from cachedaemon.jobs import Job, Jobs
from cachedaemon.plans import Plan, Plans
from cachedaemon.server.peers import is_own, peer_user

LARGE = 64 << 10
"""Bytes from which a body is a large one."""
LARGE_AT_ONCE = 4
"""Large bodies of one user that are taken at once: each may have 64 MiB. More of them wait."""
LISTINGS_AT_ONCE = 2
"""Times that an origin is asked at once, for one user, what it has: each answer may name a million keys. More of them wait."""


class UserLimits:
    """Of all users. `settings` are those in force."""

    def __init__(self, settings: Callable[[], Server], plans: Plans, jobs: Jobs) -> None:
        self._settings = settings
        self._plans = plans
        self._jobs = jobs
        self._waiters = Counter[int]()
        self._listeners = Counter[int]()
        self._plans_coming: dict[int, list[int]] = defaultdict(list)
        """Keys of each plan that is being made."""
        self._prefetches_coming: dict[int, list[int]] = defaultdict(list)
        """Keys of each prefetch that is being begun, as far as they are known."""
        self._bodies: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(LARGE_AT_ONCE))
        self._listings: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(LISTINGS_AT_ONCE))

    @contextmanager
    def waiting(self, user: int) -> Iterator[None]:
        """A request that may wait for a shard; `TooMany`."""
        _refuse(user, self._waiters[user] + 1, self._settings().user_waiters, "requests that wait", "user_waiters")
        with _one_more(self._waiters, user):
            yield

    @contextmanager
    def listening(self, user: int) -> Iterator[None]:
        """A stream of events: each event is work for each of them; `TooMany`."""
        would_be = self._listeners[user] + 1
        _refuse(user, would_be, self._settings().user_listeners, "streams of events", "user_listeners")
        with _one_more(self._listeners, user):
            yield

    @contextmanager
    def planning(self, user: int, name: str, keys: int) -> Iterator[None]:
        """A plan that is being made, or replaces the one of its name; `TooMany`."""
        others = [plan for plan in self._plans if plan.user == user and plan.id != name]
        would_be = len(others) + len(self._plans_coming.get(user, ())) + 1
        _refuse(user, would_be, self._settings().user_plans, "plans", "user_plans")
        self._refuse_keys(user, keys, others)
        with _kept(self._plans_coming, user, keys):
            yield

    @contextmanager
    def prefetching(self, user: int, keys: int) -> Iterator[None]:
        """A prefetch that is being begun, with so many keys as far as is known yet; `TooMany`."""
        would_be = len(self._under_way(user)) + len(self._prefetches_coming.get(user, ())) + 1
        _refuse(user, would_be, self._settings().user_prefetches, "prefetches", "user_prefetches")
        self.more_keys(user, keys)
        with _kept(self._prefetches_coming, user, keys):
            yield

    def more_keys(self, user: int, keys: int) -> None:
        """Whether a prefetch can have so many keys more; `TooMany`, and `BadRequest` where it never could."""
        self._refuse_keys(user, keys, [plan for plan in self._plans if plan.user == user])

    def listing(self, user: int) -> AbstractAsyncContextManager[object]:
        """Ask an origin what it has, once few others do so for this user."""
        return self._listings[user]

    def _under_way(self, user: int) -> list[Job]:
        return [job for job in self._jobs.of(user) if job.ended is None]

    def _refuse_keys(self, user: int, keys: int, plans: list[Plan]) -> None:
        most = self._settings().user_keys
        if most and keys > most and not is_own(user):
            raise BadRequest(f"body.keys: {keys} keys; allowed are {most} for one user (server.user_keys)")
        known = sum(plan.keys for plan in plans) + sum(job.total for job in self._under_way(user))
        known += sum(self._plans_coming.get(user, ())) + sum(self._prefetches_coming.get(user, ()))
        _refuse(user, known + keys, most, "keys in plans and prefetches", "user_keys")

    def body(self, request: web.Request) -> AbstractAsyncContextManager[object]:
        """Take a body: a large one once few others of its user are being taken."""
        if request.content_length is not None and request.content_length < LARGE:
            return nullcontext()
        return self._bodies[peer_user(request)]


@contextmanager
def _one_more(counts: Counter[int], user: int) -> Iterator[None]:
    counts[user] += 1
    try:
        yield
    finally:
        counts[user] -= 1
        if not counts[user]:
            del counts[user]


@contextmanager
def _kept(coming: dict[int, list[int]], user: int, keys: int) -> Iterator[None]:
    mine = coming[user]
    mine.append(keys)
    try:
        yield
    finally:
        mine.remove(keys)
        if not mine:
            coming.pop(user, None)


def _refuse(user: int, would_be: int, most: int, what: str, setting: str) -> None:
    if most and would_be > most and not is_own(user):
        raise TooMany(f"uid {user} would have {would_be} {what} under way: allowed are {most} (server.{setting})")
