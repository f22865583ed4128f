"""The API's calls. All routes stand in one table at the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from cachedaemon.cache import Answer, Cache
from cachedaemon.course import Course
from cachedaemon.errors import BadRequest, CacheDaemonError, NotFound
from cachedaemon.events import Event, Events
from cachedaemon.jobs import Jobs
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.noticed import ENDED, Noticed
from cachedaemon.planfiles import PlanFiles
from cachedaemon.plans import Plan, Plans, is_plan_id
from cachedaemon.prefetch import Prefetch
from cachedaemon.server import bodies, openapi
from cachedaemon.server.limits import UserLimits
from cachedaemon.server.live import Live
from cachedaemon.server.page import ROUTES as LOOKED_AT
from cachedaemon.server.peers import peer_user, require_admin
from cachedaemon.server.promises import Promises
from cachedaemon.server.view import View
from cachedaemon.server.watch import ROUTES as WATCHED
from cachedaemon.sources import Configured
from cachedaemon.verify import Verify

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE = 1000
"""Shards of one answer, unless asked otherwise."""
PAGE_MOST = 10_000
HEARTBEAT = 15.0
"""Seconds between two signs of life on a stream of events."""
AT_ONCE = 200
"""Keys that are dealt with before others get their turn: a millisecond, about."""


class Api:
    """Handlers of the calls below `/v1`."""

    def __init__(  # noqa: PLR0913 - everything it answers for
        self,
        *,
        cache: Cache,
        jobs: Jobs,
        prefetch: Prefetch,
        verify: Verify,
        plans: Plans,
        plan_files: PlanFiles,
        events: Events,
        noticed: Noticed,
        metrics: Metrics,
        view: View,
        live: Live,
        policy: Callable[[], str],
        limits: UserLimits,
        admin_group: int | None,
    ) -> None:
        self._cache = cache
        self._jobs = jobs
        self._prefetch = prefetch
        self._verify = verify
        self._plans = plans
        self._plan_files = plan_files
        self._events = events
        self._noticed = noticed
        self._metrics = metrics
        self._view = view
        self._live = live
        self._policy = policy
        self._limits = limits
        self._admin_group = admin_group
        self._promises = Promises(cache.grace)

    async def hello(self, _: web.Request) -> web.StreamResponse:
        """What this daemon is."""
        return web.json_response(self._view.hello())

    async def status(self, _: web.Request) -> web.StreamResponse:
        """What it does right now."""
        return web.json_response(self._view.status(self._policy()))

    async def glance(self, request: web.Request) -> web.StreamResponse:
        """The node as the page shows it, at most a second old; `since`: only points of its history that are later."""
        since = bodies.moment(request, "since")
        snapshot = await self._live.now()
        points = self._live.history.points(since)
        return web.json_response({**snapshot.said, "map": snapshot.cells, "points": points})

    async def openapi(self, _: web.Request) -> web.StreamResponse:
        """The description of this API, generated from the code."""
        return web.json_response(text=await asyncio.to_thread(_description))

    async def acquire(self, request: web.Request) -> web.StreamResponse:
        """Wait until a shard is local."""
        asked = await self._body(request, bodies.ACQUIRE)
        with self._limits.waiting(peer_user(request)):
            answer = await self._cache.acquire(asked.source, asked.key, bodies.wait_of(asked.wait))
        return await self._promised(request, Ref(asked.source, asked.key), answer)

    async def _body(self, request: web.Request, kind: TypeAdapter[T], most: int = bodies.SMALL) -> T:
        async with self._limits.body(request):
            return await bodies.body(request, kind, most)

    async def _promised(self, request: web.Request, ref: Ref, answer: Answer) -> web.StreamResponse:
        """Write the answer; only one that went out keeps its promise."""
        response = web.json_response({"path": answer.path, "size": answer.size, "result": answer.result})
        written = False
        try:
            await response.prepare(request)
            await response.write_eof()
            written = request.transport is not None and not request.transport.is_closing()
        finally:
            if written:
                self._promises.keep(request, ref, answer.promise)
            else:
                self._cache.grace.end(answer.promise)
        return response

    async def touch(self, request: web.Request) -> web.StreamResponse:
        """Shards were used; a plan has moved."""
        said = await self._body(request, bodies.TOUCH)
        self._cache.sources[said.source]
        async for part in _parts(said.used):
            for _, age in part:
                bodies.age_of(age)
        async for part in _parts(said.used):
            self._used(request, said.source, part)
        if said.plan is not None:
            await self._moved(request, said.plan, said.position)
        return web.Response(status=204)

    def _used(self, request: web.Request, source: str, uses: list[tuple[str, float]]) -> None:
        hits = 0
        for key, age in uses:
            ref = Ref(source, key)
            self._cache.shelf.touch(ref, age)
            hits += not self._promises.end(request, ref)
        if hits:
            self._metrics.requests.labels(source, "hit").inc(hits)

    async def _moved(self, request: web.Request, name: str, position: int | None) -> None:
        """A plan was heard of. The first time that it is, its owner has its lock: seen now, its loss will end the plan."""
        await self._require_owner(request, name)
        if not self._plan_files.move(name, position):
            raise NotFound(f"no plan {name!r}")
        if (plan := self._plans.get(name)) is not None and not plan.seen_held:
            with contextlib.suppress(OSError, CacheDaemonError):  # the look that comes each second tells
                await self._plan_files.look_at(name)

    async def prefetch(self, request: web.Request) -> web.StreamResponse:
        """Bring shards ahead."""
        user = peer_user(request)
        asked = await self._body(request, bodies.PREFETCH, bodies.LARGEST)
        source = self._cache.sources[asked.source]
        with self._limits.prefetching(user, len(asked.keys or ())):  # before the origin is asked what it has
            keys = await (self._listed(user, source) if asked.keys is None else self._checked(asked.source, asked.keys))
        self._limits.more_keys(user, len(keys))
        job = self._prefetch.start(asked.source, keys, user)
        return web.json_response({"job": job.id}, status=202)

    async def _listed(self, user: int, source: Configured) -> list[str]:
        async with self._limits.listing(user):
            return await self._checked(source.name, await source.origin.keys())

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """Hash what is here anew, and replace what is damaged."""
        await require_admin(request, self._admin_group)
        asked = await self._body(request, bodies.VERIFY, bodies.LARGEST)
        job = self._verify.start(await self._to_verify(asked.source, asked.keys))
        return web.json_response({"job": job.id}, status=202)

    async def _to_verify(self, source: str | None, keys: list[str] | None) -> list[Ref]:
        if keys is not None:
            if source is None:
                raise BadRequest("body.source: is missing; keys are of one source")
            return [Ref(source, key) for key in await self._checked(source, keys)]
        if source is not None:
            self._cache.sources[source]
        return [entry.ref for entry in self._cache.ledger.entries() if source in (None, entry.ref.source)]

    async def job(self, request: web.Request) -> web.StreamResponse:
        """How far a prefetch or a verification is."""
        job = self._jobs.get(request.match_info["job"])
        coming = sum(self._cache.bytes_of(*ref) for ref in job.under_way)
        return web.json_response(job.counts() | {"bytes": job.bytes + coming})

    async def put_plan(self, request: web.Request) -> web.StreamResponse:
        """Take a plan into force."""
        name = _plan_id(request)
        owner = await self._require_owner(request, name)
        asked = await self._body(request, bodies.PLAN, bodies.LARGEST)
        keys = asked.keys
        if not 0 <= asked.position <= len(keys):
            raise BadRequest(f"body.position: {asked.position} is not within the {len(keys)} keys")
        if asked.holds < 1:
            raise BadRequest(f"body.holds: {asked.holds}; a consumer holds at least 1 shard")
        with self._limits.planning(owner, name, len(keys)):
            await self._checked(asked.source, keys)
            course = await asyncio.to_thread(Course, keys, asked.position)
            plan = Plan(name, asked.source, course, asked.holds, time.monotonic(), owner)
            file = await self._plan_files.put(plan)
        short = self._short()
        if short is not None:
            log.warning("plan %s of %s: %s", name, asked.source, short)
        return web.json_response({"file": file} | ({"warning": short} if short else {}))

    def _short(self) -> str | None:
        """What is wrong when the consumers of all plans together hold more than there is room for: they may wait for ever."""
        ledger = self._cache.ledger
        held, room = self._plans.held_at_once(), ledger.fits()
        is_known = ledger.caps.max_shards or len(ledger)  # how many fit by bytes nobody knows before the first has come
        if held <= room or not is_known:
            return None
        return f"the consumers of all plans hold {held} shards at once and there is room for {room}: they may wait for ever"

    async def end_plan(self, request: web.Request) -> web.StreamResponse:
        """End a plan."""
        name = _plan_id(request)
        await self._require_owner(request, name)
        if not await self._plan_files.end(name):
            raise NotFound(f"no plan {name!r}")
        return web.Response(status=204)

    async def _require_owner(self, request: web.Request, name: str) -> int:
        """Whose plan it is, or will be; `Forbidden` when it is another user's, and who asks is no admin."""
        user, plan = peer_user(request), self._plans.get(name)
        if plan is None or plan.user == user:
            return user
        await require_admin(request, self._admin_group)
        return plan.user

    async def _checked(self, source: str, keys: list[str]) -> list[str]:
        self._cache.sources[source]
        async for part in _parts(keys):
            for key in part:
                self._cache.sources.shard(source, key)
        return keys

    async def shards(self, request: web.Request) -> web.StreamResponse:
        """What is here, page by page."""
        source, prefix = request.query.get("source"), request.query.get("prefix", "")
        if source is not None:
            self._cache.sources[source]
        limit = bodies.number(request, "limit", PAGE, PAGE_MOST)
        found = self._cache.ledger.page(source, prefix, _place(request.query.get("after")), limit + 1)
        offset = time.time() - time.monotonic()
        rows = [
            {
                "source": entry.ref.source,
                "key": entry.ref.key,
                "size": entry.size,
                "state": "suspect" if entry.suspect else "ready",
                "leased": await self._cache.shelf.is_leased(entry),
                "last_used": round(entry.used + offset, 3),
                "path": self._cache.shelf.path_of(entry),
            }
            for entry in found[:limit]
        ]
        after = str(found[limit - 1].ref) if len(found) > limit else None
        return web.json_response({"shards": rows, "next": after})

    async def evict(self, request: web.Request) -> web.StreamResponse:
        """Remove one shard."""
        await require_admin(request, self._admin_group)
        source, key = bodies.needed(request, "source"), bodies.needed(request, "key")
        try:
            await self._cache.eviction.evict(Ref(source, key))
        except NotFound:
            self._cache.sources[
                source
            ]  # a source that is no more may have shards, one that never was has its own error
            raise
        return web.Response(status=204)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events (HTML Living Standard, 9.2), from now on; or, with `watch`, what lies in that source's folder, and what comes."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        source = request.query.get("watch")
        with (
            self._limits.listening(peer_user(request)),
            self._events.listen()
            if source is None
            else self._noticed.listen(self._cache.sources[source].name) as queue,
        ):
            await response.prepare(request)
            await response.write(b": from now on\n\n")
            while True:
                try:
                    told = [await asyncio.wait_for(queue.get(), HEARTBEAT)]
                except TimeoutError:
                    await response.write(b": alive\n\n")
                    continue
                told += [queue.get_nowait() for _ in range(min(queue.qsize(), AT_ONCE))]
                await response.write("".join(map(_as_text, told)).encode())
                if told[-1].name == ENDED:
                    return response


