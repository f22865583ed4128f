"""The asyncio client against a real daemon, on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cachedaemon_client import aio, errors
from tests.fakes import content, packing
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

pytestmark = pytest.mark.asyncio

SIZE = 4000
KEYS = [f"shard-{number}.bin" for number in range(8)]
MEMBERS = packing.image_like(4, 2, 2000)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for key in KEYS:
            one.put(key, SIZE)
        one.put("images.zip", data=packing.zip_bytes(MEMBERS))
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=4) as one:
        yield one


@contextlib.asynccontextmanager
async def client(daemon: Daemon, wait: float = 30) -> AsyncIterator[aio.ShardCache]:
    async with aio.ShardCache("s", socket=daemon.socket, wait=wait) as one:
        yield one
        links = list(one._links)
    assert all(link._socket.fileno() < 0 for link in links), "connections are left open"
    left = {
        place for number in os.listdir("/proc/self/fd") if (place := place_of(number)).startswith(f"{daemon.cache}/")
    }
    assert left <= {f"{daemon.cache}/shards/s"}, "leases are left; the folder itself goes with the client"


def place_of(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


async def away(work: object) -> None:
    await asyncio.to_thread(work)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def latency() -> AsyncIterator[list[float]]:
    """How late a task of the loop came that wants to run every 5 ms."""
    late: list[float] = []

    async def probe() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - before - 0.005)

    task = asyncio.create_task(probe())
    yield late
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def good(path: Path, key: str) -> bool:
    return content.matches(path, key, SIZE)


async def test_open_both_ways(daemon: Daemon) -> None:
    async with client(daemon) as cache:
        shard = await cache.open(KEYS[0])
        assert good(shard.path, KEYS[0])
        async with cache.open(KEYS[0]) as again:
            assert again.hit
        assert again.closed
        assert daemon.evict("s", KEYS[0]).code == "leased"
        shard.close()
        assert daemon.evict("s", KEYS[0]).status == 204
        async with cache.open("images.zip") as archive:
            assert {name: archive.read(name) for name in archive.members} == MEMBERS
        assert (await cache.status())["cache"]["max_shards"] == 4


async def test_hits_while_the_daemon_is_stopped(daemon: Daemon) -> None:
    async with client(daemon) as cache:
        (await cache.open(KEYS[0])).close()
        daemon.freeze()
        try:
            for _ in range(1000):
                async with cache.open(KEYS[0]) as shard:
                    assert shard.hit
        finally:
            daemon.thaw()


async def test_as_ready_prefetch_and_counts(daemon: Daemon) -> None:
    async with client(daemon) as cache:
        seen = [shard.key async for shard in cache.as_ready(KEYS)]
        assert sorted(seen) == sorted(KEYS)
        job = await (await cache.prefetch([*KEYS[:2], "none.bin"])).wait(30)
        assert (job.state, job.total, job.done, job.failed) == ("failed", 3, 2, 1)


async def test_a_plan(daemon: Daemon) -> None:
    async with client(daemon) as cache:
        async with cache.plan(KEYS, holds=2) as plan:
            assert [one["id"] for one in daemon.status()["plans"]] == [plan.id]
            out = []
            async for shard in plan:
                out.append(shard)
                assert [one.closed for one in out] == [True] * (len(out) - 2) + [False] * min(2, len(out))
            assert [shard.key for shard in out] == KEYS
        assert not daemon.status()["plans"]
        plan = await cache.plan(KEYS)
        assert len(daemon.status()["plans"]) == 1
    assert not daemon.status()["plans"], "closing the client ends its plans"


@pytest.mark.parametrize(
    ("key", "kind"), [("none.bin", errors.ShardMissing), ("", errors.BadRequest), ("\udc80", errors.BadRequest)]
)
async def test_errors(daemon: Daemon, key: str, kind: type[errors.CacheError]) -> None:
    async with client(daemon) as cache:
        with pytest.raises(kind) as caught:
            await cache.open(key)
        assert (caught.value.source, caught.value.key) == ("s", key)


async def test_a_cancelled_open_leaves_nothing(origin: Origin, daemon: Daemon) -> None:
    """No waiter in the daemon, so that the transfer ends; no lease, no connection."""
    gate = Gate(1000)
    slow = origin.put("slow.bin", SIZE, gate=gate)
    async with client(daemon) as cache:
        tasks = [asyncio.create_task(cache.open("slow.bin")._begin()) for _ in range(20)]  # type: ignore[arg-type]
        await away(lambda: until(lambda: daemon.status()["waiters"] == 20 and slow.open == 1, 20))
        for task in tasks[1:]:
            task.cancel()
        await away(lambda: until(lambda: daemon.status()["waiters"] == 1, 20))
        tasks[0].cancel()
        await away(lambda: until(lambda: not daemon.status()["fetches"], 20))
        assert [type(done) for done in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 20
        gate.open()
        async with cache.open("slow.bin") as shard:
            assert good(shard.path, "slow.bin")
        assert slow.gets == 2
    daemon.evict("s", "slow.bin")


async def test_cancelling_at_any_moment_leaks_no_lease(daemon: Daemon) -> None:
    """Each open is cancelled after another number of turns of the loop; then every shard can be evicted."""
    async with client(daemon) as cache:
        for turns in range(60):
            daemon.evict("s", KEYS[turns % 2])
            task = asyncio.create_task(cache.open(KEYS[turns % 2])._begin())  # type: ignore[arg-type]
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns % 3 == 0:
                await asyncio.sleep(0.001 * turns)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).close()
        for key in KEYS[:2]:
            await away(lambda key=key: until(lambda: daemon.evict("s", key).status in {204, 404}, 20))


async def test_500_opens_at_once_never_block_the_loop(daemon: Daemon) -> None:
    """More than are kept open; all get their bytes, and a task beside them runs all the time."""
    async with client(daemon, wait=60) as cache, latency() as late:

        async def read(number: int) -> bool:
            async with cache.open(KEYS[number % 4]) as shard:
                await asyncio.sleep(0)
                return shard.size == SIZE

        assert all(await asyncio.gather(*(read(number) for number in range(500))))
        assert len(cache._idle) <= aio.IDLE
        late.sort()
        assert late
        assert late[len(late) // 2] < 0.5, "500 opens took the loop for a moment, not for their whole time"


async def test_waiting_does_not_block_the_loop(origin: Origin, daemon: Daemon) -> None:
    origin.put("late.bin", SIZE, latency=1.0)
    async with client(daemon) as cache, latency() as late:
        (await cache.open("late.bin")).close()
        assert len(late) > 20, "a task beside it ran while the shard was waited for"
        daemon.freeze()
        try:
            del late[:]
            silent = aio.ShardCache("s", socket=daemon.socket, wait=0.3)
            with pytest.raises(errors.DaemonUnavailable, match="does not answer"):
                await silent.open(KEYS[0])
            assert len(late) > 20
            await silent.close()
        finally:
            daemon.thaw()
    daemon.evict("s", "late.bin")


async def test_wait_is_honoured(origin: Origin, daemon: Daemon) -> None:
    origin.put("never.bin", SIZE, latency=20)
    async with client(daemon, wait=0.5) as cache:
        began = time.monotonic()
        with pytest.raises(errors.WaitExpired):
            await cache.open("never.bin")
        assert 0.5 <= time.monotonic() - began < 10
    nobody = aio.ShardCache("s", socket=daemon.home / "none.sock", wait=0.2)
    with pytest.raises(errors.DaemonUnavailable, match=r"none\.sock"):
        await nobody.open(KEYS[0])


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
async def test_a_restart_is_waited_out(origin: Origin, daemon: Daemon, how: str) -> None:
    """In the middle of an acquire, of a prefetch and of a plan's iteration; idle connections have all gone with it."""
    for key in (keys := [f"{how}-{number}" for number in range(3)]):
        origin.put(key, SIZE, latency=0.5)
    async with client(daemon, wait=60) as cache:
        await asyncio.gather(*(cache.status() for _ in range(5)))
        job = await cache.prefetch(keys[:1])
        async with cache.plan(KEYS[:3]) as plan:
            going_on = plan.__aiter__()
            await anext(going_on)
            opening = asyncio.create_task(cache.open(keys[1])._begin())  # type: ignore[arg-type]
            await away(lambda: until(lambda: origin[keys[1]].gets, 20))
            await away(daemon.kill9 if how == "kill -9" else daemon.stop)
            starting = asyncio.create_task(away(daemon.start))
            assert [shard.key async for shard in going_on] == KEYS[1:3]
            (await opening).close()
            assert (await job.wait(60)).state == "done"
            await starting
            async with cache.open(keys[2]):
                await away(lambda: until(lambda: [p["id"] for p in daemon.status()["plans"]] == [plan.id], 20))


async def test_exact_counts_of_hits(daemon: Daemon) -> None:
    async with client(daemon) as cache:
        (await cache.acquire(KEYS[0])).close()
        before = daemon.metric("requests_total", source="s", result="hit")
        for _ in range(700):
            (await cache.open(KEYS[0])).close()
    assert daemon.metric("requests_total", source="s", result="hit") - before == 700
