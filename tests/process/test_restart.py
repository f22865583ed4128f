"""What a restart finds: the order of use, leftovers, foreign files, and a cache directory that somebody changed."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fakes import content, disk, packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Object, Origin
from tests.fakes.waiting import until

SIZE = 10_000


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, SIZE))
        yield made


def _names(daemon: Daemon) -> set[str]:
    return {one["key"] for one in daemon.shards()}


def _fill(daemon: Daemon, keys: list[str], source: str = "s") -> None:
    for key in keys:
        daemon.path(source, key)


def _no_grace(daemon: Daemon) -> None:
    """The daemon's promises for what was asked by hand have ended."""
    until(lambda: all(_is_free(daemon.cache / "shards" / shard) for shard in disk.published(daemon.cache)), 10)


def _is_free(path: Path) -> bool:
    """Whether nobody holds a lock on it; what is no file of ours counts as free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


@pytest.mark.parametrize("end", ["stop", "kill -9"])
def test_a_restart_keeps_the_order_of_use(origin: Origin, end: str) -> None:
    """Nothing is fetched again, and what was used last goes last."""
    keys = [f"{n}.bin" for n in range(6)]
    with Daemon({"s": origin.url}, max_shards=6, grace="50ms") as daemon:
        _fill(daemon, keys)
        order = ["3.bin", "0.bin", "5.bin", "1.bin", "4.bin", "2.bin"]
        for key in order:
            daemon.api("POST", "/v1/touch", {"source": "s", "used": [[key, 0]]})
        until(lambda: _in_order(daemon.cache, order), 10, "the last uses on the disk")
        if end == "stop":
            assert daemon.stop() == 0
        else:
            daemon.kill9()
        origin.zero()
        daemon.start()
        assert origin.gets == 0
        for n, gone in enumerate(order[:-1]):
            daemon.path("s", f"new-{n}.bin")
            assert gone not in _names(daemon)
            assert set(order[n + 1 :]) <= _names(daemon)


def _in_order(cache: Path, order: list[str]) -> bool:
    stamps = [(cache / f"meta/s/{key}.json").stat().st_mtime for key in order]
    return stamps == sorted(stamps) and len(set(stamps)) == len(stamps)


def test_a_clean_stop_writes_the_last_uses(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=2, grace="50ms") as daemon:
        _fill(daemon, ["a.bin", "b.bin"])
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [["a.bin", 0]]})
        daemon.restart()
        daemon.path("s", "c.bin")
        assert _names(daemon) == {"a.bin", "c.bin"}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "broken",
    ["empty", "newer", "missing", *(pytest.param(kind, marks=SLOW) for kind in ("truncated", "garbage", "a list"))],
)
def test_a_broken_index_is_rebuilt(origin: Origin, broken: str) -> None:
    """C-40: daemon.json and meta files that are truncated, empty or of a newer version cost no shard that is whole."""
    with Daemon({"s": origin.url}) as daemon:
        _fill(daemon, ["a.bin", "b.bin"])
        until(lambda: "true" in (daemon.cache / "meta/s/b.bin.json").read_text(), 20)
        daemon.stop()
        path = daemon.cache / "daemon.json"
        text = path.read_text()
        _break(path, text, broken)
        _break(daemon.cache / "meta/s/a.bin.json", (daemon.cache / "meta/s/a.bin.json").read_text(), broken)
        daemon.start()
        for key in ("a.bin", "b.bin"):
            assert content.matches(daemon.path("s", key), key, SIZE)
        assert origin["b.bin"].gets == 1
        assert json.loads(path.read_text())["boot_id"] == json.loads(text)["boot_id"]
        daemon.audit()


def _break(path: Path, text: str, how: str) -> None:
    path.chmod(0o600)
    if how == "missing":
        path.unlink()
    else:
        newer = json.dumps({**json.loads(text), "format": 999, "more": [1]})
        broken = {
            "empty": "",
            "truncated": text[: len(text) // 2],
            "garbage": "\0\xff{",
            "newer": newer,
            "a list": "[1]",
        }
        path.write_text(broken[how])


@pytest.mark.parametrize("damage", ["truncated", "longer", "deleted", "folder", "link"])
@pytest.mark.parametrize("running", [True, False])
def test_a_shard_that_somebody_changed_is_fetched_again(origin: Origin, damage: str, *, running: bool) -> None:
    """Invariant 5: noticed at acquire, while the daemon runs and while it does not."""
    with Daemon({"s": origin.url}, scan=0) as daemon:
        path = daemon.path("s", "a.bin")
        if not running:
            daemon.stop()
        path.chmod(0o600)
        if damage in ("truncated", "longer"):
            os.truncate(path, SIZE - 1 if damage == "truncated" else SIZE + 1)
        else:
            path.unlink()
        if damage == "folder":
            path.mkdir()
        if damage == "link":
            path.symlink_to("/etc/passwd")
        if not running:
            daemon.start()
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", SIZE)
        assert not path.is_symlink()
        assert origin["a.bin"].gets == 2
        daemon.audit()


def test_the_scan_notices_damage_by_itself(origin: Origin) -> None:
    with Daemon({"s": origin.url}, scan="200ms") as daemon:
        _fill(daemon, ["a.bin", "b.bin", "c.bin"])
        os.unlink(daemon.cache / "shards/s/a.bin")
        os.truncate(daemon.cache / "shards/s/b.bin", 10)
        until(lambda: _names(daemon) == {"c.bin"}, 10)
        daemon.audit()


def test_foreign_files_are_left_alone_and_reported(origin: Origin, folder: Path) -> None:
    """C-28, invariant 7: links are not followed, nothing outside is touched, the start succeeds with a warning."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    with Daemon({"s": origin.url}, max_shards=2, check=False) as daemon:
        _fill(daemon, ["a.bin"])
        daemon.stop()
        shards = daemon.cache / "shards/s"
        (daemon.cache / "stray.txt").write_text("mine")
        (daemon.cache / "link").symlink_to(outside)
        (shards / "link.bin").symlink_to(outside / "precious")
        (shards / "folder").mkdir()
        (shards / "folder/mine").write_text("mine")
        (shards / "stray.bin").write_text("mine")
        (shards / "unreadable.bin").touch(0)
        (daemon.cache / "shards/other").symlink_to(outside)
        (daemon.cache / "staging/link").symlink_to(outside)
        (daemon.cache / "trash/link").symlink_to(outside)
        os.mkfifo(daemon.cache / "trash/pipe")
        os.mkfifo(shards / "pipe.bin")
        daemon.start()
        assert daemon.acquire("s", "a.bin").body["result"] == "hit"
        assert _names(daemon) == {"a.bin"}
        for n in range(4):
            daemon.path("s", f"{n}.bin")
            _no_grace(daemon)
        for name in (
            "stray.txt",
            "link",
            "shards/s/link.bin",
            "shards/s/folder/mine",
            "shards/s/stray.bin",
            "shards/other",
        ):
            assert os.path.lexists(daemon.cache / name), name
            assert str(daemon.cache / name).removesuffix("/mine") in daemon.log
        assert (outside / "precious").read_text() == "precious"
        until(lambda: not os.listdir(daemon.cache / "trash"), 10)
        assert content.matches(daemon.path("s", "stray.bin"), "stray.bin", SIZE)
        assert content.matches(daemon.path("s", "folder"), "folder", SIZE)
        assert content.matches(daemon.path("s", "pipe.bin"), "pipe.bin", SIZE)
        until(lambda: not os.listdir(daemon.cache / "trash"), 10)


