"""An object of a known size on its way to staging: resumed where it was cut, and by several streams where that is quicker.

The stream that the origin opened begins with the whole object before it. Where it alone would take long, a further stream
asks for a part farther on, as a probe; once the origin has answered with just that part, the first stream ends there, and
all of them take part after part, in order. Further streams use places that nobody waits for. What one of them cannot bring
it leaves to the others; the first stream, which has the flight's own place, is the one that bears failures and retries.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from cachedaemon.entries import Flight
from cachedaemon.errors import CacheDaemonError, Changed, Cut, Missing, NoParts, OriginRefused, OriginUnavailable
from cachedaemon.fetch import bear, pause
from cachedaemon.metrics import Metrics
from cachedaemon.origins import Piece, Stream
from cachedaemon.store import Staged, Store
from cachedaemon.turns import Turn

WIDE = 32 << 20
"""Bytes from which on an object may be brought by several streams."""
PART_TIME = 2.0
"""Seconds that a part takes about: who waits for its place has it soon, and asking for parts costs little."""
LEAST_PART, MOST_PART = 1 << 20, 64 << 20
"""Bytes of a part; those at the end are smaller, so that all streams end together."""
LOOK = 0.15
"""Seconds between two looks at how fast it goes."""
QUICK = 1.0
"""Seconds that the rest may take before more streams are wanted."""
LEAD = 0.5
"""Seconds by which a probe's part lies ahead of the first stream, at first: the answer should come before it gets there."""
PROGRESS = 1 << 20
"""Bytes after which a failure is the first one again."""


@dataclass(slots=True, eq=False)
class Claim:
    """Bytes that one stream brings: from `at`, which moves on, up to `stop`, which may come nearer."""

    at: int
    stop: int

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return self.stop - self.at


