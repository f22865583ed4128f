"""A watched folder through a daemon: events, the command line, and the client's `watch`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cachedaemon_client import BadArchive, BadRequest, OriginFailed, ShardCache
from cachedaemon_client.feed import Feed
from cachedaemon_client.watch import Watch
from tests.fakes import content
from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.fusefs import FuseFs, fuse_fs, why_no_fuse
from tests.fakes.waiting import freeze, thaw, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachedaemon_client.watch import Watch


@pytest.fixture
def drop(folder: Path) -> Path:
    made = folder / "drop"
    made.mkdir()
    return made


def watched(drop: Path, **more: object) -> dict[str, dict[str, object]]:
    return {"in": {"url": f"file://{drop}/", "watch": True, "settle": "100ms", **more}}


def cache_of(daemon: Daemon, wait: float = 20) -> ShardCache:
    return ShardCache("in", socket=daemon.socket, wait=wait)


def download(folder: Path, name: str, size: int = 10_000) -> None:
    """As a downloader does it."""
    content.write(folder / f"{name}.part", name, size)
    (folder / f"{name}.part").rename(folder / name)


def keys(watch: Watch, count: int) -> list[str]:
    return [next(watch).key for _ in range(count)]


def tells(daemon: Daemon, key: str) -> None:
    """Wait until the daemon tells of a key."""
    feed = Feed(str(daemon.socket), "/v1/events?watch=in", "in")
    until(lambda: key in [event["key"] for event in feed.hear(1)], 10, key)
    feed.close()


# ---- the client


def test_shards_in_order_of_arrival(drop: Path) -> None:
    download(drop, "first.bin")
    with Daemon(watched(drop), max_shards=3) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        assert keys(watch, 1) == ["first.bin"]
        for number in range(8):
            download(drop, f"{number}.bin")
            shard = next(watch)
            assert shard.key == f"{number}.bin"
            assert content.matches(shard.path, shard.key, 10_000)
        assert watch._shard is shard
        assert not shard.closed


@pytest.mark.slow
def test_it_ends_when_nothing_comes_any_more(drop: Path) -> None:
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon) as cache:
        assert not list(cache.watch(idle=0))
        for number in range(12):
            download(drop, f"{number:02}.bin")
        seen = [shard.key for shard in cache.watch(idle=3)]
        assert sorted(seen) == [f"{number:02}.bin" for number in range(12)]


def test_what_was_taken_away_is_left_out_and_an_error_ends_nothing(drop: Path) -> None:
    with Daemon(watched(drop), max_shards=1) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        download(drop, "a.bin")
        assert keys(watch, 1) == ["a.bin"]
        download(drop, "b.bin")
        tells(daemon, "b.bin")
        (drop / "b.bin").unlink()
        download(drop, "c.bin")
        assert keys(watch, 1) == ["c.bin"]
        (drop / "bad.zip").write_bytes(b"this is no archive")
        with pytest.raises(BadArchive, match=r"bad\.zip"):
            next(watch)
        download(drop, "d.bin")
        assert keys(watch, 1) == ["d.bin"]


def test_a_restart_of_the_daemon_loses_nothing_and_tells_nothing_twice(drop: Path) -> None:
    download(drop, "a.bin")
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        assert keys(watch, 1) == ["a.bin"]
        daemon.stop()
        download(drop, "b.bin")
        daemon.start()
        assert keys(watch, 1) == ["b.bin"]
        daemon.reload()
        download(drop, "c.bin")
        assert keys(watch, 1) == ["c.bin"]


@pytest.mark.slow
def test_a_reload_begins_and_ends_watching(drop: Path) -> None:
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon, 5) as cache, cache.watch() as watch:
        daemon.tables["sources"]["in"]["settle"] = "50ms"  # type: ignore[index]
        daemon.reload()
        until(lambda: "reloaded" in daemon.log, 10)
        download(drop, "a.bin")
        assert keys(watch, 1) == ["a.bin"]
        daemon.tables["sources"]["in"]["watch"] = False  # type: ignore[index]
        daemon.reload()
        with pytest.raises(BadRequest, match="source in: its folder is not watched"):
            next(watch)


@pytest.mark.slow
def test_a_version_that_is_replaced_is_handed_out_again_where_the_source_asks(drop: Path) -> None:
    content.write(drop / "a.bin", "a", 1000)
    sources = watched(drop, revalidate="always")
    with Daemon(sources, max_shards=5) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        assert content.matches(next(watch).path, "a", 1000)
        content.write(drop / "new.part", "b", 2000)
        (drop / "new.part").rename(drop / "a.bin")
        shard = next(watch)
        assert shard.key == "a.bin"
        assert content.matches(shard.path, "b", 2000)


def test_a_shard_that_may_not_change_is_told_once(drop: Path) -> None:
    content.write(drop / "a.bin", "a", 1000)
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        assert keys(watch, 1) == ["a.bin"]
        content.write(drop / "a.bin", "b", 2000)
        until(lambda: "'a.bin' was changed after it had appeared" in daemon.log, 10)
        download(drop, "b.bin")
        assert keys(watch, 1) == ["b.bin"]


def _count(watch: Watch, answers: Any) -> None:
    answers.put(len(list(watch)))


def test_a_forked_child_has_none_of_it(drop: Path) -> None:
    for name in ("a.bin", "b.bin"):
        download(drop, name)
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        first = next(watch)
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        child = fork.Process(target=_count, args=(watch, answers))
        child.start()
        assert answers.get(timeout=20) == 0
        child.join(20)
        assert not first.closed
        assert content.matches(first.path, first.key, 10_000)
        assert {first.key, *keys(watch, 1)} == {"a.bin", "b.bin"}


# ---- a folder that is away


def _next_key(watch: Watch) -> str | None:
    """What comes next; None where the folder was away a moment ago."""
    try:
        return next(watch).key
    except OriginFailed:
        return None


def test_a_folder_that_stays_away_is_an_error_and_not_an_empty_one(drop: Path) -> None:
    """C-19: what is here is served, nothing is forgotten, and it recovers without a restart."""
    download(drop, "a.bin")
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon, 1) as cache, cache.watch() as watch:
        assert keys(watch, 1) == ["a.bin"]
        drop.rename(drop.with_name("aside"))
        with pytest.raises(OriginFailed, match="source in: its folder cannot be read: No such file or directory"):
            next(watch)
        assert daemon.acquire("in", "a.bin").body["result"] == "hit"
        drop.with_name("aside").rename(drop)
        until(lambda: "its folder is there again" in daemon.log, 20)
        download(drop, "b.bin")
        until(lambda: _next_key(watch) == "b.bin", 20)
        assert daemon.log.count("cannot be read") == 1


@pytest.fixture
def mount(folder: Path) -> Iterator[FuseFs]:
    if (why := why_no_fuse()) is not None:
        pytest.skip(why)
    (folder / "below").mkdir()
    with fuse_fs(folder / "below") as made:
        yield made


@pytest.mark.slow
def test_a_mount_that_fails_and_hangs_disturbs_nothing_else(mount: FuseFs, folder: Path) -> None:
    """The watching goes on when it answers again, and the daemon ends in time while it hangs."""
    download(mount.folder, "a.bin")
    (folder / "other").mkdir()
    content.write(folder / "other" / "x.bin", "x", 1000)
    sources = {**watched(mount.path), "other": f"file://{folder}/other/"}
    with Daemon(sources, max_shards=5, fetch={"stall_timeout": "2s"}) as daemon, cache_of(daemon) as cache:
        with cache.watch() as watch:
            assert keys(watch, 1) == ["a.bin"]
            mount.turn(errno="ESTALE")
            until(lambda: "its folder cannot be read: Stale file handle" in daemon.log, 10)
            mount.turn()
            download(mount.folder, "b.bin")
            assert keys(watch, 1) == ["b.bin"]
            mount.turn(hang=True)
            assert daemon.acquire("other", "x.bin").status == 200
            mount.turn()
            download(mount.folder, "c.bin")
            assert keys(watch, 1) == ["c.bin"]
        mount.turn(hang=True)
        began = time.monotonic()
        daemon.stop()
        assert time.monotonic() - began < 10
        mount.turn()


# ---- events and the command line


@contextlib.contextmanager
def listening(daemon: Daemon, *args: str) -> Iterator[list[dict[str, Any]]]:
    """What `cachedaemon watch` prints, from when it listens."""
    environ = {**daemon.environ(), "CACHEDAEMON_SOCKET": str(daemon.socket)}
    process = subprocess.Popen([COMMAND, "watch", *args], env=environ, stdout=subprocess.PIPE, text=True)
    lines: list[dict[str, Any]] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda out: lines.extend(map(json.loads, out)), args=(process.stdout,))
    reader.start()
    try:
        yield lines
    finally:
        process.terminate()
        process.wait(10)
        reader.join(10)
        process.stdout.close()


def test_the_command_line_tells_of_new_files(drop: Path) -> None:
    with Daemon(watched(drop), max_shards=5) as daemon, listening(daemon, "in") as lines:
        number = 0

        def has_told() -> bool:  # it listens some time after it was started
            nonlocal number
            number += 1
            download(drop, f"{number}.bin")
            return bool(lines)

        until(has_told, 20, "a line")
        told = lines[0]
        assert told["event"] == "appeared"
        assert told["source"] == "in"
        assert told["size"] == 10_000
        assert (drop / told["key"]).exists()


def test_only_a_folder_can_be_watched(folder: Path) -> None:
    for url in ("http://127.0.0.1:1/", f"file://{folder}", f"file://{folder}/{{key}}/"):
        with Daemon({"in": {"url": url, "watch": True}}, begin=False, check=False) as daemon:
            assert "sources.in.watch: true is refused: allowed is a source whose url is a folder" in daemon.fails().err


# ---- C-17


@contextlib.contextmanager
def no_inotify_left() -> Iterator[None]:
    """This user has used up its instances (inotify(7), max_user_instances)."""
    begin, held = ctypes.CDLL(None, use_errno=True).inotify_init1, list[int]()
    try:
        while (made := begin(os.O_CLOEXEC)) >= 0:
            held.append(made)
        yield
    finally:
        for each in held:
            os.close(each)


@pytest.fixture
def few_watches() -> Iterator[None]:
    """No watch is left for anybody (inotify(7), max_user_watches)."""
    place = Path("/proc/sys/fs/inotify/max_user_watches")
    before = place.read_text()
    try:
        place.write_text("0")
    except OSError as cause:
        pytest.skip(f"not here by design: {place} cannot be set ({cause.strerror})")
    yield
    place.write_text(before)


def _works_by_looking(drop: Path, why: str) -> None:
    with Daemon(watched(drop), max_shards=5) as daemon, cache_of(daemon) as cache, cache.watch() as watch:
        until(lambda: f"its folder is looked at every few seconds: this user's {why}" in daemon.log, 10)
        for name in ("a.bin", "b.bin"):
            download(drop, name)
            assert keys(watch, 1) == [name]


def test_without_instances_the_folder_is_looked_at(drop: Path) -> None:
    """C-17."""
    if int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        pytest.skip("not here by design: more instances than files that can be open")
    with no_inotify_left():
        _works_by_looking(drop, "instances (fs.inotify.max_user_instances) are used up")


@pytest.mark.slow
@pytest.mark.usefixtures("few_watches")
def test_without_watches_the_folder_is_looked_at(drop: Path) -> None:
    """C-17. Slow because it takes all watches from everybody else who runs tests here."""
    _works_by_looking(drop, "watches (fs.inotify.max_user_watches) are used up")


def looking(daemon: Daemon) -> int | None:
    """The process that watches: it has one thread for requests."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in daemon.children()}
    return next((pid for pid, line in lines.items() if line[-2:] == [b"1", b""]), None)


@pytest.mark.slow
@pytest.mark.parametrize("count", [50_000])
def test_every_file_of_a_burst_is_told_once(drop: Path, count: int) -> None:
    """C-17: the queue of the kernel has room for 16,384 events, and while the helper is stopped nobody empties it."""
    with Daemon(watched(drop), max_shards=5) as daemon:
        feed = Feed(str(daemon.socket), "/v1/events?watch=in", "in")
        helper = until(lambda: looking(daemon), 10)
        (drop / "first").write_bytes(b"x")
        told = [event["key"] for event in feed.hear(20)]
        assert told == ["first"]
        freeze(helper)
        for number in range(count):
            os.close(os.open(drop / f"{number}.bin", os.O_CREAT | os.O_WRONLY))
        thaw(helper)
        while len(told) < count + 1 and (more := feed.hear(30)):
            told += [event["key"] for event in more]
        feed.close()
        assert len(told) == len(set(told)) == count + 1