def test_a_link_in_place_of_a_folder_is_refused(origin: Origin, folder: Path) -> None:
    (folder / "outside").mkdir()
    with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
        daemon.cache.mkdir()
        (daemon.cache / "trash").symlink_to(folder / "outside")
        ran = daemon.fails()
        assert ran.status == 1
        assert "symbolic link" in ran.err
        assert os.listdir(folder / "outside") == []


def test_another_url_archives_or_etl_between_two_runs(origin: Origin) -> None:
    """`.source`: shards of another configuration go to trash before anybody is answered."""
    with Origin() as other:
        members = {"x": b"1" * 5000}
        for each in (origin, other):
            each.put("a.zip", data=packing.zip_bytes(members))
        with Daemon({"s": origin.url}) as daemon:
            assert daemon.path("s", "a.zip").is_file()
            daemon.tables["sources"]["s"]["archives"] = "unpack"
            daemon.restart()
            assert daemon.path("s", "a.zip").is_dir()
            daemon.tables["sources"]["s"]["url"] = other.url
            daemon.restart()
            assert daemon.status()["cache"]["shards"] == 0
            assert daemon.path("s", "a.zip").is_dir()
            assert other["a.zip"].gets == 1
            daemon.audit()


def test_a_lower_cap_at_restart_takes_only_the_surplus(origin: Origin) -> None:
    """C-40: in the order of last use; new requests over the cap evict old files."""
    with Daemon({"s": origin.url}, max_shards=8, grace="50ms") as daemon:
        _fill(daemon, [f"{n}.bin" for n in range(8)])
        daemon.tables["cache"]["max_shards"] = 4
        daemon.restart()
        until(lambda: len(disk.published(daemon.cache)) == 4, 10)
        assert _names(daemon) == {"4.bin", "5.bin", "6.bin", "7.bin"}
        daemon.path("s", "8.bin")
        assert _names(daemon) == {"5.bin", "6.bin", "7.bin", "8.bin"}


