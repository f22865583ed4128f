"""The same client for asyncio: nothing blocks the loop but the few microseconds of a hit.

`open` can be awaited, or used in `async with`:

    cache = ShardCache("imagenet")
    async with cache.open("images-17.zip") as shard:
        data = shard.read(0)
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import Any

from cachedaemon_client import lease, process
from cachedaemon_client.cache import TRIES, lost
from cachedaemon_client.cache import ShardCache as BlockingCache
from cachedaemon_client.connection import SLACK, Pause, is_passing, unavailable
from cachedaemon_client.errors import BadRequest, CacheError, WaitExpired, from_answer
from cachedaemon_client.lease import give_back, hold_plan
from cachedaemon_client.local import Local
from cachedaemon_client.shard import Shard
from cachedaemon_client.wire import GENERATION, Answer, request

__all__ = ["Job", "Plan", "ShardCache"]


class _Link:
    """One connection to the daemon, for one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._owed = 0

    @classmethod
    async def to(cls, path: str) -> _Link:
        """Connect."""
        return cls(*await asyncio.open_unix_connection(path))

    async def ask(self, method: str, target: str, body: Any) -> Answer:
        """One call. OSError or ValueError when the connection fails."""
        while self._owed:
            await self._receive()
            self._owed -= 1
        self._writer.write(request(method, target, body))
        await self._writer.drain()
        return await self._receive()

    def tell(self, method: str, target: str, body: Any) -> None:
        """A call whose answer is read before the next one."""
        self._writer.write(request(method, target, body))
        self._owed += 1

    async def _receive(self) -> Answer:
        answer = Answer()
        while not answer.done:
            piece = await self._reader.read(answer.wanted)
            if not piece:
                raise ConnectionResetError("the daemon closed the connection")
            answer.feed(piece)
        return answer

    def close(self) -> None:
        """Close it, without waiting."""
        self._writer.close()


