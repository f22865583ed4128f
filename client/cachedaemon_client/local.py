"""What a reader does without the daemon: find the path, lease it, tell of its use. The base of both clients."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, Generic, TypeVar

from cachedaemon_client import places, process, view
from cachedaemon_client.errors import BadRequest, CacheError, DaemonUnavailable, LocksNotShared, Refused, SourceUnknown
from cachedaemon_client.folder import WHOLE, OpenFolder
from cachedaemon_client.lease import Busy, Gone, give_back, take
from cachedaemon_client.names import SOURCE_NAMES, is_source, name_of, unversioned
from cachedaemon_client.plan import Order
from cachedaemon_client.reporter import Reporter
from cachedaemon_client.shard import Shard
from cachedaemon_client.view import View

PATHS = 1 << 17
"""Paths that are remembered at the most."""
ASTRAY = "astray"
"""Code of the error that an answer is another call's."""
LONGEST_WAIT = 7 * 86400.0
"""Seconds: what the daemon allows."""


P = TypeVar("P", bound=Order)


class Local(Generic[P]):
    """One source of the node's daemon, as far as it can be used without asking. Pickled by its settings."""

    def __init__(
        self,
        source: str,
        *,
        socket: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        wait: float = 600,
    ) -> None:
        if not is_source(source):
            message = f"{source!r} cannot be a source's name: allowed are {SOURCE_NAMES}"
            raise BadRequest(message, code="bad_request", source=source)
        self.source = source
        self.wait = _seconds(wait, source)
        try:
            self.socket = places.socket_path(socket)
        except ValueError as cause:
            raise BadRequest(str(cause), code="bad_request", source=source) from None
        self._folder = places.cache_folder(cache_dir)
        # What was said here goes along to another process; what was not is found there.
        self._given = (self.socket if socket is not None else None, self._folder if cache_dir is not None else None)
        self._reporter = Reporter(source, self.socket)
        self._begin()
        process.forkables.add(self)

    def _begin(self) -> None:
        self._paths: dict[str, tuple[str, str, OpenFolder]] = {}
        self._view: View | None = None
        self._generation: str | None = None
        self._heard: str | None = None
        self._begun: dict[P, bool] = {}
        self._running: tuple[P, ...] = ()
        self._uses = self._reporter.uses
        self._due = self._reporter.due
        self._shards = WHOLE
        self._is_other = False

    def open(self, key: str) -> Shard:
        """Lease a shard, waiting until it is local. Use it in a `with` block, or close it.

        A hit is all here: it asks nobody, and every line of it is paid for each time.
        """
        try:
            name, path, folder = self._paths[key]
            shard = Shard(self, key, path, True)
            shard._descriptor, shard._stat = take(name, folder.descriptor)  # noqa: SLF001 - see `Shard`
        except (KeyError, Gone, Busy):
            pass
        except OSError as cause:
            raise self._unusable(key, cause) from None
        else:
            for plan in self._running:
                if plan.ahead == key:
                    plan.advance()
            now = monotonic()
            self._uses.append((key, now))
            if now >= self._due[0] or len(self._uses) >= self._due[1]:
                self._report()
            return shard
        return self._missed(key)

    def _unusable(self, key: str, cause: OSError) -> CacheError:
        """What a reader is told that cannot open a shard which is there."""
        if isinstance(cause, PermissionError):
            return Refused(f"{self.source}/{key}: {cause}", code="forbidden", source=self.source, key=key)
        return CacheError(f"{self.source}/{key} cannot be opened: {cause}", code="local", source=self.source, key=key)

    def _missed(self, key: str) -> Shard:
        """A shard that could not be leased at once."""
        raise NotImplementedError

    def keys_of(self, keys: Iterable[str]) -> list[str]:
        """Several keys, as a list. A single one would be taken for its letters: `BadRequest`."""
        if isinstance(keys, (str, bytes)):
            message = f"{keys!r} is one key: allowed is a list of keys, such as [{keys!r}]"
            raise BadRequest(message, code="bad_request", source=self.source)
        return list(keys)

    def path_of(self, key: str) -> str | None:
        """Where a shard may be leased without asking; None while the daemon must be asked.

        Another thread may learn of another daemon at any line of this: what is noted then is noted with what it saw.
        """
        paths = self._paths
        known = self._view or self._look()
        if known is None or self.source not in known.direct:
            return None
        try:
            path = known.path_of(self.source, key)
        except ValueError as cause:
            raise BadRequest(str(cause), code="bad_request", source=self.source, key=key) from None
        folder, shards = path.rpartition("/")[0], self._shards
        if not shards.serves(folder):
            shards = self._shards = OpenFolder.of(folder)
            paths.clear()
        if len(paths) >= PATHS:
            paths.clear()
        paths[key] = (shards.name_of(path), path, shards)
        return path

    def is_local(self, key: str) -> bool:
        """Whether a shard can be leased now."""
        path = self.path_of(key)
        if path is None:
            return False
        try:
            give_back(take(path)[0])
        except (Gone, Busy):
            return False
        except OSError as cause:
            raise self._unusable(key, cause) from None
        return True

    def lease(self, said: dict[str, Any], key: str) -> Shard | None:
        """Lease what an answer to `acquire` named; None when it was evicted again meanwhile."""
        path = self._here(said["path"], key)
        if unversioned(path.rpartition("/")[2]) != name_of(key):
            message = f"{self.source}/{key}: the answer is another shard's: {path}"
            raise CacheError(message, code=ASTRAY, source=self.source, key=key, retryable=True)
        shard = Shard(self, key, path, said["result"] == "hit")
        try:
            shard._descriptor, shard._stat = take(path)  # noqa: SLF001 - see `Shard`
        except (Gone, Busy):
            return None
        except OSError as cause:
            raise self._unusable(key, cause) from None
        if self._shards.is_stale:
            self._paths.clear()  # somebody removed the folder: it is opened anew with the next hit
        return shard

    def _here(self, path: str, key: str | None = None) -> str:
        """A path of the daemon's, as this process sees it; `LocksNotShared` where a lease would protect nothing."""
        if self._view is None:
            return path
        if self._view.why_not:
            raise LocksNotShared(self._view.why_not, code="locks_not_shared", source=self.source, key=key)
        return self._view.local(path)

    def renew(self, key: str) -> Shard:
        """Lease a shard anew, after the daemon has looked at it."""
        raise NotImplementedError

    # ---- what is known of the daemon

    @property
    def archives(self) -> str:
        """What the source does with archives: index, unpack or opaque."""
        return self._view.archives.get(self.source, "index") if self._view else "index"

    def _look(self) -> View | None:
        """The view by the cache directory alone, where that was named."""
        if self._folder is not None and (known := view.from_folder(self._folder)) is not None:
            self._see(known)
        return self._view

    def is_stale(self, generation: str | None) -> bool:
        """Whether an answer of this generation makes what was read of the daemon doubtful."""
        return generation is not None and generation != self._generation

    def adopt(self, hello: dict[str, Any], generation: str | None) -> None:
        """Take what the daemon answered to `hello`. Raises `SourceUnknown`."""
        self._generation = self._heard = self._reporter.generation = generation
        self._is_other = False
        if self.source not in hello["sources"]:
            self._see(None)
            allowed = ", ".join(sorted(hello["sources"])) or "none"
            message = f"the daemon has no source {self.source!r}; it has: {allowed}"
            raise SourceUnknown(message, code="unknown_source", source=self.source)
        self._see(view.from_hello(self._folder or hello["cache_dir"], hello))

    def _see(self, known: View | None) -> None:
        """From now on this is what is known of the daemon."""
        self._view = known
        process.bid_farewell_in_workers()
        if known is not None:
            process.folders.add(os.path.realpath(known.folder) + "/")
        self._shards = WHOLE
        self._paths = {}

    def _report(self) -> None:
        """Tell of the uses; what the answer to an earlier report says may make what is known doubtful.

        The word on the disk is taken at once. Only the daemon itself can say whether that folder is still its own: it is
        greeted before long (`_is_other`).
        """
        self._reporter.flush()
        heard = self._reporter.generation
        if heard is not None and heard != self._heard:
            self._heard = heard
            self._is_other = self._view is not None or bool(self._running)
            if self._view is not None:
                self._see(view.from_folder(self._view.folder, self._view))

    # ---- plans

    def moved(self, key: str) -> None:
        """A shard was opened: the plans whose next key it is move on."""
        for plan in self._running:
            if plan.ahead == key:
                plan.advance()

    def start(self, plan: P) -> None:
        """The plan is in force: opening its next key moves its place. What the daemon has against it is said once, here."""
        self._begun[plan] = True
        self._note_running()
        self._reporter.follow(plan)
        plan.warn()

    def forget(self, plan: P) -> bool:
        """The plan has ended; False when it had before."""
        self._reporter.forget(plan)
        was = self._begun.pop(plan, False)
        self._note_running()
        return was

    def _note_running(self) -> None:
        """What each hit goes through. Whoever notes it last, of several threads or a finalizer, notes what is true."""
        while self._running != (now := tuple(list(self._begun))):  # noqa: C414 - tuple(dict) may collect as it begins
            self._running = now

    @contextlib.contextmanager
    def mending(self) -> Iterator[None]:
        """The daemon is greeted, and plans are made again, on the way of a hit, which does not fail with them.

        A daemon that has gone again is told when it answers next; one that refuses says why to the next `acquire`.
        """
        try:
            yield
        except DaemonUnavailable:
            self._heard = self._reporter.generation = None
        except CacheError:
            return

    # ---- life

    def forked(self) -> None:
        """In a forked child: plans, connections and what was read of the daemon are made anew."""
        for plan in self._running:
            plan.forked()
        self._begin()

    @property
    def settings(self) -> dict[str, Any]:
        """What was said when it was made, but for the source: for another client of its kind, or of the other."""
        socket, cache_dir = self._given
        return {"socket": socket, "cache_dir": cache_dir, "wait": self.wait}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its settings."""
        socket, cache_dir = self._given
        return (_made, (type(self), self.source, socket, cache_dir, self.wait))

    def __repr__(self) -> str:
        """For people."""
        return f"{type(self).__name__}({self.source!r}, socket={self.socket!r})"


def _seconds(wait: Any, source: str) -> float:
    """A time to wait that can be meant, as far as the daemon allows it."""
    if not hasattr(wait, "__float__") or not wait >= 0:  # a number of any kind; neither None nor text is one
        message = f"wait = {wait!r}: allowed are 0 seconds or more; float('inf') is as long as can be"
        raise BadRequest(message, code="bad_request", source=source)
    return min(float(wait), LONGEST_WAIT)


def _made(
    kind: type[Local[Any]],
    source: str,
    socket: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    wait: float,
) -> Local[Any]:
    return kind(source, socket=socket, cache_dir=cache_dir, wait=wait)
