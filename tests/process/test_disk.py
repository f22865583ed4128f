"""A disk that is full, fails or is not what it should be; long keys; a clock that is set back."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OrdinaryUser
from tests.fakes import content, disk, packing
from tests.fakes.api import UnixConnection
from tests.fakes.daemon import Daemon
from tests.fakes.fusefs import fuse_fs
from tests.fakes.mounts import loop_fs, small_tmpfs
from tests.fakes.origin import Object, Origin, busy
from tests.fakes.waiting import until

MIB = 1 << 20


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, 4 * MIB))
        yield made


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


# --- space ---------------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_a_cap_larger_than_the_disk_evicts_and_recovers(origin: Origin) -> None:
    """C-43: also when another process fills the disk meanwhile."""
    with small_tmpfs(40 * MIB) as place:
        how = {"max_shards": 0, "max_bytes": "1GB", "min_free": "4MB", "grace": "50ms"}
        with Daemon({"s": origin.url}, cache_dir=place / "cache", fetch={"retries": 1}, **how) as daemon:
            for n in range(20):
                key = f"{n}.bin"
                assert content.matches(daemon.path("s", key), key, 4 * MIB)
                assert os.statvfs(place).f_bavail * os.statvfs(place).f_frsize >= 4 * 10**6
            daemon.audit()
            _fill(place / "ballast", keep=MIB)
            assert content.matches(daemon.path("s", "more.bin"), "more.bin", 4 * MIB)
            for one in daemon.shards():
                daemon.evict("s", one["key"])
            until(lambda: disk.usage(daemon.cache) == 0, 10)
            _fill(place / "more ballast", keep=MIB)
            answer = daemon.acquire("s", "a.bin", 5)
            assert (answer.status, answer.code) == (507, "no_space")
            assert "s/a.bin" in answer.body["error"]["message"]
            assert "cache.min_free" in answer.body["error"]["message"]
            until(lambda: disk.leftovers(daemon.cache) == [], 10)
            (place / "ballast").unlink()
            (place / "more ballast").unlink()
            assert content.matches(daemon.path("s", "a.bin"), "a.bin", 4 * MIB)
            daemon.audit()


def _fill(path: Path, keep: int) -> None:
    """Write until `keep` bytes are left."""
    with path.open("wb") as file:
        seen = os.statvfs(path)
        file.write(bytes(seen.f_bavail * seen.f_frsize - keep))


@pytest.mark.root
def test_enospc_behind_the_reservations_back(origin: Origin) -> None:
    """The disk fills between the look and the write: temp removed, a clear error, well again when space returns."""
    origin.put("slow.bin", 8 * MIB, bps=4 * MIB)
    with small_tmpfs(24 * MIB) as place:
        how = {"max_shards": 4, "min_free": "1MB"}
        with Daemon({"s": origin.url}, cache_dir=place / "cache", fetch={"retries": 0}, **how) as daemon:
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(daemon.acquire, "s", "slow.bin", 20)
                until(lambda: disk.usage(daemon.cache) > MIB, 20)
                _fill(place / "ballast", keep=0)
                answer = asked.result()
            assert (answer.status, answer.code) == (507, "no_space")
            assert "slow.bin" in answer.body["error"]["message"] or "No space" in answer.body["error"]["message"]
            assert daemon.api("GET", "/healthz").body["status"] == "degraded"
            assert disk.published(daemon.cache) == []
            (place / "ballast").unlink()
            assert content.matches(daemon.path("s", "slow.bin"), "slow.bin", 8 * MIB)
            daemon.audit()


@pytest.mark.root
def test_no_more_inodes(origin: Origin) -> None:
    """Unpacking many small files: refused or made room for, never half."""
    members = {f"{n}": b"x" for n in range(40)}
    for n in range(4):
        origin.put(f"{n}.zip", data=packing.zip_bytes(members))
    with small_tmpfs(16 * MIB, inodes=160) as place:
        source = {"url": origin.url, "archives": "unpack"}
        how = {"max_shards": 0, "max_bytes": "8MB", "min_free": "100kB", "grace": "50ms"}
        with Daemon({"s": source}, cache_dir=place / "cache", fetch={"retries": 1}, **how) as daemon:
            for n in range(4):
                path = daemon.path("s", f"{n}.zip")
                assert len(list(path.iterdir())) == 40
            daemon.audit()


# --- failures ------------------------------------------------------------------------------------------------------


SOME, OTHERS = (["write"], []), (["read"], ["create"], ["rename"], ["unlink"], ["getattr"])
"""Calls of the disk that fail: those always tried, and those for which there is more time."""


@pytest.mark.parametrize("ops", [*SOME, *(pytest.param(ops, marks=pytest.mark.slow) for ops in OTHERS)])
def test_every_tenth_call_fails_with_eio(origin: Origin, folder: Path, ops: list[str]) -> None:
    """C-45: a failure a request at most, health says degraded, no stall, and nothing wrong is served."""
    origin.default(lambda name: Object(name, 200_000))
    with fuse_fs(folder) as mount:
        how = {"max_shards": 3, "grace": "50ms", "scan": "500ms"}
        with Daemon(
            {"s": origin.url}, cache_dir=mount.path / "cache", fetch={"retries": 1}, check=False, **how
        ) as daemon:
            daemon.path("s", "warm.bin")
            mount.turn(errno="EIO", ops=ops, every=10)
            codes, degraded = [], False
            for n in range(12):
                answer = daemon.acquire("s", f"{n}.bin", 10)
                codes.append(answer.code)
                degraded = degraded or daemon.api("GET", "/healthz").body["status"] == "degraded"
            mount.turn()
            assert set(codes) <= {None, "no_space", "cache_full", "wait_expired"}, codes
            assert daemon.alive
            assert degraded or set(codes) == {None}
            for shard in disk.published(daemon.cache):
                name = shard.partition("/")[2]
                assert content.matches(daemon.cache / "shards" / shard, name, 200_000), shard
            for n in range(5):
                assert content.matches(daemon.path("s", f"after-{n}.bin"), f"after-{n}.bin", 200_000)
            assert "Traceback" not in daemon.log
            daemon.restart()
            until(lambda: disk.leftovers(daemon.cache) == [], 10)
            daemon.audit()


def test_a_daemon_short_of_descriptors_says_so_and_recovers(origin: Origin) -> None:
    """EMFILE is no damage: nothing is evicted for it, the error names it, and who connects meanwhile waits."""
    origin.default(lambda name: Object(name, 1000))
    with (
        Daemon({"s": origin.url}, max_shards=50, scan="200ms", fetch={"retries": 0}) as daemon,
        contextlib.closing(daemon.connection()) as inside,
        ThreadPoolExecutor(1) as pool,
    ):
        daemon.path("s", "a.bin")
        inside.request("GET", "/v1/hello")
        inside.getresponse().read()
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        outside = pool.submit(daemon.acquire, "s", "a.bin")
        until(lambda: "connections" in _said(inside, "GET", "/healthz")["reasons"], 20)
        asked = _said(inside, "POST", "/v1/acquire", {"source": "s", "key": "b.bin", "wait": 20})["error"]
        assert asked["code"] == "no_space"
        assert "the daemon is short of something: Too many open files" in asked["message"]
        assert "Too many open files" in _said(inside, "GET", "/healthz")["reasons"]["shortage"]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        assert outside.result().body["result"] == "hit"
        assert origin["a.bin"].gets == 1


def _said(link: UnixConnection, method: str, path: str, body: object = None) -> dict[str, Any]:
    """A call on a connection that is open already."""
    link.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    return dict(json.loads(link.getresponse().read()))


# --- what the start refuses ----------------------------------------------------------------------------------------


def test_the_cache_directory_is_a_file(origin: Origin) -> None:
    """C-45."""
    with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
        daemon.cache.write_text("precious")
        ran = daemon.fails()
        assert ran.status == 1
        line = _one_line(ran.err)
        assert "cache.dir" in line
        assert "not a folder" in line
        assert daemon.cache.read_text() == "precious"


def test_the_cache_directory_is_below_a_file(origin: Origin) -> None:
    with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
        (daemon.home / "file").write_text("precious")
        daemon.tables["cache"]["dir"] = daemon.home / "file/cache"
        ran = daemon.fails()
        assert ran.status == 1
        assert "Not a directory" in _one_line(ran.err)


def test_a_missing_cache_directory_is_made(origin: Origin) -> None:
    origin.put("a.bin", 1000)
    with Daemon({"s": origin.url}, begin=False) as daemon:
        daemon.cache = daemon.home / "not/yet/there"
        daemon.tables["cache"]["dir"] = daemon.cache
        daemon.start()
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", 1000)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_cache_directory_that_may_not_be_written(origin: Origin, as_user: OrdinaryUser, mode: int) -> None:
    """C-45: the right cause in one line, for an ordinary user."""
    with Daemon({"s": origin.url}, begin=False, check=False, wrap=as_user.command([])) as daemon:
        daemon.cache.mkdir()
        as_user.own(daemon.home)
        daemon.cache.chmod(mode)
        ran = daemon.fails()
        assert ran.status == 1
        line = _one_line(ran.err)
        assert "cache.dir" in line
        assert "Permission denied" in line


@pytest.mark.root
@pytest.mark.parametrize("used_before", [False, True])
def test_a_cache_on_a_read_only_file_system(origin: Origin, *, used_before: bool) -> None:
    """C-45."""
    origin.put("a.bin", 1000)
    with (
        loop_fs("ext4", 16 * MIB) as place,
        Daemon({"s": origin.url}, cache_dir=place.path / "cache", begin=False, check=False) as daemon,
    ):
        if used_before:
            daemon.start()
            daemon.path("s", "a.bin")
            daemon.stop()
        place.read_only()
        ran = daemon.fails()
        assert ran.status == 1
        assert "Read-only file system" in _one_line(ran.err)
        place.writable()
        daemon.start()
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", 1000)
        daemon.stop()


@pytest.mark.root
def test_a_file_system_without_a_count_of_inodes_is_not_full(origin: Origin, folder: Path) -> None:
    """C-45: 0 inodes of statvfs means unknown. A FUSE file system is taken with a warning."""
    with fuse_fs(folder) as mount, Daemon({"s": origin.url}, cache_dir=mount.path / "cache", max_shards=2) as daemon:
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", 4 * MIB)
        assert "fuse" in daemon.log


@pytest.mark.parametrize("where", ["the same", "inside", "around", "by a link"])
def test_a_cache_that_overlaps_a_source_is_refused(folder: Path, where: str) -> None:
    """C-28: the source is untouched."""
    source = folder / "data/source"
    source.mkdir(parents=True)
    content.write(source / "a.bin", "a.bin", 1000)
    (folder / "link").symlink_to(source)
    cache = {"the same": source, "inside": source / "cache", "around": folder / "data", "by a link": folder / "link/x"}
    with Daemon({"s": f"file://{source}/"}, cache_dir=cache[where], begin=False, check=False) as daemon:
        ran = daemon.fails()
        assert ran.status == 1
        assert "cache.dir" in _one_line(ran.err)
        assert os.listdir(source) == ["a.bin"]
        assert content.matches(source / "a.bin", "a.bin", 1000)


# --- keys ----------------------------------------------------------------------------------------------------------


KEYS = [
    *("x" * length + ".bin" for length in (236, 246, 251, 296)),
    *("\u00e9" * (length // 2) + ".bin" for length in (240, 250, 300)),
    "/".join(["segment" * 20] * 7) + "/" + "y" * 30,
    ".hidden",
    "a b%2Fc?d#e",
    "\u65e5\u672c/\U0001f40d.zip.bin",
    "-rf",
    "~1",
]


def test_long_and_odd_keys_have_a_stable_local_name(origin: Origin) -> None:
    """C-46: fetched, served under one name, found again after a restart; no name leaves its folder."""
    origin.default(lambda name: Object(name, 1000))
    with Daemon({"s": origin.url}, max_shards=50) as daemon:
        paths = {}
        for key in KEYS:
            path = paths[key] = daemon.path("s", key)
            assert path.parent == daemon.cache / "shards/s"
            assert path.stat().st_size == 1000
        assert len(set(paths.values())) == len(KEYS)
        daemon.restart()
        assert {one["key"] for one in daemon.shards()} == set(KEYS)
        for key in KEYS:
            answer = daemon.acquire("s", key)
            assert (answer.body["result"], answer.body["path"]) == ("hit", str(paths[key]))
        for key in ("..", "../../etc/passwd", "a/../b", ""):
            assert daemon.acquire("s", key).code == "bad_request"
        daemon.audit()


# --- clocks --------------------------------------------------------------------------------------------------------


def test_stamps_from_the_future_are_clamped(origin: Origin) -> None:
    """C-50: a cache that was used in 2030, today: eviction still works, and what is used now counts as newer."""
    origin.default(lambda name: Object(name, 1000))
    with Daemon({"s": origin.url}, max_shards=4, grace="50ms") as daemon:
        for key in ("a.bin", "b.bin", "c.bin", "d.bin"):
            daemon.path("s", key)
        daemon.stop()
        for n, key in enumerate(("c.bin", "a.bin", "d.bin", "b.bin")):
            stamp = 1_900_000_000 + n
            os.utime(daemon.cache / f"meta/s/{key}.json", (stamp, stamp))
        daemon.start()
        now = time.time()
        assert all(one["last_used"] <= now + 5 for one in daemon.shards())
        until(lambda: all(p.stat().st_mtime < now + 60 for p in (daemon.cache / "meta/s").glob("*.json")), 10)
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [["c.bin", 0]]})
        for n in range(3):
            daemon.path("s", f"{n}.bin")
        assert {one["key"] for one in daemon.shards()} == {"c.bin", "0.bin", "1.bin", "2.bin"}
        assert disk.published(daemon.cache) == ["s/0.bin", "s/1.bin", "s/2.bin", "s/c.bin"]


def _is_free(path: Path) -> bool:
    """Whether nobody holds a lock on a shard, the daemon for an asker neither."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.fixture
