"""The reader's side: lease what is local without a round trip, ask the daemon for the rest."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachedaemon_client import process
from cachedaemon_client.connection import TELL, Connection, call
from cachedaemon_client.errors import CacheError
from cachedaemon_client.job import Job
from cachedaemon_client.local import ASTRAY, Local
from cachedaemon_client.plan import Plan
from cachedaemon_client.ready import as_ready
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.watch import Watch

TRIES = 3
"""How often a shard is asked for again that was evicted before it could be leased."""
RENEWAL = 10.0
"""Seconds that an `open` spends at the most on making plans again for another daemon."""


class ShardCache(Local[Plan]):
    """One source of the node's daemon. Cheap to make; safe to share between threads, to fork with and to pickle.

    `wait` is how many seconds a shard, or a daemon that restarts, is waited for.
    """

    def __init__(
        self,
        source: str,
        *,
        socket: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        wait: float = 600,
    ) -> None:
        super().__init__(source, socket=socket, cache_dir=cache_dir, wait=wait)
        process.farewells.add(self)

    def _begin(self) -> None:
        super()._begin()
        self._links = threading.local()

    # ---- shards

    def _missed(self, key: str) -> Shard:
        """A shard that could not be leased at once. The first time, the daemon has to say where its shards are."""
        self.learn()
        if key not in self._paths and self.path_of(key) is not None:
            return self.open(key)
        shard = self.acquire(key)
        self.moved(key)
        return shard

    def acquire(self, key: str, *, lasting: bool = False) -> Shard:
        """Lease a shard by asking the daemon, whatever is local.

        The daemon then gives up its own lease, unless that is to be `lasting` for its grace: for a program that opens the
        path when this one has ended.
        """
        deadline = time.monotonic() + self.wait
        for _ in range(1 + TRIES):
            shard = self._acquire_once(key, max(0.0, deadline - time.monotonic()), lasting=lasting)
            if shard is not None:
                return shard
        raise lost(self.source, key)

    def renew(self, key: str) -> Shard:
        """Lease a shard anew, after the daemon has looked at it."""
        return self.acquire(key)

    def _acquire_once(self, key: str, wait: float, *, lasting: bool) -> Shard | None:
        self._report()
        link, body = self._link(), {"source": self.source, "key": key, "wait": wait}
        said = call(link, "POST", "/v1/acquire", body, wait=wait, source=self.source, key=key)
        try:
            if self.is_stale(link.generation):
                self._greet()
            return self.lease(said, key)
        except CacheError as cause:
            if cause.code == ASTRAY:
                link.close()  # were it an answer late, it would stay so
            raise
        finally:
            if not lasting:
                link.tell("POST", "/v1/touch", {"source": self.source, "used": [[key, 0]]})

    def prefetch(self, keys: Iterable[str]) -> Job:
        """Have shards fetched in the background, in this order, as far as they fit."""
        wanted = self.keys_of(keys)
        return Job(self, self.call("POST", "/v1/prefetch", {"source": self.source, "keys": wanted})["job"], wanted)

    def plan(self, keys: Iterable[str], *, holds: int = 1) -> Plan:
        """Announce the order in which this process will open shards; `holds` of them at once. In force at once."""
        plan = Plan(self, self.keys_of(keys), holds)
        plan.renew()
        self.start(plan)
        return plan

    def as_ready(self, keys: Iterable[str]) -> Iterator[Shard]:
        """Opened shards in the order in which they become local; each is closed when the next is asked for."""
        return as_ready(self, self.keys_of(keys))

    def watch(self, *, idle: float | None = None) -> Watch:
        """Opened shards of a watched folder in the order in which their files appear, for as long as some do.

        It ends after `idle` seconds without a new file; None: never. See `Watch`.
        """
        from cachedaemon_client.watch import Watch  # noqa: PLC0415 - most readers do without

        return Watch(self, idle)

    def status(self) -> dict[str, Any]:
        """The daemon's state, as `GET /v1/status` says it."""
        said: dict[str, Any] = self.call("GET", "/v1/status")
        return said

    # ---- the daemon

    def learn(self) -> None:
        """Know where shards lie: by the cache directory, where it was named, or by asking."""
        if self._view is None and self._look() is None:
            self._greet()

    def local_path(self, path: str) -> str:
        """A path of the daemon's, as this process sees it."""
        if self._view is None or self.is_stale(self._link().generation):
            self._greet()
        return self._here(path)

    def _greet(self) -> None:
        """Read what the daemon is; make the plans again when it is another one than before."""
        self._hear(self.wait, self.wait)

    def _hear(self, wait: float, renewal: float) -> None:
        link = self._link()
        self.adopt(call(link, "GET", "/v1/hello", wait=wait, source=self.source), link.generation)
        for plan in self._running:
            plan.renew(renewal)

    def _report(self) -> None:
        """Tell of the uses; when the daemon turns out to be another one, greet it and make the plans again."""
        super()._report()
        if self._is_other:
            self._is_other = False
            with self.mending():
                self._hear(0.0, min(self.wait, RENEWAL))

    def _link(self) -> Connection:
        """A connection of this thread that nothing is under way on.

        A signal handler, or a finalizer, may call in the middle of a call of the same thread: it gets another one.
        """
        own = self._own_links()
        for link in own:
            if not link.busy:
                return link
        own.append(Connection(self.socket))
        return own[-1]

    def _own_links(self) -> list[Connection]:
        own: list[Connection] = self._links.__dict__.setdefault("own", [])
        return own

    def call(self, method: str, target: str, body: Any = None, *, wait: float | None = None) -> Any:
        """A call to the daemon, waiting out its restart; the JSON body, or a `CacheError`."""
        wait = self.wait if wait is None else wait
        return call(self._link(), method, target, body, wait=wait, source=self.source)

    def tell(self, method: str, target: str, seconds: float = TELL) -> bool:
        """A call whose answer nobody waits for, in so many seconds at the most; False when it was lost."""
        return self._link().tell(method, target, None, seconds=seconds)

    # ---- life

    def close(self) -> None:
        """Tell the daemon the last uses and close the connections; leases that are open stay open."""
        self.farewell(time.monotonic() + process.FAREWELL)

    def flush(self) -> None:
        """Tell the uses of this process so far, as far as the daemon takes them at once."""
        self._reporter.flush()

    def farewell(self, deadline: float) -> None:
        """Close it, and wait for the daemon until the deadline (monotonic seconds) at the most."""
        heard = True
        for plan in self._running:
            heard = plan.end(tell=heard, deadline=deadline)  # a silent daemon is waited for once
        self._reporter.farewell(deadline)
        for link in self._own_links():
            link.close()

    def __enter__(self) -> Self:
        """The cache itself, closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def lost(source: str, key: str) -> CacheError:
    """What a reader is told whose shard is always gone before it can lease it."""
    message = f"{source}/{key} was evicted {1 + TRIES} times before it could be leased: the cap is too small"
    return CacheError(message, code="lost", source=source, key=key, retryable=True)
