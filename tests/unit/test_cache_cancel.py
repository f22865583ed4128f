"""Cancellation, stopping and eviction at any moment of a walk: nothing is lost, nothing is left, the next one works.

The real cache with its store, a mounted source, archive workers and background work, without the API around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachedaemon.cache import Answer, Cache
from cachedaemon.config import Handed, load
from cachedaemon.daemon import Daemon
from cachedaemon.errors import CacheFull, Leased, NotFound, Stopping, WaitExpired
from cachedaemon.model import Ref
from tests.fakes import content, disk
from tests.fakes.packing import image_like, zip_bytes

SIZE = 300_000
NAMES = [*(f"{n}.bin" for n in range(3)), "a.zip", "b.zip"]


@contextlib.asynccontextmanager
async def running(folder: Path, archives: str, shards: int = 3) -> AsyncIterator[Daemon]:
    """A daemon without its sockets."""
    source = folder / "source"
    source.mkdir()
    for name in NAMES:
        if name.endswith(".zip"):
            (source / name).write_bytes(zip_bytes(image_like(5)))
        else:
            content.write(source / name, name, SIZE)
    flags = {
        "cache.dir": str(folder / "cache"),
        "cache.max_shards": shards,
        "cache.grace": "50ms",
        "cache.min_free": "1MB",
        "server.socket": str(folder / "d.sock"),
        "sources.s.url": f"file://{source}/",
        "sources.s.settle": "0s",
        "sources.s.archives": archives,
    }
    settings = await asyncio.to_thread(load, None, {"HOME": str(folder)}, flags, standard=folder / "none")
    daemon = Daemon(settings, lambda: settings, Handed())
    await daemon._open_cache()
    background = asyncio.create_task(daemon.upkeep.run(ahead=daemon.ahead.run))
    try:
        yield daemon
    finally:
        await daemon.cache.drain()
        background.cancel()
        await asyncio.wait([background], timeout=20)
        assert background.done()
        await daemon.workers.close()
        for one in daemon.sources.all():
            await one.origin.close()
        await asyncio.to_thread(daemon.store.close)


async def until(state: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not state():  # noqa: ASYNC110 - the states are many and say nothing of their change
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within 20 s: {what}") from None


async def settle(cache: Cache, folder: Path) -> None:
    """Nothing is under way any more; then the index, the disk and the promises agree that nothing is left."""
    await until(lambda: not cache.ledger.flights and not cache.flights.tasks(), "flights end")
    await until(lambda: not cache.background and not cache.grace._holds, "promises end")
    assert cache.ledger.reserved == 0
    assert cache.room.waiting == 0
    assert not cache._stops
    await until(lambda: not disk.leftovers(folder / "cache"), "staging and trash are empty")
    published = {name.removeprefix("s/") for name in disk.published(folder / "cache")}
    assert published == {entry.ref.key for entry in cache.ledger.entries()}
    await until(lambda: cache.ledger.bytes == disk.usage(folder / "cache"), "bytes agree")
    assert sum(cache.turns._running.values()) == 0


async def give_way(chance: random.Random) -> None:
    """Anything from one step of the loop to the length of a walk."""
    if chance.random() < 0.5:
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(chance.random() * 0.02)


async def acquire(cache: Cache, name: str, *, damaged: bool = False) -> Answer:
    """A shard that is there, unless somebody removes files behind the daemon's back; its promise has ended."""
    answer = await cache.acquire("s", name, 30)
    assert damaged or await asyncio.to_thread(os.path.exists, answer.path)
    cache.grace.end(answer.promise)
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize("archives", ["index", "unpack"])
async def test_a_waiter_is_cancelled_at_any_moment(folder: Path, archives: str) -> None:
    chance = random.Random(1)
    async with running(folder, archives) as daemon:
        cache = daemon.cache
        for round_ in range(150):
            name = NAMES[round_ % len(NAMES)]
            tasks = [asyncio.create_task(acquire(cache, name)) for _ in range(chance.choice([1, 1, 2, 3]))]
            await give_way(chance)
            tasks[0].cancel()
            said = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, Answer) for one in said[1:]), said
            assert isinstance(said[0], Answer | asyncio.CancelledError)
            if chance.random() < 0.7:
                with contextlib.suppress(NotFound, Leased):
                    await cache.eviction.evict(Ref("s", name))
        await settle(cache, folder)
        for name in NAMES:
            await acquire(cache, name)


@pytest.mark.asyncio
async def test_a_try_is_stopped_at_any_moment(folder: Path) -> None:
    """Its flight gives its room to another and comes back: whoever waits gets the shard all the same."""
    chance = random.Random(2)
    async with running(folder, "unpack") as daemon:
        cache = daemon.cache
        for round_ in range(150):
            name = NAMES[round_ % len(NAMES)]
            task = asyncio.create_task(acquire(cache, name))
            await give_way(chance)
            for stop in list(cache._stops.values()):
                stop()
            await task
            with contextlib.suppress(NotFound, Leased):
                await cache.eviction.evict(Ref("s", name))
        await settle(cache, folder)


async def ask(cache: Cache, chance: random.Random) -> None:
    """Come, and perhaps go before the answer."""
    task = asyncio.create_task(acquire(cache, chance.choice(NAMES), damaged=True))
    await give_way(chance)
    if chance.random() < 0.4:
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (cause := task.exception()) is not None:
        assert isinstance(cause, CacheFull), cause


