"""Verifying, with the daemon's own objects and without its sockets: its pace, what goes meanwhile, its end."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cachedaemon import verify
from cachedaemon.arrival import digest_of
from cachedaemon.daemon import Daemon
from cachedaemon.errors import NoSpace
from cachedaemon.jobs import Job
from cachedaemon.model import Ref
from tests.fakes import content
from tests.fakes.damage import spoil
from tests.unit.store_kit import opened, publish
from tests.unit.test_cache_cancel import NAMES, SIZE, acquire, running, settle, until

LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
REFS = [Ref("s", name) for name in NAMES]


@asynccontextmanager
async def holding_all(folder: Path, archives: str = "index") -> AsyncIterator[Daemon]:
    """A daemon with every shard of its source."""
    async with running(folder, archives, shards=len(NAMES)) as daemon:
        for name in NAMES:
            await acquire(daemon.cache, name)
        yield daemon
        await daemon.verify.close()
        await settle(daemon.cache, folder)


async def ended(job: Job) -> dict[str, object]:
    await until(lambda: job.state != "running", "the job's end")
    return job.counts()


@pytest.mark.asyncio
async def test_what_is_well_stays_as_it_is(folder: Path) -> None:
    async with holding_all(folder) as daemon:
        before = {entry.ref: entry.stamp for entry in daemon.cache.ledger.entries()}
        said = await ended(daemon.verify.start(REFS))
        assert (said["state"], said["total"], said["done"], said["damaged"]) == ("done", 5, 5, 0)
        assert said["bytes"] == sum(entry.size for entry in daemon.cache.ledger.entries())
        assert {entry.ref: entry.stamp for entry in daemon.cache.ledger.entries()} == before


@pytest.mark.asyncio
@pytest.mark.parametrize("archives", ["index", "unpack"])
async def test_what_is_damaged_is_fetched_again(folder: Path, archives: str) -> None:
    async with holding_all(folder, archives) as daemon:
        bad = folder / "cache/shards/s"
        await asyncio.to_thread(spoil, bad / "1.bin")
        zipped = bad / "a.zip"
        await asyncio.to_thread(spoil, next(zipped.rglob("*.jpg")) if archives == "unpack" else zipped)
        said = await ended(daemon.verify.start(REFS))
        assert (said["state"], said["damaged"], said["fetched_again"], said["failed"]) == ("done", 2, 2, 0)
        assert await asyncio.to_thread(content.matches, bad / "1.bin", "1.bin", SIZE)
        again = await ended(daemon.verify.start(REFS))
        assert (again["done"], again["damaged"]) == (5, 0)


@LOOP
async def test_a_lost_meta_file_leaves_nothing_to_compare_with(folder: Path) -> None:
    """So the shard is fetched again."""
    async with holding_all(folder) as daemon:
        os.unlink(folder / "cache/meta/s/0.bin.json")
        said = await ended(daemon.verify.start(REFS))
        assert (said["state"], said["damaged"], said["fetched_again"]) == ("done", 1, 1)


@LOOP
async def test_bytes_that_the_disk_does_not_give_are_damage_and_a_lack_of_descriptors_is_none(folder: Path) -> None:
    def failing(number: int) -> Callable[[str], str]:
        def digest(path: str) -> str:
            raise OSError(number, os.strerror(number), path)

        return digest

    async with opened(folder / "cache") as (store, _):
        published = await publish(store, "k")
        assert await store.is_sound(Ref("s", "k"), "k", published.stamp, digest_of)
        assert not await store.is_sound(Ref("s", "k"), "k", published.stamp, failing(errno.EIO))
        with pytest.raises(NoSpace, match=r"reading s/k: the daemon is short of something: .*EMFILE"):
            await store.is_sound(Ref("s", "k"), "k", published.stamp, failing(errno.EMFILE))


@LOOP
async def test_it_keeps_to_its_rate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine hundred thousand bytes at two million a second."""
    monkeypatch.setattr(verify, "RATE", 2_000_000)
    async with holding_all(folder) as daemon:
        began = time.monotonic()
        await ended(daemon.verify.start(REFS[:3]))
        assert time.monotonic() - began > 3 * SIZE / 2_000_000 - verify.SPARED * 3


async def under_way(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, refs: list[Ref], rate: int = 1000) -> Job:
    """A job that has begun with its first shard; at 1000 bytes a second it does not come to an end."""
    monkeypatch.setattr(verify, "RATE", rate)
    job = daemon.verify.start(refs)
    await until(lambda: job.bytes, "the first bytes")
    return job


@LOOP
@pytest.mark.parametrize("archives", ["index", "unpack"])
async def test_a_shard_that_is_evicted_meanwhile_is_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, archives: str
) -> None:
    """While it is hashed, which the one file survives and the folder does not; and while it waits for that."""
    async with holding_all(folder, archives) as daemon:
        refs = [Ref("s", "a.zip"), Ref("s", "1.bin")]
        job = await under_way(daemon, monkeypatch, refs, rate=50_000)
        await daemon.cache.eviction.evict(Ref("s", "a.zip"))
        await daemon.cache.eviction.evict(Ref("s", "1.bin"))
        said = await ended(job)
        assert (said["state"], said["done"], said["damaged"], said["failed"]) == ("done", 2, 0, 0)
        assert said["gone"] == (2 if archives == "unpack" else 1)


@pytest.mark.asyncio
async def test_the_end_comes_at_once_whatever_is_under_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with holding_all(folder) as daemon:
        job = await under_way(daemon, monkeypatch, REFS)
        waiting = daemon.verify.start(REFS)
        await asyncio.sleep(0)
        began = time.monotonic()
        await daemon.verify.close()
        assert time.monotonic() - began < 5
        assert [job.state, waiting.state] == ["failed", "failed"]
        assert job.ended is not None


@LOOP
async def test_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with holding_all(folder) as daemon:
        await under_way(daemon, monkeypatch, REFS)
        second = daemon.verify.start([])
        for _ in range(100):
            await asyncio.sleep(0)
        assert second.state == "running", "though it has nothing to do"