class Free:
    """The bytes that no stream brings yet, given out in order."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Nobody brings these bytes (any more)."""
        if start < stop:
            heapq.heappush(self._spans, (start, stop))

    def take(self, most: int, streams: int) -> Claim | None:
        """The next part for one of so many streams, of so many bytes at most; None when nothing is left."""
        if not self._spans:
            return None
        start, stop = heapq.heappop(self._spans)
        left = stop - start + sum(end - begin for begin, end in self._spans)
        size = min(most, max(LEAST_PART, left // (2 * streams)))
        end = start + size if stop - start - size >= LEAST_PART else stop
        self.add(end, stop)
        return Claim(start, end)


class Sink:
    """Where the bytes of one try go: a staged file, and the account of its flight."""

    def __init__(self, store: Store, staged: Staged, flight: Flight, metrics: Metrics) -> None:
        self._store = store
        self._staged = staged
        self._flight = flight
        self._received = metrics.origin_bytes.labels(flight.ref.source)
        self._failures = metrics.fetch_failures

    def receive(self, batch: list[Piece]) -> int:
        """Count bytes that have come from the origin."""
        count = sum(len(piece) for piece in batch)
        self._received.inc(count)
        return count

    def fail(self, cause: CacheDaemonError) -> None:
        """Count a failure that is made good within the try."""
        self._failures.labels(self._flight.ref.source, cause.code).inc()

    async def put(self, claim: Claim, batch: list[Piece]) -> None:
        """Write bytes to a claim's place, and move it on."""
        start, count = claim.at, sum(len(piece) for piece in batch)
        claim.at += count  # from here on these bytes are nobody else's
        await self._store.write_at(self._staged, start, batch)
        self._flight.written += count
        self._flight.arrived += count


class Streams:
    """All streams of one try. `retries` failures in a row are borne, where the origin gives parts."""

    def __init__(self, sink: Sink, flight: Flight, stream: Stream, turn: Turn, retries: int) -> None:
        assert stream.size is not None
        self._sink = sink
        self._flight = flight
        self._stream = stream
        self._turn = turn
        self._retries = retries
        self._size = stream.size
        self._first = Claim(0, self._size)
        self._free = Free()
        self._proved = False
        """Whether the origin has answered with a part when it was asked for one."""
        self._group: asyncio.TaskGroup
        self._further: set[asyncio.Task[None]] = set()
        self._held = 0
        """Parts that further streams have in hand."""
        self._rate = 0.0
        """Bytes per second of one stream."""
        self._lead = LEAD
        self._stumbles = 0
        self._calm_until = 0.0
        """Until when no further stream begins, since one failed."""
        self._floor = flight.failed
        self._marked = 0

    async def bring(self) -> None:
        """Have all bytes in staging. Raises what the origin's streams raise, and `NoSpace`."""
        if self._size < WIDE or not self._gives_parts:
            await self._bring()
            return
        try:
            async with asyncio.TaskGroup() as self._group:
                watch = self._group.create_task(self._watch(), name=f"watch {self._flight.ref}")
                await self._bring()
                for task in (watch, *self._further):
                    task.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    @property
    def _gives_parts(self) -> bool:
        return self._stream.has_parts and self._flight.in_parts

    # ---- the first stream

    async def _bring(self) -> None:
        await self._open()
        await self._persist(self._first)
        while (claim := await self._next()) is not None:
            await self._persist(claim)

    async def _open(self) -> None:
        """The stream that is open already, as far as it comes; a cut after the last byte cuts off nothing."""
        try:
            async with _closing(self._stream.pieces()) as pieces:
                await self._read(pieces, self._first, self._size, self._turn)
        except Changed:
            raise
        except OriginUnavailable as cause:
            if self._first.left:
                await self._bear(cause)

    async def _next(self) -> Claim | None:
        """The next part. While others have all that is left, one of them may give some back."""
        while (claim := self._take()) is None and self._held:
            await asyncio.wait(self._further, return_when=asyncio.FIRST_COMPLETED)
        return claim

    async def _persist(self, claim: Claim) -> None:
        """Bring what is left of a claim, going on where it is cut. A part that cannot be had is no failure besides the cut."""
        while claim.left:
            try:
                await self._fetch(claim, self._turn)
            except (Changed, NoParts):
                self._flight.failed = max(self._floor, self._flight.failed - 1)
                raise
            except OriginUnavailable as cause:
                if claim.left:
                    await self._bear(cause)

    async def _bear(self, cause: OriginUnavailable) -> None:
        """Pause, and go on; raises the cause when it does not help, or when there were too many without progress."""
        if not self._gives_parts:
            raise cause
        resumed = self._flight.failed > self._floor
        if self._flight.arrived - self._marked >= PROGRESS:
            self._flight.failed = self._floor
        self._marked = self._flight.arrived
        self._turn.heed(cause)
        try:
            seconds = bear(self._flight, cause, self._retries)
        except OriginUnavailable:
            if not resumed:
                raise
            raise Cut(f"{self._so_far()}, and then: {self._reason(cause)}") from cause
        self._sink.fail(cause)
        self._calm_until = time.monotonic() + seconds
        await self._turn.rest(seconds)

    def _so_far(self) -> str:
        return f"{self._flight.ref}: got {self._flight.arrived} of {self._size} bytes"

    def _reason(self, cause: CacheDaemonError) -> str:
        return str(cause).removeprefix(f"{self._flight.ref}: ")

    # ---- further streams

    async def _watch(self) -> None:
        """Look again and again whether more streams would help."""
        before, began = self._flight.arrived, time.monotonic()
        while self._gives_parts:
            await asyncio.sleep(LOOK)
            arrived, now = self._flight.arrived, time.monotonic()
            if arrived > before:  # what comes seldom is measured over a longer time
                self._rate = (arrived - before) / (now - began) / (1 + len(self._further))
                before, began = arrived, now
            self._widen()

    def _widen(self) -> None:
        """Begin as many streams as would help and have a place; without a proof that parts are given, one."""
        wanted = self._wanted() if self._proved else min(2, self._wanted())
        for _ in range(wanted - 1 - len(self._further)):
            turn = self._turn.spare()
            if turn is None:
                return
            task = self._group.create_task(self._help(turn), name=f"part of {self._flight.ref}")
            self._further.add(task)
            task.add_done_callback(self._further.discard)
            task.add_done_callback(lambda _, turn=turn: turn.leave())  # type: ignore[misc]

    def _wanted(self) -> int:
        """Streams, the first one included, by which the rest would come quickly."""
        calm = time.monotonic() < self._calm_until or self._turn.is_paced()
        if calm or not self._gives_parts or not self._rate:
            return 1
        return math.ceil((self._size - self._flight.arrived) / self._rate / QUICK)

    async def _help(self, turn: Turn) -> None:
        """A further stream: part after part, as long as nobody else wants its place."""
        try:
            if not self._proved:
                await self._probe(turn)
            while self._proved and not turn.is_wanted():
                if (claim := self._take()) is None:
                    return
                with self._holding(claim):
                    await self._fetch(claim, turn)
        except (Changed, NoParts):
            raise
        except (OriginUnavailable, OriginRefused, Missing) as cause:
            self._stumble(cause, turn)

    async def _probe(self, turn: Turn) -> None:
        """Ask for a part farther on than the first stream will be by the answer."""
        start = self._first.at + max(LEAST_PART, int(self._rate * self._lead))
        stop = min(start + self._part, self._first.stop)
        if start >= stop:
            return
        try:
            async with self._stream.part(start, stop) as pieces:
                if self._first.at > start:  # it has got there before the answer: the next probe goes farther
                    self._lead *= 2
                    return
                self._first.stop, self._proved = start, True
                self._free.add(stop, self._size)
                self._widen()
                with self._holding(Claim(start, stop)) as claim:
                    await self._read(pieces, claim, stop, turn)
        except NoParts:
            self._flight.in_parts = False
            if self._proved:
                raise
        except Changed:
            self._flight.in_parts = False
            raise

    @contextmanager
    def _holding(self, claim: Claim) -> Iterator[Claim]:
        """A part in the hand of a further stream; what it has not brought by the end is left to others."""
        self._held += 1
        try:
            yield claim
        finally:
            self._held -= 1
            self._free.add(claim.at, claim.stop)

    def _stumble(self, cause: CacheDaemonError, turn: Turn) -> None:
        """A further stream failed: others bring its part, and for a while none begins."""
        self._sink.fail(cause)
        if isinstance(cause, OriginUnavailable):
            turn.heed(cause)
        self._calm_until = time.monotonic() + pause(self._stumbles, cause)
        self._stumbles += 1

    # ---- any stream

    @property
    def _part(self) -> int:
        """Bytes of a part, at the rate of now."""
        return min(MOST_PART, max(LEAST_PART, int(self._rate * PART_TIME)))

    def _take(self) -> Claim | None:
        return self._free.take(self._part, 1 + len(self._further))

    async def _fetch(self, claim: Claim, turn: Turn) -> None:
        """Bring a claim by a request of its own."""
        stop = claim.stop
        try:
            async with self._stream.part(claim.at, stop) as pieces:
                await self._read(pieces, claim, stop, turn)
        except (Changed, NoParts):
            self._flight.in_parts = False
            raise
        turn.went_well()

    async def _read(self, pieces: AsyncIterator[list[Piece]], claim: Claim, stop: int, turn: Turn) -> None:
        """Write what comes up to the claim's end. A stream up to `stop` that has the same end is heard to its own."""
        async for batch in pieces:
            count = self._sink.receive(batch)
            await turn.take(count)
            if count > stop - claim.at:
                raise Changed(f"{self._flight.ref}: got over {stop} bytes, which the origin announced")
            if claim.left:
                await self._sink.put(claim, batch if count <= claim.left else _first_of(batch, claim.left))
            if not claim.left and claim.stop < stop:
                return
        if claim.left:
            raise Cut(self._so_far())


def _first_of(batch: list[Piece], count: int) -> list[Piece]:
    """The first `count` bytes of a batch."""
    kept: list[Piece] = []
    for piece in batch:
        kept.append(memoryview(piece)[:count])
        count -= len(kept[-1])
    return kept


@asynccontextmanager
async def _closing(pieces: AsyncIterator[list[Piece]]) -> AsyncIterator[AsyncIterator[list[Piece]]]:
    """A stream that is not read to its end lets go of its connection."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
