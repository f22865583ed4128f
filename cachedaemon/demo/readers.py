"""Three ways for a trainer to get its samples. Each yields the samples of an epoch, in the same order."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from cachedaemon.demo.dataset import Sample
from cachedaemon_client import ShardCache

A = TypeVar("A")
B = TypeVar("B")

THREADS = 2
"""Requests of one trainer at once, in both ways without the daemon."""

Wanted = list[tuple[str, list[Sample]]]
"""Shards in order, and the samples of each that are this trainer's."""


class Reader(Protocol):
    """A way to get samples."""

    opened: int
    """Shards that were opened."""
    hits: int
    """Those of them that were local already."""

    def expect(self, keys: list[str]) -> None:
        """What will be read: the shards of all epochs, in order. Told once, before anything is read."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Sample, bytes]]:
        """Samples of an epoch, in order."""

    def close(self) -> None:
        """Let go of connections."""


class ThroughDaemon:
    """Shards are leased from the daemon, and read in place."""

    def __init__(self, source: str, socket: str) -> None:
        self.opened = self.hits = 0
        self._cache = ShardCache(source, socket=socket, wait=60)

    def expect(self, keys: list[str]) -> None:
        """Announce it: the daemon brings what is next meanwhile, and keeps what is wanted soonest."""
        self._cache.plan(keys)

    def read(self, wanted: Wanted) -> Iterator[tuple[Sample, bytes]]:
        """Open one shard after the other, which moves the plan's place."""
        for key, samples in wanted:
            with self._cache.open(key) as shard:
                self.opened += 1
                self.hits += shard.hit
                for sample in samples:
                    yield sample, shard.read(sample.name)

    def close(self) -> None:
        """Tell the daemon the last uses, and that the plan has ended."""
        self._cache.close()


class _Direct:
    """Requests to the origin, a few at once."""

    opened = hits = 0

    def __init__(self, port: int) -> None:
        self._port = port
        self._links = threading.local()
        self._threads = ThreadPoolExecutor(THREADS)

    def expect(self, keys: list[str]) -> None:
        """The origin has no use for it."""

    def _get(self, key: str, headers: dict[str, str] | None = None) -> bytes:
        link: http.client.HTTPConnection | None = getattr(self._links, "link", None)
        if link is None:
            link = self._links.link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        link.request("GET", f"/{key}", headers=headers or {})
        answer = link.getresponse()
        body = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise ConnectionError(f"{key}: the origin answered {answer.status}")
        return body

    def _ahead(self, work: Callable[[A], B], items: Iterable[A], most: int) -> Iterator[B]:
        """Results in order, with at most `most` of them begun and not yet taken."""
        begun: deque[Future[B]] = deque()
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [one.cancel() for one in begun])
            for item in items:
                begun.append(self._threads.submit(work, item))
                if len(begun) >= most:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


class WholeShards(_Direct):
    """Each trainer fetches every shard for itself, and reads from its own copy."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Sample, bytes]]:
        """Fetch the next shards while one is read."""
        for (_, samples), body in zip(wanted, self._ahead(self._get, (key for key, _ in wanted), THREADS), strict=True):
            for sample in samples:
                yield sample, body[sample.offset : sample.offset + sample.length]


class SingleSamples(_Direct):
    """One request per sample, for just its bytes."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Sample, bytes]]:
        """Ask for the next samples while one is used."""
        places = [(key, sample) for key, samples in wanted for sample in samples]
        return self._ahead(self._one, places, 4 * THREADS)

    def _one(self, place: tuple[str, Sample]) -> tuple[Sample, bytes]:
        key, sample = place
        return sample, self._get(key, {"Range": f"bytes={sample.offset}-{sample.offset + sample.length - 1}"})


def ways(source: str, socket: str, port: int) -> dict[str, Callable[[], Reader]]:
    """All ways by name."""
    return {
        "daemon": lambda: ThroughDaemon(source, socket),
        "shards": lambda: WholeShards(port),
        "samples": lambda: SingleSamples(port),
    }