def test_readers_are_not_disturbed_by_a_restart(origin: Origin) -> None:
    snippet = """
cache = ShardCache("s")
with cache.open("a.bin") as shard:
    say("open"); hear()
    assert content.matches(shard.path, "a.bin", 10000)
with cache.open("a.bin") as shard:
    say(shard.hit); hear()
with cache.open("b.bin") as shard:
    say(content.matches(shard.path, "b.bin", 10000))
"""
    with Daemon({"s": origin.url}, max_shards=1) as daemon, readers.Reader(daemon, snippet) as reader:
        assert reader.line() == "open"
        daemon.stop()
        daemon.start()
        assert daemon.acquire("s", "c.bin", 0.5).code == "cache_full"
        reader.tell()
        assert reader.line() is True
        daemon.kill9()
        daemon.start()
        reader.tell()
        assert reader.rest() == [True]


READING = """
import random, select
chance, count = random.Random(ARG), 0
with ShardCache("s", wait=60) as cache:
    while not select.select([sys.stdin], [], [], 0)[0]:
        key = f"{chance.randrange(24)}.bin"
        with cache.open(key) as shard:
            assert content.matches(shard.path, key, 10000), key
        count += 1
        if count % 25 == 0:
            say(time.monotonic())
say("end")
"""


def _release(folder: Path) -> str:
    """This version in another place, under another number: what an upgrade leads to; for PYTHONPATH."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "cachedaemon", folder / "new/cachedaemon", ignore=ignored)
    shutil.copytree(PROJECT / "client/cachedaemon_client", folder / "new/cachedaemon_client", ignore=ignored)
    version = folder / "new/cachedaemon/__init__.py"
    version.write_text(re.sub("(?m)^__version__ = .*", '__version__ = "9.9"', version.read_text()))
    return str(folder / "new")


@SLOW
def test_restart_upgrade_and_crash_under_eight_readers(origin: Origin, folder: Path) -> None:
    """Hits and misses go on; no reader sees an error, and none reads wrong bytes."""
    with Daemon({"s": origin.url}, max_shards=16) as daemon, contextlib.ExitStack() as stack:
        reading = [stack.enter_context(readers.Reader(daemon, READING, seed)) for seed in range(8)]

        def go_on() -> None:
            now = time.monotonic()
            for one in reading:
                until(lambda one=one: one.line() > now, 60)

        go_on()
        daemon.restart()
        go_on()
        daemon.kill9()
        daemon.start()
        go_on()
        daemon.env["PYTHONPATH"] = _release(folder)
        daemon.restart()
        go_on()
        assert daemon.status()["version"] == "9.9"
        for one in reading:
            one.tell()
            assert one.rest()[-1] == "end", one.errors


PLANNED = """
import random, select
chance, keys = random.Random(ARG), [f"{n}.zip" for n in range(24)]
with ShardCache("s", wait=60) as cache:
    while not select.select([sys.stdin], [], [], 0)[0]:
        chance.shuffle(keys)
        with cache.plan(keys[:6], holds=2) as plan:
            for shard in plan:
                for n in range(20):
                    name = f"{n}.jpg"
                    data = shard.read(name) if shard.path.is_file() else (shard.path / name).read_bytes()
                    assert data == content.data(f"{shard.key}/{name}", 500), shard.key
        say(time.monotonic())
