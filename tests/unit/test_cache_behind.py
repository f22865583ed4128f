"""What somebody does to shards and folders behind the daemon's back: it is neither served nor left out of the count."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from cachedaemon.cache import CHECK
from cachedaemon.errors import NoSpace
from cachedaemon.model import Ref
from cachedaemon.store.scan import Known
from tests.fakes import content
from tests.unit.test_cache_cancel import SIZE, acquire, running, settle

LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
REF = Ref("s", "0.bin")


async def damage(path: str) -> None:
    """The same inode, another size."""
    os.chmod(path, 0o644)
    await asyncio.to_thread(Path(path).write_bytes, b"short")


@LOOP
@pytest.mark.parametrize("asked", [True, False])
async def test_an_exchanged_shard_goes_with_its_eviction(folder: Path, *, asked: bool) -> None:
    """By name and for room: no reader takes what stands there for the shard, and what it takes is counted."""
    async with running(folder, "opaque", 1) as daemon:
        place = (await acquire(daemon.cache, "0.bin")).path
        await settle(daemon.cache, folder)
        other = folder / "cache/shards/s/other"
        await asyncio.to_thread(other.write_bytes, b"x" * 3 * SIZE)
        os.rename(other, place)
        if asked:
            await daemon.cache.eviction.evict(Ref("s", "0.bin"))
        else:
            await acquire(daemon.cache, "1.bin")
        assert not await asyncio.to_thread(os.path.lexists, place)
        assert daemon.cache.ledger.get(REF) is None
        await settle(daemon.cache, folder)


@LOOP
async def test_a_damaged_shard_goes_although_trash_was_removed(folder: Path) -> None:
    async with running(folder, "opaque") as daemon:
        place = (await acquire(daemon.cache, "0.bin")).path
        await settle(daemon.cache, folder)
        os.rmdir(folder / "cache/trash")
        await damage(place)
        entry = daemon.cache.ledger.get(REF)
        assert entry is not None
        await daemon.cache.eviction.lose(entry)
        assert not await asyncio.to_thread(os.path.lexists, place)
        await settle(daemon.cache, folder)


@LOOP
async def test_a_damaged_shard_that_the_disk_keeps_is_counted_and_not_served(folder: Path) -> None:
    """The asker hears why; as soon as the disk allows it the shard is fetched anew."""
    async with running(folder, "opaque") as daemon:
        place = (await acquire(daemon.cache, "0.bin")).path
        await settle(daemon.cache, folder)
        trash = folder / "cache/trash"
        os.rmdir(trash)
        await asyncio.to_thread(trash.touch)
        await damage(place)
        for _ in range(2):
            with pytest.raises(NoSpace, match=r"removing s/0\.bin: .*ENOTDIR"):
                await acquire(daemon.cache, "0.bin")
            assert daemon.cache.ledger.get(REF) is not None
        assert "ENOTDIR" in daemon.upkeep.health["trash"]
        await daemon.upkeep.look()
        assert len(daemon.cache.ledger) == 1
        os.unlink(trash)
        place = (await acquire(daemon.cache, "0.bin")).path
        assert await asyncio.to_thread(content.matches, Path(place), "0.bin", SIZE)
        await settle(daemon.cache, folder)


@LOOP
@pytest.mark.parametrize("suspect", [False, True], ids=["evicted", "proved"])
async def test_what_goes_or_is_proved_during_a_look_is_not_taken_for_damaged(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, suspect: bool
) -> None:
    """The look has noted where it lay, and does not find it there any more."""
    async with running(folder, "opaque") as daemon:
        place = (await acquire(daemon.cache, "0.bin")).path
        await settle(daemon.cache, folder)
        entry, usual = daemon.cache.ledger.get(REF), daemon.store.changed
        assert entry is not None
        if suspect:
            aside = daemon.store.layout.suspect("s", entry.name)
            os.makedirs(os.path.dirname(aside), exist_ok=True)
            os.rename(place, aside)
            entry.suspect = True

        async def changed(known: Collection[Known]) -> list[Ref]:
            if suspect:
                await daemon.cache.bring("s", "0.bin", CHECK)
            else:
                await daemon.cache.eviction.evict(REF)
            return list(await usual(known))

        monkeypatch.setattr(daemon.store, "changed", changed)
        await daemon.upkeep.look()
        assert daemon.cache.ledger.get(REF) is (entry if suspect else None)
        assert "by somebody else" not in caplog.text
        await settle(daemon.cache, folder)
