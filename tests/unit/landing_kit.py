"""A landing in a test: its surroundings, and an origin that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest
import xxhash

from cachedaemon import fetch, streams
from cachedaemon.entries import Flight
from cachedaemon.errors import Cut
from cachedaemon.landing import Landing
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins import Stream
from cachedaemon.store import Staged, Store
from cachedaemon.store.disk import DIGEST
from cachedaemon.turns import Turns
from tests.fakes import content

K = 1024
PIECE = 16 * K


class Scripted:
    """An object of an origin that gives parts. Each answer is cut at the next of `cuts`, an offset of the object, or whole.

    `refusals` are raised by the next requests for parts, None lets one pass. With a `gate` the opened stream stops before
    that byte until the gate is lifted.
    """

    def __init__(
        self,
        size: int,
        *,
        cuts: Iterable[int | None] = (),
        refusals: Iterable[Exception | None] = (),
        has_parts: bool = True,
        announced: int | None = -1,
        chance: random.Random | None = None,
        gate: int | None = None,
    ) -> None:
        self.data = content.data("k", size)
        self.size = size if announced == -1 else announced
        self.validators = Validators(etag='"1"')
        self.digests: tuple[Digest, ...] = ()
        self.has_parts = has_parts
        self.asked: list[tuple[int, int]] = []
        self.open = self.peak = 0
        self.cuts = iter(cuts)
        self.refusals = iter(refusals)
        self.gate = gate
        self.lifted = asyncio.Event()
        self.more = b""
        """What is sent behind the end of each answer."""
        self.end: Exception | None = None
        """What the opened stream raises after its last byte."""
        self._chance = chance

    @contextlib.contextmanager
    def _connection(self) -> Iterator[None]:
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            yield
        finally:
            self.open -= 1

    async def pieces(self) -> AsyncIterator[list[bytes | memoryview]]:
        with self._connection():
            async for batch in self._batches(0, len(self.data), self.gate):
                yield batch
            if self.end is not None:
                raise self.end

    @contextlib.asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[bytes | memoryview]]]:
        assert 0 <= start < stop <= len(self.data), "never an empty or backwards range"
        self.asked.append((start, stop))
        with self._connection():
            await self._breathe()
            if (refusal := next(self.refusals, None)) is not None:
                raise refusal
            async with contextlib.aclosing(self._batches(start, stop, None)) as batches:
                yield batches

    async def _batches(self, start: int, stop: int, gate: int | None) -> AsyncIterator[list[bytes | memoryview]]:
        cut = next(self.cuts, None)
        end = stop if cut is None or not start <= cut < stop else cut
        for at in range(start, end, PIECE):
            if gate is not None and at >= gate:
                await self.lifted.wait()
            await self._breathe()
            piece = memoryview(self.data)[at : min(at + PIECE, end)]
            yield [piece[: len(piece) // 3], piece[len(piece) // 3 :]]
        if end < stop or cut == stop:
            raise Cut(f"s/k: got {end} of {stop} bytes: the connection ended")
        if self.more:
            yield [self.more]

    async def _breathe(self) -> None:
        for _ in range(self._chance.randrange(6) if self._chance else 1):
            await asyncio.sleep(0)
        if self._chance and self._chance.random() < 0.05:
            await asyncio.sleep(0.001)


class Ground:
    """What a flight needs around it: a store, turns, and what becomes of it."""

    def __init__(self, store: Store, *, total: int = 4, most: int = 4, retries: int = 3) -> None:
        self.store = store
        self.turns = Turns(total, {"s": most, "t": 4}, {})
        self.metrics = Metrics("test")
        self.retries = retries
        self.flight = Flight(Ref("s", "k"), 1, demand=True)

    async def land(self, stream: Stream, data: bytes | None = None) -> Staged:
        """One try; what came is `data`, or what the script says."""
        if data is None:
            assert isinstance(stream, Scripted)
            data = stream.data
        self.flight.empty()
        async with contextlib.AsyncExitStack() as stack, self.turns.turn(self.flight) as turn:
            landing = Landing(
                self.store,
                lambda: stack.enter_async_context(self.store.staging("s")),
                self.flight,
                self.metrics,
                most=0,
            )
            async with contextlib.aclosing(landing.needs(stream, turn, self.retries)) as needs:
                async for need in needs:
                    assert need.bytes >= self.flight.arrived
            await asyncio.to_thread(self.check, landing.staged, data)
        return landing.staged

    def check(self, staged: Staged, data: bytes) -> None:
        """All bytes are there, as they are."""
        size = len(data)
        assert Path(staged.path).read_bytes() == data
        assert (staged.size, staged.digest) == (size, DIGEST + xxhash.xxh3_128_hexdigest(data))
        assert self.flight.arrived == self.flight.written == size

    def idle(self) -> bool:
        """No place is taken."""
        return not any(self.turns._running.values())


async def until(state: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not state():  # noqa: ASYNC110 - what is waited for goes on in the same loop and says nothing
            await asyncio.sleep(0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is small and comes at once: objects from 256 KiB on are wide, every look finds that more streams help."""
    monkeypatch.setattr(fetch, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(streams, "WIDE", 256 * K)
    monkeypatch.setattr(streams, "MOST_PART", 64 * K)
    monkeypatch.setattr(streams, "LEAST_PART", 8 * K)
    monkeypatch.setattr(streams, "PROGRESS", 32 * K)
    monkeypatch.setattr(streams, "LOOK", 0.002)
    monkeypatch.setattr(streams, "QUICK", 1e-12)
    monkeypatch.setattr(streams, "LEAD", 0.0)