def clock(folder: Path) -> tuple[Path, dict[str, str]]:
    """Where to write how far the system's clock is off, and the environment of a process that goes by it.

    As when the clock is set: what counts seconds and what the file system says stay as they are.
    """
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    asked = subprocess.run(["faketime", "-f", "+0", "env"], capture_output=True, text=True, check=True).stdout
    preload = next(line.partition("=")[2] for line in asked.splitlines() if line.startswith("LD_PRELOAD="))
    place = folder / "clock"
    place.write_text("+0")
    steady = dict.fromkeys(
        ("FAKETIME_NO_CACHE", "DONT_FAKE_MONOTONIC", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"), "1"
    )
    return place, {"LD_PRELOAD": preload, "FAKETIME_TIMESTAMP_FILE": str(place), **steady}


def test_a_clock_that_is_set_back_changes_no_duration(origin: Origin, clock: tuple[Path, dict[str, str]]) -> None:
    """C-50: grace and the order of use go by a clock that nobody sets."""
    place, env = clock
    origin.default(lambda name: Object(name, 1000))
    with Daemon({"s": origin.url}, max_shards=2, grace="1s", env=env) as daemon:
        daemon.path("s", "a.bin")
        daemon.path("s", "b.bin")
        place.write_text("-3600")
        began = time.monotonic()
        until(lambda: all(_is_free(daemon.cache / "shards" / shard) for shard in disk.published(daemon.cache)), 10)
        assert time.monotonic() - began < 20
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [["a.bin", 0]]})
        daemon.path("s", "c.bin")
        assert {one["key"] for one in daemon.shards()} == {"a.bin", "c.bin"}
        daemon.audit()
        daemon.restart()
        assert {one["key"] for one in daemon.shards()} == {"a.bin", "c.bin"}
        daemon.path("s", "d.bin")
        daemon.audit()


@pytest.mark.slow
def test_a_clock_that_is_set_back_keeps_no_plan_and_holds_up_no_try(
    origin: Origin, clock: tuple[Path, dict[str, str]]
) -> None:
    """C-50: a plan ends with its owner, and a try comes after the pause that it was meant to come after."""
    place, env = clock
    origin.default(lambda name: Object(name, 1000))
    origin.put("busy.bin", 1000, statuses=[busy(2), busy(), busy()])
    plan = {"source": "s", "keys": ["a.bin", "b.bin"]}
    with Daemon({"s": origin.url}, fetch={"retries": 5}, env=env) as daemon, ThreadPoolExecutor(1) as pool:
        file = Path(daemon.api("PUT", "/v1/plans/p", plan).body["file"])
        with file.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            asked = pool.submit(daemon.path, "s", "busy.bin", 60)
            until(lambda: origin["busy.bin"].gets, 20)
            place.write_text("-3600")
            assert content.matches(asked.result(), "busy.bin", 1000)
            assert [one["id"] for one in daemon.status()["plans"]] == ["p"]
        until(lambda: not daemon.status()["plans"], 20, "the plan's end")
        until(lambda: daemon.api("GET", "/healthz").body["status"] == "ok", 45)
