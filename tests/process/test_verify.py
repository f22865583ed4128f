"""`verify`: damage that nothing but a digest shows is found and mended, and nobody who reads is disturbed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import ShardCache
from tests.fakes import content, disk, packing
from tests.fakes.daemon import Daemon
from tests.fakes.damage import spoil
from tests.fakes.origin import Object, Origin, Status
from tests.fakes.waiting import until

SIZE = 300_000
MEMBERS = {f"{n}.jpg": content.data(f"{n}", 20_000) for n in range(5)}


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, SIZE))
        made.put("set.zip", data=packing.zip_bytes(MEMBERS))
        yield made


def verified(daemon: Daemon, **what: object) -> dict[str, Any]:
    """A verification, at its end."""
    answer = daemon.api("POST", "/v1/verify", what)
    assert answer.status == 202, answer
    return daemon.job(answer.body["job"])


def test_a_reader_keeps_what_it_has_and_the_next_one_gets_the_right_bytes(origin: Origin) -> None:
    """A flipped bit, with size and times as they were: nobody sees it but `verify`."""
    with Daemon({"s": origin.url}, scan=0) as daemon, ShardCache("s", socket=str(daemon.socket)) as cache:
        for key in ("a.bin", "b.bin"):
            daemon.path("s", key)
        with cache.open("a.bin") as held:
            place = held.path
            inode = place.stat().st_ino
            with place.open("rb") as reader:
                spoil(place)
                assert daemon.acquire("s", "a.bin").body["result"] == "hit", "nobody noticed"
                said = verified(daemon)
                counts = {name: said[name] for name in ("total", "done", "damaged", "fetched_again", "failed", "gone")}
                assert counts == {"total": 2, "done": 2, "damaged": 1, "fetched_again": 1, "failed": 0, "gone": 0}
                assert place.stat().st_ino != inode
                assert os.fstat(reader.fileno()).st_ino == inode
                assert len(reader.read()) == SIZE
        with cache.open("a.bin") as shard:
            assert content.matches(shard.path, "a.bin", SIZE)
        assert 'level=warning message="s/a.bin is damaged' in daemon.log
        assert daemon.metric("evictions_total", source="s", reason="damaged") == 1
        assert (origin["a.bin"].gets, origin["b.bin"].gets) == (2, 1)


def test_archives_read_in_place_and_unpacked_and_versions(origin: Origin) -> None:
    sources = {
        "s": {"url": origin.url},
        "u": {"url": origin.url, "archives": "unpack"},
        "v": {"url": origin.url, "revalidate": "1h"},
    }
    with Daemon(sources, scan=0) as daemon:
        version = daemon.path("v", "a.bin")
        spoil(version)
        spoil(daemon.path("s", "set.zip"))
        spoil(daemon.path("u", "set.zip") / "3.jpg")
        assert verified(daemon)["fetched_again"] == 3
        assert daemon.path("v", "a.bin") == version
        assert content.matches(version, "a.bin", SIZE)
        assert {path.name: path.read_bytes() for path in daemon.path("u", "set.zip").iterdir()} == MEMBERS
        with ShardCache("s", socket=str(daemon.socket)) as cache, cache.open("set.zip") as shard:
            assert {name: shard.read(name) for name in shard.members} == MEMBERS


def test_the_command(origin: Origin) -> None:
    """All, one source, some keys; what it prints, and its exit status."""
    with Daemon({"s": origin.url, "t": origin.url}, scan=0, fetch={"retries": 0}) as daemon:
        for source, key in (("s", "a.bin"), ("s", "b.bin"), ("t", "a.bin")):
            daemon.path(source, key)
        assert daemon.cli("verify") == (0, "3 shards checked, 900 kB: 0 damaged, 0 fetched again, 0 failed\n", "")
        spoil(daemon.path("s", "a.bin"))
        spoil(daemon.path("t", "a.bin"))
        ran = daemon.cli("verify", "s", "b.bin", "none.bin")
        assert (ran.status, ran.err) == (1, "cachedaemon: 1 of 2 shards failed: s/none.bin is not here\n")
        assert ran.out == "1 shard checked, 300 kB: 0 damaged, 0 fetched again, 0 failed, 1 not here\n"
        said = json.loads(daemon.cli("verify", "s", "--json").out)
        assert (said["state"], said["total"], said["damaged"], said["fetched_again"]) == ("done", 2, 1, 1)
        origin["a.bin"].always = Status(404)
        ran = daemon.cli("verify", "t")
        assert (ran.status, ran.out) == (1, "1 shard checked, 300 kB: 1 damaged, 0 fetched again, 1 failed\n")
        assert ran.err.startswith("cachedaemon: 1 of 1 shard failed: t/a.bin")
        assert ran.err.count("\n") == 1
        assert not daemon.shards("t"), "wrong bytes are served no more"
        assert daemon.cli("verify").status == 0
        ran = daemon.cli("verify", "nosuch")
        assert (ran.status, "nosuch" in ran.err) == (1, True)


def test_suspects_are_proved(origin: Origin) -> None:
    """After another boot what was not synced is checked, by `verify` or before it: then nothing is in doubt."""
    keys = [f"{n}.bin" for n in range(6)]
    with Daemon({"s": origin.url}, scan=0, check=False) as daemon:
        for key in keys:
            daemon.path("s", key)
        daemon.stop()
        for key in keys:
            _unsync(daemon.cache, key)
        spoil(daemon.cache / "shards/s/3.bin")
        disk.other_boot(daemon.cache)
        daemon.start()
        said = verified(daemon)
        assert (said["state"], said["failed"]) == ("done", 0)
        assert "suspect" not in {shard["state"] for shard in daemon.shards()}
        for key in keys:
            assert content.matches(daemon.path("s", key), key, SIZE)
            assert origin[key].gets == (2 if key == "3.bin" else 1)


def _unsync(cache: Path, key: str) -> None:
    path = cache / f"meta/s/{key}.json"
    said = json.loads(path.read_text())
    path.chmod(0o600)
    path.write_text(json.dumps({**said, "synced": False}))


def test_a_stop_in_the_middle(origin: Origin) -> None:
    """The daemon ends as soon as it is told to, and nothing is lost but the job."""
    for number in range(2):
        origin.put(f"big-{number}.bin", 60_000_000)
    with Daemon({"s": origin.url}) as daemon:
        for number in range(2):
            daemon.path("s", f"big-{number}.bin")
        job = daemon.api("POST", "/v1/verify", {}).body["job"]
        until(lambda: daemon.api("GET", f"/v1/jobs/{job}").body["bytes"], 10, "the first bytes")
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
        daemon.start()
        assert daemon.api("GET", f"/v1/jobs/{job}").code == "not_found"
        assert len(daemon.shards()) == 2
