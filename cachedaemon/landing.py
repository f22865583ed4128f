"""How the bytes of one object come to staging: room before the first of them, length and digests before the last step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from cachedaemon.entries import Flight
from cachedaemon.errors import Corrupt
from cachedaemon.metrics import Metrics
from cachedaemon.model import BLOCK, Need, blocks, extent_tree
from cachedaemon.origins import Stream
from cachedaemon.store import Staged, Store
from cachedaemon.streams import Sink, Streams
from cachedaemon.turns import Turn

INODES = 3
"""A shard, its meta file and its member table."""
STEP_LEAST, STEP_MOST = 1 << 20, 32 << 20
"""Bytes by which the reservation of a transfer of unknown size grows."""


class Landing:
    """Bytes on their way from an origin to staging. `needs` yields how much room is needed in all, before it is used.

    `stage` makes the file, once a size that is announced has its room: what is too large is refused before.
    """

    def __init__(
        self, store: Store, stage: Callable[[], Awaitable[Staged]], flight: Flight, metrics: Metrics, most: int
    ) -> None:
        self._store = store
        self._stage = stage
        self.staged: Staged
        """The file, once it is made."""
        self._flight = flight
        self._metrics = metrics
        self._most = most

    async def needs(self, stream: Stream, turn: Turn, retries: int) -> AsyncGenerator[Need, None]:
        """Write the stream to staging, no faster than its part of the bandwidth lets it.

        Raises `Cut` or `Changed` when its length is not as announced, `Corrupt` when a digest is not.
        """
        if stream.size is None:
            async with aclosing(self._growing(stream, turn)) as needs:
                async for need in needs:
                    yield need
        else:
            yield Need(blocks(stream.size), INODES)
            await self._begin(stream)
            sink = Sink(self._store, self.staged, self._flight, self._metrics)
            await Streams(sink, self._flight, stream, turn, retries).bring()
        if said := self.staged.mismatch():
            raise Corrupt(f"{self._flight.ref}: the bytes that came are not the object: {said}")

    async def _begin(self, stream: Stream) -> None:
        self.staged = await self._stage()
        await self._store.expect(self.staged, stream.size, stream.digests)
        self._flight.size, self._flight.growing = stream.size, stream.size is None

    async def _growing(self, stream: Stream, turn: Turn) -> AsyncGenerator[Need, None]:
        """An object of a size that its origin does not say, as it comes."""
        await self._begin(stream)
        received, room = self._metrics.origin_bytes.labels(self._flight.ref.source), 0
        async for pieces in stream.pieces():
            count = sum(len(piece) for piece in pieces)
            received.inc(count)
            await turn.take(count)
            after = self.staged.size + count
            if after > room:
                room = self._more(after)
                yield Need(blocks(room), INODES)
            await self._store.write(self.staged, pieces)
            self._flight.written = self._flight.arrived = self.staged.size

    def _more(self, least: int) -> int:
        step = min(STEP_MOST, max(STEP_LEAST, self.staged.size // 4))
        target = least + step
        most = self._most // BLOCK * BLOCK - extent_tree(self._most)  # so much fits, rounded up to blocks
        return max(least, min(target, most)) if self._most else target