@functools.cache
def _description() -> str:
    """It takes a quarter of a second to make, and reads sources: once, and not on the loop."""
    return json.dumps(openapi.document(ROUTES, WATCHED, LOOKED_AT))


def _as_text(event: Event) -> str:
    data = json.dumps({"source": event.ref.source, "key": event.ref.key, **event.details})
    return f"event: {event.name}\ndata: {data}\n\n"


async def _parts(items: list[T]) -> AsyncIterator[list[T]]:
    """All items, few at a time: a request may hold a million, and others get their turn between."""
    for start in range(0, len(items), AT_ONCE):
        if start:  # a small request is done at once: what comes after it on the connection must not overtake it
            await asyncio.sleep(0)
        yield items[start : start + AT_ONCE]


def _plan_id(request: web.Request) -> str:
    name = request.match_info["id"]
    if not is_plan_id(name):
        raise BadRequest(
            f"{name!r} cannot name a plan: allowed are 1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first"
        )
    return name


def _place(after: str | None) -> Ref | None:
    """The cursor of the page before: its last shard, `<source>/<key>`."""
    if after is None:
        return None
    source, found, key = after.partition("/")
    if not found:
        raise BadRequest(f"after={after!r} is not a cursor of this API")
    return Ref(source, key)


Handler = Callable[[Api, web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/v1/hello", Api.hello),
    ("GET", "/v1/status", Api.status),
    ("GET", "/v1/glance", Api.glance),
    ("GET", "/v1/openapi.json", Api.openapi),
    ("POST", "/v1/acquire", Api.acquire),
    ("POST", "/v1/touch", Api.touch),
    ("POST", "/v1/prefetch", Api.prefetch),
    ("POST", "/v1/verify", Api.verify),
    ("GET", "/v1/jobs/{job}", Api.job),
    ("PUT", "/v1/plans/{id}", Api.put_plan),
    ("DELETE", "/v1/plans/{id}", Api.end_plan),
    ("GET", "/v1/shards", Api.shards),
    ("DELETE", "/v1/shards", Api.evict),
    ("GET", "/v1/events", Api.events),
)
