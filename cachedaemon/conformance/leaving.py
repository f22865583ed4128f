"""Who leaves a transfer leaves nothing behind, at whatever moment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cachedaemon.conformance.place import Place, needs
from cachedaemon.conformance.reading import bytes_of, opened, read, read_part, stream_of
from cachedaemon.errors import CacheDaemonError
from cachedaemon.origins.base import PIECE

SIZE = 3 * PIECE + 4321
MOMENTS = 60
"""Transfers, each cancelled a few turns of the loop later than the one before."""


def descriptors() -> int:
    """How many are open in this process."""
    return len(os.listdir("/proc/self/fd"))


async def until_at_most(base: int) -> None:
    """Descriptors are closed in threads and by the loop's next turns: wait for it."""
    async with asyncio.timeout(20):
        while descriptors() > base:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)


async def leave_at_each_moment(work: Callable[[], Awaitable[object]]) -> None:
    """Begin it, and cancel it some turns later."""
    for turns in range(MOMENTS):
        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError, CacheDaemonError):
            await task


class Leaving:
    """Cancellations."""

    async def test_a_cancellation_at_any_moment_leaves_no_descriptor(self, place: Place) -> None:
        """C-76: neither a connection nor a file stays open."""
        place.put("k.bin", bytes_of("k", SIZE))
        async with opened(place.url, place.settings) as origin:
            await read(origin, "k.bin")
            base = descriptors()
            await leave_at_each_moment(lambda: read(origin, "k.bin"))
            await until_at_most(base + 1)
            assert await read(origin, "k.bin") == bytes_of("k", SIZE)

    async def test_a_cancelled_part_leaves_no_descriptor(self, place: Place) -> None:
        needs(place, "parts")
        data = bytes_of("k", SIZE)
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin:
            async with stream_of(origin, "k.bin") as stream:
                await read_part(stream, 0, SIZE)
                base = descriptors()
                await leave_at_each_moment(lambda: read_part(stream, 100, SIZE))
                async with stream.part(0, SIZE) as lists:
                    async for _ in lists:
                        break  # left with bytes still to come
                await until_at_most(base + 2)
                assert await read_part(stream, 100, SIZE) == data[100:]
            await until_at_most(base + 1)

    async def test_a_cancelled_wait_for_a_silent_origin_ends_at_once(self, place: Place) -> None:
        needs(place, "silence")
        place.put("k.bin", b"data")
        async with opened(place.url, place.settings, stall_timeout="60s") as origin:
            assert await read(origin, "k.bin") == b"data"
            base = descriptors()
            place.hang("k.bin")
            tasks = [asyncio.create_task(read(origin, "k.bin")) for _ in range(40)]
            done, _ = await asyncio.wait(tasks, timeout=0.2)
            assert not done
            for task in tasks:
                task.cancel()
            async with asyncio.timeout(10):
                await asyncio.wait(tasks)
            place.up()
            async with asyncio.timeout(20):
                assert await read(origin, "k.bin") == b"data"
            await until_at_most(base + 1)
