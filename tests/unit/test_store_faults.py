"""Every disk call of the store fails once, and is the last one before a kill once: nothing partial, nothing leaked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from cachedaemon.errors import NoSpace
from cachedaemon.model import Ref
from cachedaemon.store.files import read_meta
from tests.fakes import disk as outside
from tests.unit.store_kit import Disk, Killed, faulty, opened, publish, whole

__all__ = ["faulty"]

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])
BOTH = pytest.mark.parametrize("folder_shard", [False, True], ids=["file", "folder"])
ERRNOS = pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=["EIO", "ENOSPC", "EMFILE"])


async def settled(root: Path) -> list[str]:
    """What a next start finds; nothing else may be left when its trash is deleted."""
    async with opened(root) as (store, found):
        for path, _ in found.trash:
            assert await store.reap(path)
        assert not outside.leftovers(root)
        assert not outside.strays(root)
        assert not [path for path, _ in outside.walk(root) if path.name.startswith("~")]
        assert sorted(one.name for one in found.found) == whole(root)
        return whole(root)


@ERRNOS
@BOTH
async def test_publishing_survives_an_error_at_every_call(
    folder: Path, faulty: Disk, number: int, *, folder_shard: bool
) -> None:
    """Visible or not, never half; the next try works."""
    root = folder / "cache"
    refused = 0
    for k in range(1, 100):
        async with opened(root) as (store, _):
            key, before = f"{k}.bin", whole(root)
            faulty.fail(k, number)
            try:
                await publish(store, key, folder=folder_shard)
                hit = faulty.heal()
            except NoSpace as cause:
                hit, refused = faulty.heal(), refused + 1
                assert os.strerror(number) in str(cause)  # noqa: PT017 - it may be raised, and need not
                assert whole(root) == before
                assert not outside.leftovers(root)
                assert not outside.strays(root)
                await publish(store, key, folder=folder_shard)
            assert key in whole(root)
        assert key in await settled(root)
        if not hit:
            assert refused > 8
            return
    pytest.fail("publishing never came to its end")


@BOTH
async def test_a_kill_at_every_call_of_publishing_leaves_nothing_partial(
    folder: Path, faulty: Disk, *, folder_shard: bool
) -> None:
    root = folder / "cache"
    for k in range(1, 100):
        async with opened(root) as (store, _):
            faulty.kill(k)
            with contextlib.suppress(Killed):
                await publish(store, f"{k}.bin", folder=folder_shard)
            hit = faulty.heal()
        await settled(root)
        if not hit:
            return
    pytest.fail("publishing never came to its end")


@BOTH
async def test_a_kill_at_every_call_of_evicting_leaves_the_shard_whole_or_gone(
    folder: Path, faulty: Disk, *, folder_shard: bool
) -> None:
    root = folder / "cache"
    for k in range(1, 100):
        async with opened(root) as (store, _):
            shard = await publish(store, f"{k}.bin", folder=folder_shard)
            faulty.kill(k)
            with contextlib.suppress(Killed):
                trash = await store.evict(Ref("s", f"{k}.bin"), f"{k}.bin", shard.stamp)
                await store.reap(trash)
            hit = faulty.heal()
        await settled(root)
        if not hit:
            return
    pytest.fail("evicting never came to its end")


@ERRNOS
@BOTH
async def test_evicting_survives_an_error_at_every_call(
    folder: Path, faulty: Disk, number: int, *, folder_shard: bool
) -> None:
    root = folder / "cache"
    for k in range(1, 100):
        async with opened(root) as (store, _):
            ref, name = Ref("s", "a.bin"), "a.bin"
            shard = await publish(store, name, folder=folder_shard)
            faulty.fail(k, number)
            trash = None
            with contextlib.suppress(OSError):
                trash = await store.evict(ref, name, shard.stamp)
                assert await store.reap(trash)
            hit = faulty.heal()
            if trash is None:  # refused: it is as it was
                assert whole(root) == [name]
                trash = await store.evict(ref, name, shard.stamp)
            assert await store.reap(trash)
            assert whole(root) == []
        assert await settled(root) == []
        if not hit:
            return
    pytest.fail("evicting never came to its end")


async def test_a_shard_that_cannot_be_looked_at_is_not_damaged(folder: Path, faulty: Disk) -> None:
    """EIO or EMFILE of a look says nothing of the shard: it is neither lost nor served unseen."""
    async with opened(folder / "cache") as (store, _):
        shard = await publish(store, "a.bin")
        known = store.known(Ref("s", "a.bin"), "a.bin", shard.stamp, unread_meta=True)
        faulty.fail(1, errno.EIO)
        assert await store.changed([known]) == []
        assert "EIO" in store.trouble.now()["disk"]
        for k in range(1, 5):
            faulty.fail(k, errno.EMFILE)
            with pytest.raises(NoSpace, match="EMFILE"):
                await store.hold(Ref("s", "a.bin"), "a.bin", shard.stamp, indexed=False, checked=False)
        faulty.heal()
        assert await store.changed([known]) == []
        os.unlink(folder / "cache/shards/s/a.bin")
        assert await store.changed([known]) == [Ref("s", "a.bin")]


async def test_syncing_survives_an_error_at_every_call(folder: Path, faulty: Disk) -> None:
    """`synced` is only said of what is durable; nothing is left beside the meta file."""
    root = folder / "cache"
    async with opened(root) as (store, _):
        for k in range(1, 100):
            key = f"{k}.bin"
            shard = await publish(store, key)
            faulty.fail(k, errno.EIO)
            try:
                durable = await store.make_durable(Ref("s", key), key, shard.stamp, 1.0)
            except OSError:
                durable = False
            hit = faulty.heal()
            assert not [name for name in os.listdir(root / "meta/s") if name.startswith("~")]
            assert await store.make_durable(Ref("s", key), key, shard.stamp, 1.0)
            if not hit:
                assert durable
                break
    assert len(await settled(root)) == k


async def test_a_kill_at_every_call_of_syncing_leaves_a_whole_meta_file(folder: Path, faulty: Disk) -> None:
    root = folder / "cache"
    for k in range(1, 100):
        async with opened(root) as (store, _):
            key = f"{k}.bin"
            shard = await publish(store, key)
            faulty.kill(k)
            with contextlib.suppress(Killed):
                await store.make_durable(Ref("s", key), key, shard.stamp, 1.0)
            hit = faulty.heal()
            assert await asyncio.to_thread(read_meta, store.layout.meta("s", key)) is not None
        assert key in await settled(root)
        if not hit:
            return
    pytest.fail("syncing never came to its end")