class ShardCache(Local):
    """One source of the node's daemon, for one event loop. `wait` in seconds, as for the blocking client."""

    def __init__(
        self,
        source: str,
        *,
        socket: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        wait: float = 600,
    ) -> None:
        super().__init__(source, socket=socket, cache_dir=cache_dir, wait=wait)
        process.farewells.add(self._reporter)

    def _begin(self) -> None:
        super()._begin()
        self._idle: list[_Link] = []

    # ---- shards

    def open(self, key: str) -> Opening:  # type: ignore[override]
        """Lease a shard: `await` it and close it, or use it in `async with`."""
        return Opening(lambda: self._open(key))

    async def _open(self, key: str) -> Shard:
        if self._view is None and self._look() is None:
            await self._greet(None)
        self.path_of(key)
        shard = super().open(key)
        if shard is None:
            shard = await self.acquire(key)
            self.moved(key)
        await self._renew_plans()
        return shard

    def _missed(self, key: str) -> Shard:  # noqa: ARG002
        return None  # type: ignore[return-value]

    async def acquire(self, key: str) -> Shard:
        """Lease a shard by asking the daemon, whatever is local."""
        pause = self._pause()
        for _ in range(1 + TRIES):
            shard = await self._acquire_once(key, pause.left)
            if shard is not None:
                return shard
        raise lost(self.source, key)

    async def _acquire_once(self, key: str, wait: float) -> Shard | None:
        self._reporter.flush()
        body = {"source": self.source, "key": key, "wait": wait}
        said, generation, link = await self._exchange("POST", "/v1/acquire", body, key, wait)
        shard: Shard | None = None
        try:
            if self.is_stale(generation):
                await self._greet(generation)
            shard = self.lease(said, key)
            link.tell("POST", "/v1/touch", {"source": self.source, "used": [[key, 0]]})
            self._idle.append(link)
        except BaseException:
            link.close()
            if shard is not None:
                shard.close()
            raise
        return shard

    def renew(self, key: str) -> Shard:
        """Lease a damaged shard anew. This blocks: it happens when somebody changed the cache behind the daemon's back."""
        with BlockingCache(self.source, socket=self._given[0], cache_dir=self._given[1], wait=self.wait) as cache:
            return cache.renew(key)

    async def prefetch(self, keys: Iterable[str]) -> Job:
        """Have shards fetched in the background, in this order, as far as they fit."""
        said = await self.call("POST", "/v1/prefetch", {"source": self.source, "keys": list(keys)})
        return Job(self, said["job"])

    def plan(self, keys: Iterable[str], *, holds: int = 1) -> Plan:
        """The order in which this process will open shards; in force within `async with`."""
        return Plan(self, uuid.uuid4().hex, list(keys), holds)

    async def as_ready(self, keys: Iterable[str]) -> AsyncIterator[Shard]:
        """Opened shards as they become local; each is closed when the next is asked for."""
        left = dict.fromkeys(keys)
        while left:
            job = await self.prefetch(left)
            arrived = False
            async for key in self._arrivals(job, left):
                arrived = True
                del left[key]
                async with self.open(key) as shard:
                    yield shard
            if not arrived and left:
                key = next(iter(left))
                del left[key]
                async with self.open(key) as shard:
                    yield shard

    async def _arrivals(self, job: Job, left: dict[str, None]) -> AsyncIterator[str]:
        pause = self._pause()
        while left:
            here = [key for key in left if self._is_local(key)]
            for key in here:
                yield key
            if here:
                pause = self._pause()
            elif (await job.refresh()).state != "running" or pause.left <= 0:
                return
            else:
                await asyncio.sleep(pause.next())

    def _is_local(self, key: str) -> bool:
        path = self.path_of(key)
        if path is None:
            return False
        try:
            give_back(lease.take(path)[0])
        except (lease.Gone, lease.Busy):
            return False
        return True

    async def status(self) -> dict[str, Any]:
        """The daemon's state, as `GET /v1/status` says it."""
        said: dict[str, Any] = await self.call("GET", "/v1/status")
        return said

    # ---- the daemon

    async def _greet(self, generation: str | None) -> None:
        before = self._generation
        hello, said, link = await self._exchange("GET", "/v1/hello", None, None, self.wait)
        self._idle.append(link)
        self.adopt(hello, said or generation)
        if before is not None:
            for plan in list(self._plans.values()):
                await plan.renew()

    async def _renew_plans(self) -> None:
        if self._plans and self._generation is not None and self.is_stale(self.told_generation):
            await self._greet(None)

    async def local_path(self, path: str) -> str:
        """A path of the daemon's, as this process sees it."""
        if self._view is None:
            await self._greet(None)
        return self._view.local(path) if self._view else path

    async def call(self, method: str, target: str, body: Any = None) -> Any:
        """A call to the daemon, waiting out its restart; the JSON body, or a `CacheError`."""
        said, _, link = await self._exchange(method, target, body, None, self.wait)
        self._idle.append(link)
        return said

    async def _exchange(
        self, method: str, target: str, body: Any, key: str | None, wait: float
    ) -> tuple[Any, str | None, _Link]:
        """A call, repeated while the daemon restarts: JSON body, generation, and the connection it went over."""
        pause = Pause(Pause.clock() + wait)
        while True:
            if body is not None and "wait" in body:
                body = body | {"wait": pause.left}
            try:
                answer, link = await self._ask(method, target, body, pause.left)
                said = answer.json()
            except (OSError, ValueError, TimeoutError) as failed:
                if not is_passing(failed) or pause.left <= 0:
                    raise unavailable(self.socket, failed, self.source, key) from None
            else:
                if answer.status < 400:  # noqa: PLR2004
                    return said, answer.headers.get(GENERATION), link
                self._idle.append(link)
                cause = from_answer(answer.status, said, self.source, key)
                if cause.code != "stopping" or pause.left <= 0:
                    raise cause
            await asyncio.sleep(pause.next())

    async def _ask(self, method: str, target: str, body: Any, seconds: float) -> tuple[Answer, _Link]:
        link = self._idle.pop() if self._idle else await _Link.to(self.socket)
        try:
            answer = await asyncio.wait_for(link.ask(method, target, body), seconds + SLACK)
        except BaseException:  # a cancelled call too: its answer would be taken for the next one's
            link.close()
            raise
        return answer, link

    def _pause(self) -> Pause:
        return Pause(Pause.clock() + self.wait)

    # ---- life

    def forked(self) -> None:
        """In a forked child: nothing of the parent's loop can be used."""
        super().forked()

    async def close(self) -> None:
        """End the plans, tell the last uses, close the connections; leases that are open stay open."""
        for plan in list(self._plans.values()):
            await plan.close()
        await asyncio.to_thread(self._reporter.close)
        while self._idle:
            self._idle.pop().close()

    async def __aenter__(self) -> ShardCache:
        """The cache itself, closed when the block ends."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()


class Opening:
    """A shard that is being opened."""

    def __init__(self, begin: Callable[[], Awaitable[Shard]]) -> None:
        self._begin = begin
        self._shard: Shard | None = None

    def __await__(self) -> Generator[Any, None, Shard]:
        """The opened shard."""
        return self._begin().__await__()

    async def __aenter__(self) -> Shard:
        """The opened shard; its lease runs until the block ends."""
        self._shard = await self._begin()
        return self._shard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the lease."""
        if self._shard is not None:
            self._shard.close()


