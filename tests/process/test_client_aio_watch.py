"""The asyncio client's `watch` of a folder, through a daemon; on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cachedaemon_client import BadArchive, BadRequest, DaemonUnavailable, OriginFailed, aio
from cachedaemon_client.aio_watch import Watch
from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture
def drop(folder: Path) -> Path:
    made = folder / "drop"
    made.mkdir()
    return made


def daemon_of(drop: Path, max_shards: int = 5) -> Daemon:
    source = {"url": f"file://{drop}/", "watch": True, "settle": "100ms"}
    return Daemon({"in": source, "plain": f"file://{drop}/"}, max_shards=max_shards)


@contextlib.asynccontextmanager
async def watch_of(daemon: Daemon, wait: float = 20, idle: float | None = None) -> AsyncIterator[Watch]:
    """Closed in the end; it leaves no descriptor of a socket."""
    before = sockets()
    async with aio.ShardCache("in", socket=daemon.socket, wait=wait) as cache, cache.watch(idle=idle) as watch:
        yield watch
    assert sockets() <= before


def sockets() -> set[str]:
    """The sockets of this process, by inode."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {each for each in found if each.startswith("socket:")}


def put(drop: Path, *names: str) -> None:
    for name in names:
        content.write(drop / f"{name}.part", name, 10_000)
        (drop / f"{name}.part").rename(drop / name)


async def keys(watch: Watch, count: int) -> list[str]:
    return [(await anext(watch)).key for _ in range(count)]


async def elsewhere(work: object, *args: object) -> None:
    """In a thread, as what waits for a daemon must be."""
    await asyncio.to_thread(work, *args)  # type: ignore[arg-type]


async def test_shards_in_order_of_arrival_and_the_end_when_none_comes(drop: Path) -> None:
    put(drop, "first.bin")
    with daemon_of(drop, 3) as daemon:
        async with watch_of(daemon, idle=3) as watch:
            assert await keys(watch, 1) == ["first.bin"]
            for number in range(8):
                put(drop, f"{number}.bin")
                shard = await anext(watch)
                assert shard.key == f"{number}.bin"
                assert not shard.closed
                assert content.matches(shard.path, shard.key, 10_000)
            assert [each.key async for each in watch] == []
            assert shard.closed
        cache = aio.ShardCache("in", socket=daemon.socket)
        assert len([each async for each in cache.watch(idle=2)]) == 9, "what lies there, and without `async with`"
        assert [each async for each in cache.watch(idle=0)] == []
        await cache.close()


async def test_an_error_ends_nothing_and_what_was_taken_away_is_left_out(drop: Path) -> None:
    with daemon_of(drop, 1) as daemon:
        async with watch_of(daemon) as watch:
            put(drop, "a.bin")
            assert await keys(watch, 1) == ["a.bin"]
            put(drop, "b.bin")
            await watch._hear(10)
            assert list(watch._waiting) == ["b.bin"]
            (drop / "b.bin").unlink()
            put(drop, "c.bin")
            assert await keys(watch, 1) == ["c.bin"]
            (drop / "bad.zip").write_bytes(b"this is no archive")
            with pytest.raises(BadArchive, match=r"bad\.zip"):
                await anext(watch)
            put(drop, "d.bin")
            assert await keys(watch, 1) == ["d.bin"]


async def test_a_restart_of_the_daemon_loses_nothing_and_tells_nothing_twice(drop: Path) -> None:
    put(drop, "a.bin")
    with daemon_of(drop) as daemon:
        async with watch_of(daemon) as watch:
            assert await keys(watch, 1) == ["a.bin"]
            coming = asyncio.create_task(keys(watch, 1))
            await elsewhere(daemon.stop)
            put(drop, "b.bin")
            await elsewhere(daemon.start)
            assert await coming == ["b.bin"]
            daemon.reload()
            put(drop, "c.bin")
            assert await keys(watch, 1) == ["c.bin"]


async def test_a_daemon_that_stays_away_is_an_error(drop: Path) -> None:
    with daemon_of(drop) as daemon:
        async with watch_of(daemon, wait=1) as watch:
            await elsewhere(daemon.stop)
            with pytest.raises(DaemonUnavailable):
                await anext(watch)


async def test_a_folder_that_stays_away_is_an_error_and_not_an_empty_one(drop: Path) -> None:
    put(drop, "a.bin")
    with daemon_of(drop) as daemon:
        async with watch_of(daemon, wait=1) as watch:
            assert await keys(watch, 1) == ["a.bin"]
            os.rename(drop, f"{drop}-aside")
            with pytest.raises(OriginFailed, match="source in: its folder cannot be read: No such file or directory"):
                await anext(watch)
            os.rename(f"{drop}-aside", drop)
            await elsewhere(until, lambda: "its folder is there again" in daemon.log, 20)
            put(drop, "b.bin")
            found = ""
            while found != "b.bin":
                with contextlib.suppress(OriginFailed):
                    found = (await anext(watch)).key


async def test_only_a_folder_can_be_watched(drop: Path) -> None:
    with daemon_of(drop) as daemon:
        async with aio.ShardCache("plain", socket=daemon.socket) as cache:
            with pytest.raises(BadRequest, match="source plain: its folder is not watched"):
                await anext(cache.watch())


async def test_a_cancelled_wait_loses_no_shard(drop: Path) -> None:
    """Cancelled at every moment: while nothing comes, while the daemon tells, and while the shard is opened."""
    with daemon_of(drop, 20) as daemon:
        async with watch_of(daemon) as watch:
            seen: list[str] = []
            for number in range(10):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.01)
                put(drop, f"{number}.bin")
                for turn in range(1000):
                    coming = asyncio.ensure_future(anext(watch))
                    await asyncio.wait({coming}, timeout=0.0005 * (turn % 40))
                    if coming.done() or not coming.cancel():
                        break
                    await asyncio.wait({coming})
                seen.append((await coming).key)
            assert seen == [f"{number}.bin" for number in range(10)]


async def test_close_by_another_task_ends_it(drop: Path) -> None:
    with daemon_of(drop) as daemon:
        async with watch_of(daemon) as watch:
            coming = asyncio.create_task(keys(watch, 1))
            await elsewhere(until, lambda: watch._feed is not None and watch._feed._coming is not None, 10)
            began = time.monotonic()
            await watch.close()
            with pytest.raises(StopAsyncIteration):
                await coming
            assert time.monotonic() - began < 0.9, "at once, not at the next turn"


async def test_a_forked_child_has_none_of_it(drop: Path) -> None:
    put(drop, "a.bin", "b.bin")
    with daemon_of(drop) as daemon:
        async with watch_of(daemon) as watch:
            first = await anext(watch)
            child = os.fork()
            if not child:
                os._exit(0 if watch._closed and watch._feed and watch._feed._socket.fileno() < 0 else 1)
            assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0
            assert not first.closed
            assert {first.key, *await keys(watch, 1)} == {"a.bin", "b.bin"}