async def disturb(daemon: Daemon, folder: Path, chance: random.Random) -> None:
    """Damage, a look for it, a prefetch, other caps, or an eviction by name."""
    await give_way(chance)
    cache, name = daemon.cache, chance.choice(NAMES)
    match chance.randrange(5):
        case 0:
            await daemon.upkeep.look()
        case 1:
            (folder / "cache/shards/s" / name).unlink(missing_ok=True)
        case 2:
            daemon.prefetch.start("s", NAMES)
        case 3:
            cache.ledger.caps = replace(cache.ledger.caps, max_shards=chance.choice([1, 2, 3]))
            cache.room.changed()
        case _:
            with contextlib.suppress(NotFound, Leased):
                await cache.eviction.evict(Ref("s", name))


async def repeat(times: int, step: Callable[[], Awaitable[None]]) -> None:
    for _ in range(times):
        await step()


@pytest.mark.asyncio
async def test_everything_at_once(folder: Path) -> None:
    """Askers that come and go, evictions by name, damage, prefetches and changing caps, with room for two shards."""
    chance = random.Random(3)
    async with running(folder, "index", shards=2) as daemon:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(repeat(60, lambda: ask(daemon.cache, chance)))
            group.create_task(repeat(60, lambda: disturb(daemon, folder, chance)))
        await until(lambda: all(job.state != "running" for job in daemon.prefetch._jobs._all.values()), "jobs end")
        await daemon.upkeep.look()
        await settle(daemon.cache, folder)
        for name in NAMES:
            await acquire(daemon.cache, name)


@pytest.mark.asyncio
async def test_a_source_is_configured_anew_at_any_moment(folder: Path) -> None:
    """From before a flight's first step to after its end: waiters and jobs get all the same, each from what is in force."""
    chance = random.Random(5)
    async with running(folder, "index", shards=9) as daemon:
        cache = daemon.cache
        for round_ in range(60):
            tasks = [asyncio.create_task(acquire(cache, name, damaged=True)) for name in NAMES]
            job = daemon.prefetch.start("s", NAMES)
            for _ in range(round_ % 4):
                await asyncio.sleep(0)
            if round_ > 20:
                await give_way(chance)
            async with cache.renewal.of(["s"]):
                assert not cache.ledger.flights
                assert not list(cache.ledger.entries())
            said = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
            assert all(isinstance(one, Answer) for one in said), said
            await until(lambda job=job: job.state != "running", "the job ends")  # type: ignore[misc]
            assert (job.state, job.done, job.failed) == ("done", len(NAMES), 0)
        await settle(cache, folder)


@pytest.mark.asyncio
async def test_nothing_comes_from_a_source_while_it_is_configured_anew(folder: Path) -> None:
    """What is asked for meanwhile comes afterwards; a waiter's time runs on."""
    async with running(folder, "index") as daemon:
        cache = daemon.cache
        await acquire(cache, NAMES[0])
        async with cache.renewal.of(["s"]):
            task = asyncio.create_task(acquire(cache, NAMES[0]))
            job = daemon.prefetch.start("s", NAMES[1:2])
            with pytest.raises(WaitExpired):
                await cache.acquire("s", NAMES[2], 0.2)
            assert not cache.ledger.flights
            assert not disk.published(folder / "cache")
        await asyncio.wait_for(task, 20)
        await until(lambda: job.state == "done", "the job ends")
        await settle(cache, folder)


@pytest.mark.asyncio
async def test_who_waits_for_a_turn_holds_nothing_of_the_disk(folder: Path) -> None:
    """A folder and a descriptor each would be thousands."""
    async with running(folder, "opaque") as daemon:
        daemon.cache.turns.limit(0, {"s": 8}, {})
        tasks = [asyncio.create_task(acquire(daemon.cache, f"{number}.bin")) for number in range(3)]
        await until(lambda: len(daemon.cache.turns._waiting) == 3, "all wait")
        assert os.listdir(folder / "cache/staging") == []
        daemon.cache.turns.limit(8, {"s": 8}, {})
        await asyncio.gather(*tasks)
        await settle(daemon.cache, folder)


@pytest.mark.asyncio
@pytest.mark.parametrize(("key", "ends"), [(NAMES[0], "done"), ("../no", "failed")])
async def test_a_job_whose_keys_wait_for_nothing_lets_others_work(folder: Path, key: str, ends: str) -> None:
    """Thousands of keys that are here, or that fail at once: the loop goes round all the while."""
    async with running(folder, "index") as daemon:
        await acquire(daemon.cache, NAMES[0])
        job = daemon.prefetch.start("s", [key] * 4000)
        rounds = 0
        while job.state == "running":
            await asyncio.sleep(0)
            rounds += 1
        assert (job.state, job.done + job.failed) == (ends, 4000)
        assert rounds > 100
        await settle(daemon.cache, folder)


@pytest.mark.asyncio
async def test_the_end_comes_at_any_moment(folder: Path) -> None:
    """Waiters hear that the daemon stops, those too whose flight was made in the very last moment."""
    chance = random.Random(4)
    for round_ in range(8):
        place = folder / str(round_)
        place.mkdir()
        async with running(place, "index") as daemon:
            tasks = [asyncio.create_task(acquire(daemon.cache, name)) for name in NAMES[:3]]
            for _ in range(chance.choice([0, 1, 2, 3, 5, 20, 50])):
                await asyncio.sleep(0)
            await daemon.cache.drain()
            said = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
            assert all(isinstance(one, Answer | Stopping) for one in said), said
            assert daemon.cache.ledger.reserved == 0
            assert not daemon.cache.ledger.flights