class Job:
    """A prefetch that runs in the daemon."""

    def __init__(self, cache: ShardCache, name: str) -> None:
        self._cache = cache
        self.id = name
        self.state = "running"
        self.total = self.done = self.failed = self.bytes = 0
        self.errors: list[dict[str, Any]] = []

    async def refresh(self) -> Job:
        """Ask the daemon for the counts."""
        said = await self._cache.call("GET", f"/v1/jobs/{self.id}")
        self.state, self.total, self.done = said["state"], said["total"], said["done"]
        self.failed, self.bytes, self.errors = said["failed"], said["bytes"], said["errors"]
        return self

    async def wait(self, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - as the blocking client has it
        """Until the job has ended, for `timeout` seconds at the most (`WaitExpired`)."""
        pause = Pause(float("inf") if timeout is None else Pause.clock() + timeout)
        while (await self.refresh()).state == "running":
            if pause.left <= 0:
                raise WaitExpired(f"prefetch {self.id}: {self.done} of {self.total}", code="wait_expired")
            await asyncio.sleep(pause.next())
        return self


class Plan:
    """A plan, in force within `async with`; iterating it yields opened shards in order."""

    def __init__(self, cache: ShardCache, name: str, keys: list[str], holds: int) -> None:
        if holds < 1:
            raise BadRequest(f"a plan holds at least 1 shard, not {holds}", code="bad_request", source=cache.source)
        self._cache = cache
        self._epoch = process.epoch[0]
        self._descriptor = -1
        self.id = name
        self.keys = keys
        self.holds = holds
        self.position = 0

    async def renew(self) -> None:
        """Tell the daemon, and hold the file that it made."""
        if self._epoch != process.epoch[0]:
            return
        self._let_go()
        body = {"source": self._cache.source, "keys": self.keys, "position": self.position, "holds": self.holds}
        said = await self._cache.call("PUT", f"/v1/plans/{self.id}", body)
        try:
            self._descriptor = hold_plan(await self._cache.local_path(said["file"]))
        except FileNotFoundError:
            return  # ended again already; the next generation makes it anew

    def opened(self, key: str) -> None:
        """A shard was opened; when it is the plan's next, its place moves."""
        if self.position < len(self.keys) and self.keys[self.position] == key and self._epoch == process.epoch[0]:
            self.position += 1
            self._cache.place(self.id, self.position)

    async def __aiter__(self) -> AsyncIterator[Shard]:
        """Opened shards from the plan's place on, in its order."""
        out: list[Shard] = []
        try:
            while self.position < len(self.keys):
                while len(out) >= self.holds:
                    out.pop(0).close()
                shard = await self._cache.open(self.keys[self.position])
                out.append(shard)
                yield shard
        finally:
            for shard in out:
                shard.close()

    async def close(self) -> None:
        """End the plan."""
        if self._epoch == process.epoch[0] and self._cache.forget(self.id):
            self._let_go()
            try:
                await asyncio.wait_for(self._cache.call("DELETE", f"/v1/plans/{self.id}"), 1.0)
            except (CacheError, TimeoutError):
                return  # its file is free: the daemon ends it by itself

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            give_back(descriptor)

    def forked(self) -> None:
        """In a forked child: the plan is the parent's."""
        self._descriptor = -1

    async def __aenter__(self) -> Plan:
        """The plan, in force."""
        self._cache._plans[self.id] = self  # noqa: SLF001 - one module
        await self.renew()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the plan."""
        await self.close()
