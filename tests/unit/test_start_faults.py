"""Every disk call of a start fails once, and is the last one before a kill once: the next start finds all that was there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from cachedaemon.errors import StartError
from cachedaemon.store import SourceMark, Store
from cachedaemon.store.layout import Layout, Modes
from cachedaemon_client import lease
from tests.fakes import disk as outside
from tests.unit.store_kit import Disk, Killed, faulty, opened, publish

__all__ = ["faulty"]

pytestmark = [pytest.mark.asyncio(loop_factories=["asyncio"]), pytest.mark.timeout(180)]


STATES = pytest.mark.parametrize(
    ("other_boot", "renewed"),
    [(False, False), (True, False), (False, True)],
    ids=["same boot", "other boot", "renewed"],
)


async def _left_behind(root: Path) -> None:
    """A directory as a kill may leave it: shards, transfers, trash, plans, orphans of all kinds."""
    async with opened(root) as (store, _):
        for key in ("a.bin", "b.bin", "c.bin"):
            await publish(store, key)
        await publish(store, "d.zip", folder=True)
    (root / "staging/7").mkdir()
    (root / "staging/7/data").write_bytes(b"half")
    (root / "trash/3/deep/deeper").mkdir(parents=True)
    (root / "trash/3/deep/deeper/member").write_bytes(b"gone")
    (root / "trash/4").write_bytes(b"gone")
    (root / "plans/mine").touch()
    (root / "meta/s/gone.bin.json").write_text("{}")
    (root / "members/s/gone.bin").write_text("")
    (root / "members/s/orphan.bin").write_text("")
    for path in ("meta/s/~9", "members/s/~9"):
        (root / path).write_text("half")
        (root / path).chmod(0o440)


def _copy(master: Path, root: Path) -> None:
    """Times and modes too; another inode, as after a move of the cache."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(master, root)


@STATES
async def test_the_start_survives_an_error_at_every_call(
    folder: Path, faulty: Disk, *, other_boot: bool, renewed: bool
) -> None:
    """It says why it cannot start, or starts; the next start finds all shards either way."""
    master, root = folder / "master", folder / "cache"
    await _left_behind(master)
    if other_boot:
        outside.other_boot(master)
    mark = SourceMark("s", "other" if renewed else "digest", "opaque", direct=True)
    refused = 0
    for k in range(1, 1000):
        _copy(master, root)
        faulty.fail(k, errno.EIO)
        try:
            async with opened(root, mark):
                pass
        except StartError as cause:
            refused += 1
            assert os.strerror(errno.EIO) in str(cause)  # noqa: PT017 - it may be raised, and need not
        hit = faulty.heal()
        await _all_there(root, mark, suspect=other_boot, count=0 if renewed else 4)
        if not hit:
            assert refused > 20
            return
    pytest.fail("the start never came to its end")


@STATES
async def test_the_start_survives_a_kill_at_every_call(
    folder: Path, faulty: Disk, *, other_boot: bool, renewed: bool
) -> None:
    """After another boot no shard is served unchecked, wherever the first start was killed."""
    master, root = folder / "master", folder / "cache"
    await _left_behind(master)
    if other_boot:
        outside.other_boot(master)
    mark = SourceMark("s", "other" if renewed else "digest", "opaque", direct=True)
    for k in range(1, 1000):
        _copy(master, root)
        faulty.kill(k)
        store = Store(Layout(root), Modes.for_group(None))
        with contextlib.suppress(Killed):
            await store.open([mark])
        hit = faulty.heal()
        await asyncio.to_thread(store.close)
        await _all_there(root, mark, suspect=other_boot, count=0 if renewed else 4)
        if not hit:
            return
    pytest.fail("the start never came to its end")


async def _all_there(root: Path, mark: SourceMark, *, suspect: bool, count: int) -> None:
    async with opened(root, mark) as (store, found):
        assert len(found.found) == count
        assert all(one.suspect == suspect for one in found.found)
        assert not found.foreign
        assert not os.listdir(root / "staging")
        for path, _ in found.trash:
            assert await store.reap(path)
        assert not outside.leftovers(root)
        assert not outside.strays(root)
        if suspect:
            assert not os.listdir(root / "shards/s")
        for one in found.found:
            if not suspect:
                held = await store.hold(one.ref, one.name, one.stamp, indexed=False, checked=False)
                with pytest.raises(lease.Busy):
                    await store.evict(one.ref, one.name, one.stamp)
                await store.let_go(held)
