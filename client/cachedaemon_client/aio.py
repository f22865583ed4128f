"""The same client for asyncio: nothing blocks the loop but the few microseconds of a hit.

`open` can be awaited, or used in `async with`:

    cache = ShardCache("imagenet")
    async with cache.open("images-17.zip") as shard:
        data = shard.read(0)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from cachedaemon_client import process
from cachedaemon_client.aio_job import Job
from cachedaemon_client.aio_link import Link
from cachedaemon_client.aio_plan import Plan
from cachedaemon_client.cache import RENEWAL, TRIES, lost
from cachedaemon_client.cache import ShardCache as BlockingCache
from cachedaemon_client.connection import ENDED, TELL, Pause, Tries
from cachedaemon_client.local import Local
from cachedaemon_client.ready import Arrivals
from cachedaemon_client.shard import Shard
from cachedaemon_client.wire import GENERATION, Answer, request

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.aio_watch import Watch

__all__ = ["Job", "Plan", "ShardCache"]

IDLE = 16
"""Connections that are kept for later calls."""


class ShardCache(Local[Plan]):
    """One source of the node's daemon. `wait` in seconds, as for the blocking client."""

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
        self._idle: list[Link] = []
        self._links: WeakSet[Link] = WeakSet()
        self._partings: set[asyncio.Task[None]] = set()
        self._greeting: asyncio.Task[None] | None = None

    # ---- shards

    def open(self, key: str) -> Opening:  # type: ignore[override]
        """Lease a shard: `await` it and close it, or use it in `async with`."""
        return Opening(lambda: self._open(key))

    async def _open(self, key: str) -> Shard:
        shard: Shard | None = super().open(key)
        if shard is None and key not in self._paths:
            await self.learn()
            if self.path_of(key) is not None:
                shard = super().open(key)
        if shard is None:
            shard = await self.acquire(key)
            self.moved(key)
        if self._is_other:
            await self._mend(shard)
        return shard

    def _missed(self, key: str) -> Shard:  # noqa: ARG002
        return None  # type: ignore[return-value]  # whoever awaits asks the daemon

    async def acquire(self, key: str) -> Shard:
        """Lease a shard by asking the daemon, whatever is local."""
        pause = Pause.of(self.wait)
        for _ in range(1 + TRIES):
            shard = await self._acquire_once(key, pause.left)
            if shard is not None:
                return shard
        raise lost(self.source, key)

    async def _acquire_once(self, key: str, wait: float) -> Shard | None:
        self._report()
        body = {"source": self.source, "key": key, "wait": wait}
        said, generation, link = await self._exchange("POST", "/v1/acquire", body, key=key, wait=wait)
        try:
            if self.is_stale(generation):
                await self._greet()
            return self.lease(said, key)
        finally:
            link.tell(request("POST", "/v1/touch", {"source": self.source, "used": [[key, 0]]}))
            self._keep(link)

    def renew(self, key: str) -> Shard:
        """Lease a damaged shard anew. This blocks: it happens when somebody changed the cache behind the daemon's back."""
        with BlockingCache(self.source, socket=self._given[0], cache_dir=self._given[1], wait=self.wait) as cache:
            return cache.renew(key)

    async def prefetch(self, keys: Iterable[str]) -> Job:
        """Have shards fetched in the background, in this order, as far as they fit."""
        wanted = self.keys_of(keys)
        said = await self.call("POST", "/v1/prefetch", {"source": self.source, "keys": wanted})
        return Job(self, said["job"], wanted)

    def plan(self, keys: Iterable[str], *, holds: int = 1) -> Plan:
        """The order in which this process will open shards; in force once it is awaited, or within `async with`."""
        return Plan(self, self.keys_of(keys), holds)

    async def as_ready(self, keys: Iterable[str]) -> AsyncIterator[Shard]:
        """Opened shards as they become local; each is closed when the next is asked for."""
        wanted = self.keys_of(keys)
        await self.learn()
        arrivals = Arrivals(self, wanted)
        job: Job | None = None
        while arrivals.left:
            if job is None or job.state != "running":
                job = await self.prefetch(arrivals.left)
            for key in await self._next(arrivals, job) or arrivals.in_earnest():
                del arrivals.left[key]
                async with self.open(key) as shard:
                    yield shard

    async def _next(self, arrivals: Arrivals, job: Job) -> list[str]:
        """Keys that are local; none when the job has ended without."""
        pause = Pause.of(self.wait)
        while not (here := arrivals.of(await job.refresh())):
            if job.state != "running" or pause.left <= 0:
                break
            await asyncio.sleep(pause.next())
        return here

    def watch(self, *, idle: float | None = None) -> Watch:
        """Opened shards of a watched folder in the order in which their files appear, for `async for`. See `Watch`.

        It ends after `idle` seconds without a new file; None: never.
        """
        from cachedaemon_client.aio_watch import Watch  # noqa: PLC0415 - most readers do without

        return Watch(self, idle)

    async def status(self) -> dict[str, Any]:
        """The daemon's state, as `GET /v1/status` says it."""
        said: dict[str, Any] = await self.call("GET", "/v1/status")
        return said

    # ---- the daemon

    async def learn(self) -> None:
        """Know where shards lie: by the cache directory, where it was named, or by asking."""
        if self._view is None and self._look() is None:
            await self._greet()

    async def _greet(self) -> None:
        """Read what the daemon is. Who wants to know at the same time shares one answer."""
        if self._greeting is None or self._greeting.done():
            self._greeting = asyncio.get_running_loop().create_task(self._hello(self.wait, self.wait))
            self._greeting.add_done_callback(lambda task: task.cancelled() or task.exception())
        greeting = self._greeting
        await asyncio.wait({greeting})
        greeting.result()

    async def _hello(self, wait: float, renewal: float) -> None:
        """Read what the daemon is; make the plans again when it is another one than before."""
        hello, generation, link = await self._exchange("GET", "/v1/hello", wait=wait)
        self._keep(link)
        self.adopt(hello, generation)
        for plan in self._running:
            await plan.renew(renewal)

    async def _mend(self, shard: Shard) -> None:
        """Greet another daemon and make the plans again, on the way of a shard that is leased already."""
        self._is_other = False
        try:
            with self.mending():
                await self._hello(0.0, min(self.wait, RENEWAL))
        except BaseException:
            shard.close()
            raise

    async def local_path(self, path: str) -> str:
        """A path of the daemon's, as this process sees it."""
        if self._generation is None:
            await self._greet()
        return self._here(path)

    async def call(self, method: str, target: str, body: Any = None, *, wait: float | None = None) -> Any:
        """A call to the daemon, waiting out its restart; the JSON body, or a `CacheError`."""
        said, _, link = await self._exchange(method, target, body, wait=wait)
        self._keep(link)
        return said

    async def _exchange(
        self, method: str, target: str, body: Any = None, *, key: str | None = None, wait: float | None = None
    ) -> tuple[Any, str | None, Link]:
        """A call, repeated while the daemon restarts: JSON body, generation, and the connection it went over."""
        tries = Tries(self.socket, body, self.wait if wait is None else wait, self.source, key)
        while True:
            try:
                answer, link = await self._ask(request(method, target, tries.body), tries.seconds)
                said = answer.json()
            except (OSError, ValueError) as cause:
                pause = tries.failed(cause)
            else:
                if answer.status < 400:
                    return said, answer.headers.get(GENERATION), link
                self._keep(link)
                pause = tries.refused(answer.status, said)
            await asyncio.sleep(pause)

    async def _ask(self, data: bytes, seconds: float) -> tuple[Answer, Link]:
        """One call over a connection that is idle; when that has gone meanwhile, so have the others: over a new one."""
        process.settle()
        if self._idle:
            try:
                return await self._ask_over(self._idle.pop(), data, seconds)
            except ENDED:
                self._close_idle()
        link = Link(self.socket)
        self._links.add(link)
        return await self._ask_over(link, data, seconds)

    async def _ask_over(self, link: Link, data: bytes, seconds: float) -> tuple[Answer, Link]:
        try:
            return await link.ask(data, seconds), link
        except BaseException:  # a cancelled call too: its answer would be taken for the next one's
            link.close()
            raise

    def _keep(self, link: Link) -> None:
        if len(self._idle) < IDLE:
            self._idle.append(link)
        else:
            parting = asyncio.get_running_loop().create_task(link.farewell(TELL))
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    # ---- life

    def forked(self) -> None:
        """In a forked child: connections are the parent's, and nothing of its loop can be used."""
        for link in self._links:
            link.close()
        super().forked()

    async def close(self) -> None:
        """End the plans, tell the last uses, close the connections; leases that are open stay open."""
        heard = True
        for plan in self._running:
            heard = await plan.end(tell=heard)
        await asyncio.to_thread(self._reporter.close)
        if self._partings:
            await asyncio.wait(self._partings)
        self._close_idle()

    async def __aenter__(self) -> Self:
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
