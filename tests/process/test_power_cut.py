"""A power cut right after publishing: nothing wrong is served, and what was synced is served without hashing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content, disk, packing
from tests.fakes.daemon import Daemon
from tests.fakes.mounts import loop_fs
from tests.fakes.origin import Object, Origin
from tests.fakes.waiting import until

pytestmark = pytest.mark.root
MIB = 1 << 20
SIZE = 2 * MIB


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, SIZE))
        yield made


def _synced(cache: Path, key: str) -> bool:
    try:
        return bool(json.loads((cache / f"meta/s/{key}.json").read_text())["synced"])
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.timeout(180)
def test_a_power_cut_right_after_publishing(origin: Origin, kind: str) -> None:
    """The shards that came last may be lost or empty: they are proved or fetched again, never served as they are."""
    with loop_fs(kind, 128 * MIB) as place:
        how = {"max_shards": 0, "max_bytes": "90MB", "grace": "50ms", "scan": 0}
        with Daemon({"s": origin.url}, cache_dir=place.path / "cache", check=False, **how) as daemon:
            old = [f"old-{n}.bin" for n in range(4)]
            for key in old:
                daemon.path("s", key)
            until(lambda: all(_synced(daemon.cache, key) for key in old), 30, "the syncing")
            new = [f"new-{n}.bin" for n in range(12)]
            for key in new:
                daemon.path("s", key)
            place.power_cut()
            daemon.kill9()
            place.remount()
            known = [key for key in new if _synced(daemon.cache, key)]
            disk.other_boot(daemon.cache)
            origin.zero()
            daemon.start()
            for key in old + known:
                answer = daemon.acquire("s", key)
                assert answer.body["result"] == "hit", (key, answer.body, daemon.log)
                assert origin[key].gets == 0
            for key in old + new:
                assert content.matches(daemon.path("s", key), key, SIZE), key
            until(lambda: not _suspects(daemon.cache), 20)
            daemon.audit()


def _suspects(cache: Path) -> list[str]:
    return [name for source in os.listdir(cache / "suspect") for name in os.listdir(cache / "suspect" / source)]


def _spoil(path: Path) -> None:
    """Other bytes, the same size and times: what only a digest can tell."""
    seen = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"spoilt")
    path.chmod(0o444)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _unsync(cache: Path, key: str) -> None:
    path = cache / f"meta/s/{key}.json"
    said = json.loads(path.read_text())
    path.chmod(0o600)
    path.write_text(json.dumps({**said, "synced": False}))


def test_after_another_boot_unsynced_shards_are_proved_and_synced_ones_are_not_hashed(origin: Origin) -> None:
    """Invariant 6: damage that only a digest shows is found in what was not synced, and nobody looks at the rest."""
    members = {f"{n}.jpg": content.data(f"{n}", 20_000) for n in range(20)}
    origin.put("tree.zip", data=packing.zip_bytes(members))
    origin.put("bad-tree.zip", data=packing.zip_bytes(members))
    sources = {"s": {"url": origin.url, "archives": "unpack"}}
    with Daemon(sources, scan=0, check=False) as daemon:
        keys = ["good.bin", "bad.bin", "synced.bin", "lost.bin", "tree.zip", "bad-tree.zip"]
        for key in keys:
            daemon.path("s", key)
        until(lambda: all(_synced(daemon.cache, key) for key in keys), 30)
        daemon.stop()
        shards = daemon.cache / "shards/s"
        for key in ("good.bin", "bad.bin", "lost.bin", "tree.zip", "bad-tree.zip"):
            _unsync(daemon.cache, key)
        _spoil(shards / "bad.bin")
        _spoil(shards / "synced.bin")
        _spoil(shards / "bad-tree.zip/3.jpg")
        os.truncate(daemon.cache / "meta/s/lost.bin.json", 0)
        disk.other_boot(daemon.cache)
        origin.zero()
        daemon.start()
        # What was synced is believed, spoilt as it is here: nobody hashed it.
        assert daemon.acquire("s", "synced.bin").body["result"] == "hit"
        assert not content.matches(shards / "synced.bin", "synced.bin", SIZE)
        for key in ("good.bin", "bad.bin", "lost.bin"):
            assert content.matches(daemon.path("s", key), key, SIZE)
        for key in ("tree.zip", "bad-tree.zip"):
            path = daemon.path("s", key)
            assert {one.name: one.read_bytes() for one in path.iterdir()} == members
        until(lambda: not _suspects(daemon.cache), 20)
        gets = {key: origin[key].gets for key in keys}
        assert gets == {"good.bin": 0, "bad.bin": 1, "synced.bin": 0, "lost.bin": 1, "tree.zip": 0, "bad-tree.zip": 1}
        daemon.audit()
        origin.zero()
        daemon.restart()
        assert daemon.acquire("s", "good.bin").body["result"] == "hit"


def test_a_stop_while_suspects_are_checked_loses_none(origin: Origin) -> None:
    with Daemon({"s": origin.url}, scan=0, max_shards=40) as daemon:
        keys = [f"{n}.bin" for n in range(30)]
        for key in keys:
            daemon.path("s", key)
        until(lambda: all(_synced(daemon.cache, key) for key in keys), 30)
        daemon.stop()
        for key in keys:
            _unsync(daemon.cache, key)
        disk.other_boot(daemon.cache)
        origin.zero()
        for _ in range(4):
            daemon.start()
            assert daemon.stop() == 0
        daemon.start()
        until(lambda: not _suspects(daemon.cache), 30)
        assert daemon.status()["cache"]["shards"] == 30
        for key in keys:
            assert daemon.acquire("s", key).body["result"] == "hit"
        assert origin.gets == 0