say("end")
"""
OTHERS: list[dict[str, dict[str, object]]] = [
    {"cache": {"max_shards": 18, "grace": "200ms", "policy": "lru"}},
    {"sources": {"archives": "unpack"}},
    {"sources": {"archives": "index", "revalidate": "always"}, "cache": {"max_shards": 30}},
    {"sources": {"revalidate": "never", "url": "moved/"}, "cache": {"policy": "auto"}},
]
"""Configurations, each after the one before: by turns after a kill and after a stop."""


@SLOW
@pytest.mark.timeout(400)
def test_another_configuration_under_eight_readers(origin: Origin) -> None:
    """Caps, policy, archives, versions and the place itself are others after a start; readers with plans see no error."""
    for n in range(24):
        packed = packing.zip_bytes({f"{m}.jpg": content.data(f"{n}.zip/{m}.jpg", 500) for m in range(20)})
        for name in (f"{n}.zip", f"moved/{n}.zip"):
            origin.put(name, data=packed)
    with Daemon({"s": origin.url}, max_shards=24) as daemon, contextlib.ExitStack() as stack:
        reading = [stack.enter_context(readers.Reader(daemon, PLANNED, seed)) for seed in range(8)]

        def go_on() -> None:
            now = time.monotonic()
            for one in reading:
                until(lambda one=one: one.line() > now, 60)

        go_on()
        for number, other in enumerate(OTHERS):
            daemon.tables["cache"] |= other.get("cache", {})
            daemon.tables["sources"]["s"] |= other.get("sources", {})
            if (url := daemon.tables["sources"]["s"]["url"]) == "moved/":
                daemon.tables["sources"]["s"]["url"] = f"{origin.url}{url}"
            daemon.stop() if number % 2 else daemon.kill9()
            daemon.start()
            go_on()
        for one in reading:
            one.tell()
            assert one.rest()[-1] == "end", one.errors
        assert sum(origin[f"moved/{n}.zip"].gets for n in range(24)) > 0


# --- the cache directory is removed ----------------------------------------------------------------------------------


def _remove(target: Path) -> None:
    """With what is in it, also what the daemon writes meanwhile."""
    if target.is_file():
        target.unlink()
        return
    shutil.rmtree(target, ignore_errors=True)
    if (
        target.exists()
    ):  # a shard came between the last look and the end; or it is made anew already, and goes once more
        with tempfile.TemporaryDirectory(dir="/tmp") as away, contextlib.suppress(FileNotFoundError):
            target.rename(Path(away) / "gone")


@pytest.mark.parametrize(
    "what", ["", "..", "shards", "shards/s", "meta", "members/s", "staging", "trash", "daemon.json"]
)
def test_the_cache_directory_is_removed_under_load(origin: Origin, folder: Path, what: str) -> None:
    """C-41: made anew and fetched again; no path is handed out that does not exist, the counters are right again."""
    parent = folder / "parent"
    with Daemon({"s": origin.url}, cache_dir=parent / "cache", max_shards=8, grace="100ms", scan="300ms") as daemon:
        going = True

        def ask(seed: int) -> int:
            chance, wrong = random.Random(seed), 0
            while going:
                key = f"{chance.randrange(12)}.bin"
                with contextlib.suppress(OSError, http.client.HTTPException):
                    answer = daemon.acquire("s", key, 5)
                    wrong += answer.status == 500
            return wrong

        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(ask, seed) for seed in range(3)]
            try:
                until(lambda: daemon.status()["cache"]["shards"] == 8, 20)
                _remove(parent if what == ".." else parent / "cache" / what)
                until(
                    lambda: (parent / "cache/daemon.json").exists() and (parent / "cache/meta/s/.source").exists(), 10
                )
            finally:
                going = False
            assert [run.result() for run in runs] == [0, 0, 0], daemon.log
        for n in range(12):
            key = f"{n}.bin"
            assert content.matches(daemon.path("s", key), key, SIZE)
        _no_grace(daemon)
        daemon.audit()
        assert daemon.alive


# --- many ------------------------------------------------------------------------------------------------------------


def _many(cache: Path, count: int) -> None:
    """As many sparse shards of 1 MiB as if they had been fetched, one second of last use apart."""
    now = time.time() - count
    for n in range(count):
        name = f"{n:06d}.bin"
        with (cache / "shards/s" / name).open("wb") as file:
            file.truncate(1 << 20)
        meta = cache / "meta/s" / f"{name}.json"
        validators = {"etag": None, "version": None, "modified": None}
        said = {"key": name, "size": 1 << 20, "digest": "xxh3-128:0", "blocks": 0, "inodes": 3, "fetched": now}
        meta.write_text(json.dumps({**said, "validators": validators, "synced": True}))
        os.utime(meta, (now + n, now + n))


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_a_large_cache_is_ready_soon_and_reused(origin: Origin, count: int) -> None:
    """C-40, figure 8: warm hits without a GET, surplus in the order of last use; memory stays bounded."""
    with Daemon({"s": origin.url}, max_shards=count, scan=0, grace="50ms") as daemon:
        began = time.monotonic()
        daemon.restart(120)
        empty = time.monotonic() - began
        daemon.stop()
        _many(daemon.cache, count)
        began = time.monotonic()
        daemon.start(120)
        more = time.monotonic() - began - empty
        assert more < 60, f"{count} shards: {more:.2f} s more than empty"  # the figure itself is a benchmark's
        assert daemon.status()["cache"]["shards"] == count
        for n in random.Random(1).sample(range(count), 100):
            assert daemon.acquire("s", f"{n:06d}.bin").body["result"] == "hit"
        assert origin.gets == 0
        resident = next(line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if "VmRSS" in line)
        assert int(resident.split()[1]) < 90_000 + 2 * count
        oldest = [f"{n:06d}.bin" for n in range(3)]
        used = {one["key"] for one in daemon.shards(prefix="0000") if one["last_used"] > time.time() - 600}
        for n in range(3):
            daemon.path("s", f"new-{n}.bin")
        there = {name for name in oldest if (daemon.cache / "shards/s" / name).exists()}
        assert there <= used
        daemon.tables["cache"]["max_shards"] = count // 2
        daemon.restart(120)
        until(lambda: daemon.status()["cache"]["shards"] == count // 2, 120)
        kept = {one["key"] for one in daemon.shards()}
        assert {f"new-{n}.bin" for n in range(3)} <= kept
        assert f"{count - 1:06d}.bin" in kept
