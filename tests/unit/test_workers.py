"""Processes that read with somebody else's library: kept while they are well, replaced when they are not, never too many."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from cachedaemon.conformance import bytes_of, opened, read, stream_of
from cachedaemon.errors import Cut, OriginUnavailable
from cachedaemon.origins.anything import FsspecOrigin
from cachedaemon.origins.foreign import SPARE

pytestmark = pytest.mark.asyncio

SIZE = 5_000_000


@asynccontextmanager
async def archive(folder: Path, concurrency: int = 2) -> AsyncIterator[FsspecOrigin]:
    """A source whose objects are members of a zip."""
    with zipfile.ZipFile(folder / "set.zip", "w") as file:
        file.writestr("a.bin", bytes_of("a", SIZE))
    settings = {"credentials": json.dumps({"fo": str(folder / "set.zip")}), "concurrency": concurrency}
    async with opened("fsspec+zip:///", settings, stall_timeout="20s") as origin:
        assert isinstance(origin, FsspecOrigin)
        yield origin


def processes(origin: FsspecOrigin) -> set[int]:
    return {worker._process.pid for worker in origin._foreign.workers._all}


async def test_one_process_serves_one_transfer_after_the_other(folder: Path) -> None:
    async with archive(folder) as origin:
        for _ in range(3):
            assert await read(origin, "a.bin") == bytes_of("a", SIZE)
        assert len(processes(origin)) == 1


async def test_a_process_that_dies_fails_its_transfer_and_no_other(folder: Path) -> None:
    async with archive(folder) as origin:
        async with stream_of(origin, "a.bin") as stream:
            [first] = processes(origin)
            os.kill(first, signal.SIGKILL)
            with pytest.raises((OriginUnavailable, Cut), match=r"s/a\.bin: the process that reads it has ended"):
                async for _ in stream.pieces():
                    pass
        assert await read(origin, "a.bin") == bytes_of("a", SIZE)
        assert processes(origin) != {first}


async def test_a_process_that_died_while_idle_costs_no_transfer(folder: Path) -> None:
    async with archive(folder) as origin:
        assert await read(origin, "a.bin") == bytes_of("a", SIZE)
        [worker] = origin._foreign.workers._all
        os.kill(worker._process.pid, signal.SIGKILL)
        await worker._process.wait()
        assert await read(origin, "a.bin") == bytes_of("a", SIZE)


async def test_there_are_never_more_than_transfers_and_two(folder: Path) -> None:
    """Whoever is one too many waits for another to end."""
    async with archive(folder, concurrency=1) as origin, AsyncExitStack() as held:
        for _ in range(1 + SPARE):
            await held.enter_async_context(stream_of(origin, "a.bin"))
        late = asyncio.create_task(read(origin, "a.bin"))
        done, _ = await asyncio.wait([late], timeout=0.2)
        assert not done
        assert len(processes(origin)) == 1 + SPARE
        await held.aclose()
        assert await late == bytes_of("a", SIZE)


async def test_who_closes_a_source_leaves_no_process(folder: Path) -> None:
    """In the middle of a transfer too."""
    async with archive(folder) as origin, stream_of(origin, "a.bin") as stream:
        [worker] = origin._foreign.workers._all
        await anext(aiter(stream.pieces()))
        await origin.close()
        async with asyncio.timeout(10):
            await worker._process.wait()
