"""The client against a real daemon: hits without it, what a lease keeps, and errors as a trainer sees them."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import ShardCache, errors
from tests.fakes import content, packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin, Status
from tests.fakes.waiting import until

SIZE = 5000
KEYS = [f"shard-{number}.bin" for number in range(8)]
MEMBERS = packing.image_like(5, 1, 3000)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for key in KEYS:
            one.put(key, SIZE)
        one.put("images.zip", data=packing.zip_bytes(MEMBERS))
        yield one


@pytest.fixture
def daemon(origin: Origin) -> Iterator[Daemon]:
    sources = {"s": origin.url, "u": {"url": origin.url, "archives": "unpack"}}
    with Daemon(sources, max_shards=4) as one:
        yield one


@pytest.fixture
def cache(daemon: Daemon) -> Iterator[ShardCache]:
    with ShardCache("s", socket=daemon.socket, wait=20) as one:
        yield one


def good(path: Path, key: str) -> bool:
    return content.matches(path, key, SIZE)


# --- hits


def test_a_miss_then_hits(cache: ShardCache) -> None:
    with cache.open(KEYS[0]) as shard:
        assert (shard.key, shard.size, shard.hit, shard.closed) == (KEYS[0], SIZE, False, False)
        assert good(shard.path, KEYS[0])
        assert KEYS[0] in repr(shard)
    assert shard.closed
    with cache.open(KEYS[0]) as shard:
        assert shard.hit
    shard.close()


@pytest.mark.parametrize("how", ["stopped by SIGSTOP", "killed", "ended"])
def test_hits_without_the_daemon(daemon: Daemon, cache: ShardCache, how: str) -> None:
    """Those of a client that knows the cache, and of a new process that is told its folder."""
    daemon.path("s", KEYS[1])
    cache.open(KEYS[0]).close()
    {"stopped by SIGSTOP": daemon.freeze, "killed": daemon.kill9, "ended": daemon.stop}[how]()
    slowest = 0.0
    for _ in range(1500):
        for key in KEYS[:2]:
            began = time.monotonic()
            with cache.open(key) as shard:
                slowest = max(slowest, time.monotonic() - began)
                assert shard.hit
    assert slowest < 1, "nothing waited for an answer (a loaded machine may stop anybody for a while)"
    cold = readers.run(
        None,
        "with ShardCache('s', socket=ARG['socket'], wait=1) as cache:\n"
        "    for key in ARG['keys']:\n"
        "        with cache.open(key) as shard: say([shard.hit, str(shard.path), shard.size])\n",
        {"socket": daemon.socket, "keys": KEYS[:2]},
        env={"CACHEDAEMON_DIR": str(daemon.cache)},
    )
    assert cold == [[True, str(daemon.cache / "shards/s" / key), SIZE] for key in KEYS[:2]]
    daemon.thaw()
    if not daemon.alive:
        daemon.start()
    with cache.open(KEYS[2]) as shard:
        assert good(shard.path, KEYS[2])


def test_readers_go_on_through_restarts(daemon: Daemon, cache: ShardCache) -> None:
    """Hits and misses, in three threads, while the daemon is killed and ended in turns."""
    stop, failures, opened = threading.Event(), [], [0]

    def read() -> None:
        with ShardCache("s", socket=daemon.socket, wait=60) as own:
            while not stop.is_set():
                for key in KEYS[:6]:
                    try:
                        with own.open(key) as shard:
                            if not good(shard.path, key):
                                failures.append(f"wrong bytes in {key}")
                        opened[0] += 1
                    except (errors.CacheError, OSError) as cause:
                        failures.append(repr(cause))
                        return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(4):
            before = opened[0]
            until(lambda before=before: opened[0] > before + 50 or failures, 30)
            daemon.kill9() if number % 2 else daemon.stop()
            daemon.start()
        before = opened[0]
        until(lambda: opened[0] > before + 50 or failures, 30)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_daemon_s_word_is_read_again_after_a_restart(daemon: Daemon, cache: ShardCache) -> None:
    """A hit reads the daemon's word again when an answer to a report tells of another generation."""
    cache.open(KEYS[0]).close()
    before = cache._view
    daemon.restart()
    cache._reporter.due[0] = 0.0
    until(
        lambda: cache.open(KEYS[0]).close() or cache._reporter.due.__setitem__(0, 0.0) or cache._view is not before, 10
    )
    with cache.open(KEYS[0]) as shard:
        assert shard.hit


def test_the_cache_directory_is_removed_and_made_anew(daemon: Daemon, cache: ShardCache) -> None:
    cache.open(KEYS[0]).close()
    daemon.stop()
    (daemon.cache / "shards").rename(daemon.home / "old")
    daemon.start()
    cache._reporter.flush()
    for key in KEYS[:2]:
        until(lambda key=key: is_below(cache, key, daemon.cache), 20)


def is_below(cache: ShardCache, key: str, folder: Path) -> bool:
    """Whether what is leased is the file at its path."""
    cache._reporter.due[0] = 0.0
    with cache.open(key) as shard:
        path = shard.path
        return path.is_relative_to(folder) and path.exists() and path.stat().st_ino == shard._stat.st_ino


# --- leases


def test_a_lease_keeps_a_shard_under_any_pressure(cache: ShardCache, daemon: Daemon) -> None:
    with cache.open(KEYS[0]) as shard:
        for key in KEYS[1:]:
            cache.open(key).close()
        assert good(shard.path, KEYS[0])
        assert daemon.evict("s", KEYS[0]).code == "leased"
    assert daemon.evict("s", KEYS[0]).status == 204


def test_a_lease_ends_at_once_so_that_a_cap_of_one_goes_on(origin: Origin) -> None:
    """The touch after an acquire ends the daemon's own hold: no 5 s for each shard."""
    with Daemon({"s": origin.url}, max_shards=1) as daemon, ShardCache("s", socket=daemon.socket, wait=20) as cache:
        began = time.monotonic()
        for key in KEYS[:6]:
            with cache.open(key) as shard:
                assert good(shard.path, key)
        assert time.monotonic() - began < 15


def test_a_folder_is_leased_too(daemon: Daemon) -> None:
    with ShardCache("u", socket=daemon.socket, wait=20) as cache:
        with cache.open("images.zip") as shard:
            assert shard.path.is_dir()
            assert shard.size == sum(map(len, MEMBERS.values()))
            assert {name: (shard.path / name).read_bytes() for name in MEMBERS} == MEMBERS
            assert daemon.evict("u", "images.zip").code == "leased"
        with cache.open("images.zip") as shard:
            assert shard.hit
    assert daemon.evict("u", "images.zip").status == 204


def test_closing_with_views_out(cache: ShardCache, daemon: Daemon) -> None:
    with cache.open("images.zip") as shard:
        views = {name: shard.view(name) for name in shard.members}
    assert daemon.evict("s", "images.zip").status == 204, "a view is no lease"
    assert {name: bytes(view) for name, view in views.items()} == MEMBERS
    with pytest.raises(ValueError, match="closed"):
        shard.read(0)


def test_a_shard_that_is_lost_warns_and_ends(cache: ShardCache, daemon: Daemon) -> None:
    shard = cache.open(KEYS[0])
    with pytest.warns(ResourceWarning, match=f"'{KEYS[0]}' was never closed"):
        del shard
    assert daemon.evict("s", KEYS[0]).status == 204


def test_a_lease_ends_with_the_generator_that_holds_it(cache: ShardCache, daemon: Daemon) -> None:
    def samples() -> Iterator[bytes]:
        with cache.open("images.zip") as shard:
            for name in shard.members:
                yield shard.read(name)

    running = samples()
    assert next(running) == next(iter(MEMBERS.values()))
    assert daemon.evict("s", "images.zip").code == "leased"
    running.close()
    assert daemon.evict("s", "images.zip").status == 204


def test_a_killed_reader_s_lease_ends_at_once(daemon: Daemon) -> None:
    with readers.Reader(daemon, "shard = ShardCache('s').open(ARG); say('open'); hear()", KEYS[0]) as reader:
        assert reader.line() == "open"
        reader.freeze()
        assert daemon.evict("s", KEYS[0]).code == "leased", "a stopped reader keeps its lease"
        reader.kill9()
        assert daemon.evict("s", KEYS[0]).status == 204


@pytest.mark.parametrize("what", ["link", "fifo", "gone"])
def test_what_somebody_put_in_a_shard_s_place(cache: ShardCache, daemon: Daemon, what: str) -> None:
    """The client leases nothing of the kind; the daemon, asked, brings the shard back."""
    cache.open(KEYS[0]).close()
    path = daemon.cache / "shards/s" / KEYS[0]
    path.unlink()
    {"link": lambda: path.symlink_to("/etc/hostname"), "fifo": lambda: os.mkfifo(path), "gone": lambda: None}[what]()
    with cache.open(KEYS[0]) as shard:
        assert good(shard.path, KEYS[0])


# --- members that are not what they were


@pytest.mark.parametrize("way", ["read", "view"])
def test_a_shard_truncated_behind_the_back_is_brought_again(cache: ShardCache, daemon: Daemon, way: str) -> None:
    """By every way to read, under a lease that was taken before."""
    name = list(MEMBERS)[-1]
    with cache.open("images.zip") as shard:
        assert list(shard.members) == list(MEMBERS)
        path = daemon.cache / "shards/s/images.zip"
        path.chmod(0o600)
        os.truncate(path, 100)
        assert bytes(getattr(shard, way)(name)) == MEMBERS[name]
        assert shard.locate(name)[2] == len(MEMBERS[name])


@pytest.mark.parametrize("way", ["read", "view", "open", "locate"])
def test_a_damaged_table_is_mended_before_it_is_read_by(cache: ShardCache, daemon: Daemon, way: str) -> None:
    """One bit of an offset: the wrong bytes would come without a word."""
    name = next(iter(MEMBERS))
    table = daemon.cache / "members/s/images.zip"
    daemon.path("s", "images.zip")
    table.chmod(0o600)
    with table.open("r+b") as file:
        file.seek(128)  # the first member's offset
        first = file.read(1)[0]
        file.seek(128)
        file.write(bytes([first ^ 8]))
    with cache.open("images.zip") as shard:
        got = getattr(shard, way)(name)
        if way == "locate":
            path, offset, length = got
            got = path.read_bytes()[offset : offset + length]
        assert bytes(got.read() if way == "open" else got) == MEMBERS[name]
        assert shard.read(1) == list(MEMBERS.values())[1]


def test_a_member_that_does_not_inflate_is_corrupt(origin: Origin, cache: ShardCache) -> None:
    """Only reading it can tell, unless the source has verify_members."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.txt", b"spam and eggs " * 100)
    data = bytearray(packed.getvalue())
    data[30 + len("a.txt") + 5] ^= 0xFF
    origin.put("flipped.zip", data=bytes(data))
    with cache.open("flipped.zip") as shard:
        for way in (shard.read, shard.view, shard.open):
            with pytest.raises(errors.Corrupt, match=r"s/flipped\.zip: member 'a\.txt': "):
                way("a.txt")


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy])
def test_a_shard_is_not_sent_to_other_processes(cache: ShardCache, send: Any) -> None:
    with cache.open(KEYS[0]) as shard, pytest.raises(TypeError, match=f"'{KEYS[0]}' .* send the key instead"):
        send(shard)


# --- locks that are not shared


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"boot_id": "another"}, "another boot or kernel"),
        ({"inode": 1}, "another folder"),
        ({"device": 1}, "another folder"),
    ],
)
def test_locks_that_do_not_reach_the_daemon(daemon: Daemon, said: dict[str, object], why: str) -> None:
    """The client takes nothing by itself, and says why it cannot when the daemon gives it a path."""
    daemon.path("s", KEYS[0])
    vouched = daemon.cache / "daemon.json"
    text = vouched.read_text()
    vouched.chmod(0o600)
    vouched.write_text(json.dumps(json.loads(text) | said))
    try:
        for cache_dir in (None, daemon.cache):
            with ShardCache("s", socket=daemon.socket, cache_dir=cache_dir, wait=20) as cache:
                with pytest.raises(errors.LocksNotShared, match=why) as caught:
                    cache.open(KEYS[0])
                assert (caught.value.source, caught.value.key) == ("s", KEYS[0])
                assert cache.status()["cache"]["shards"] == 1, "what needs no lease works"
    finally:
        vouched.write_text(text)


def test_a_folder_that_is_not_visible(daemon: Daemon) -> None:
    elsewhere, said = daemon.home / "elsewhere", r"elsewhere is not visible here.*CACHEDAEMON_DIR"
    with ShardCache("s", socket=daemon.socket, cache_dir=elsewhere, wait=20) as cache:
        for _ in range(2):
            with pytest.raises(errors.LocksNotShared, match=said):
                cache.open(KEYS[0])


def test_a_cache_under_another_path(daemon: Daemon) -> None:
    """A sidecar sees it elsewhere: paths are this process's own, for misses too."""
    other = daemon.home / "seen"
    other.symlink_to(daemon.cache)
    with ShardCache("s", socket=daemon.socket, cache_dir=other, wait=20) as cache:
        for _ in range(2):
            with cache.open(KEYS[0]) as shard:
                assert shard.path == other / "shards/s" / KEYS[0]
                assert good(shard.path, KEYS[0])
                assert daemon.evict("s", KEYS[0]).code == "leased"


# --- waiting and errors


def later(seconds: float, work: object) -> threading.Timer:
    timer = threading.Timer(seconds, work)  # type: ignore[arg-type]
    timer.start()
    return timer


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
def test_a_restart_in_the_middle_of_an_acquire_is_waited_out(origin: Origin, daemon: Daemon, how: str) -> None:
    """The transfer is under way; the daemon that comes after fetches the shard."""
    slow = origin.put("slow.bin", SIZE, latency=1.0)
    with ShardCache("s", socket=daemon.socket, wait=60) as cache:

        def again() -> None:
            until(lambda: slow.gets, 20)
            daemon.kill9() if how == "kill -9" else daemon.stop()
            daemon.start()

        timer = later(0, again)
        with cache.open("slow.bin") as shard:
            assert good(shard.path, "slow.bin")
        timer.join()


def test_a_prefetch_outlives_the_daemon(origin: Origin, daemon: Daemon) -> None:
    for key in (keys := [f"late-{number}" for number in range(3)]):
        origin.put(key, SIZE, latency=0.5)
    with ShardCache("s", socket=daemon.socket, wait=60) as cache:
        job = cache.prefetch(keys)
        until(lambda: origin[keys[0]].gets, 20)
        daemon.kill9()
        timer = later(0, daemon.start)
        assert (job.wait(60).state, job.total, job.done, job.failed) == ("done", 3, 3, 0)
        timer.join()


def test_counts_of_a_job(origin: Origin, cache: ShardCache) -> None:
    job = cache.prefetch([*KEYS[:2], "missing.bin"]).wait(30)
    assert (job.state, job.total, job.done, job.failed, job.bytes) == ("failed", 3, 2, 1, 2 * SIZE)
    assert [(error["key"], error["code"]) for error in job.errors] == [("missing.bin", "missing")]
    assert cache.prefetch(KEYS).wait(30).state == "partial"
    origin.put("stuck.bin", SIZE, latency=20)
    with pytest.raises(errors.WaitExpired, match="0 of 1"):
        cache.prefetch(["stuck.bin"]).wait(0.2)


def test_wait_is_honoured(origin: Origin, daemon: Daemon) -> None:
    origin.put("never.bin", SIZE, latency=30)
    with ShardCache("s", socket=daemon.socket, wait=0.5) as cache:
        began = time.monotonic()
        with pytest.raises(errors.WaitExpired) as caught:
            cache.open("never.bin")
        assert 0.5 <= time.monotonic() - began < 10
        assert (caught.value.code, caught.value.source, caught.value.key) == ("wait_expired", "s", "never.bin")
        daemon.freeze()
        began = time.monotonic()
        with pytest.raises(errors.DaemonUnavailable, match="does not answer"):
            cache.open("never.bin")
        assert 0.5 <= time.monotonic() - began < 10
        daemon.thaw()
        daemon.stop()
        began = time.monotonic()
        with pytest.raises(errors.DaemonUnavailable, match=str(daemon.socket)):
            cache.open("never.bin")
        assert 0.5 <= time.monotonic() - began < 10


def test_no_time_to_wait_is_enough_for_what_is_here(daemon: Daemon) -> None:
    daemon.path("s", KEYS[0])
    with ShardCache("s", socket=daemon.socket, wait=0) as cache:
        cache.open(KEYS[0]).close()
        with pytest.raises(errors.WaitExpired):
            cache.open(KEYS[1])
        daemon.restart()
        cache.acquire(KEYS[0]).close()


@pytest.mark.parametrize(
    ("source", "key", "kind"),
    [
        ("s", "none.bin", errors.ShardMissing),
        ("nobody", "a", errors.SourceUnknown),
        ("s", "", errors.BadRequest),
        ("s", "\ud800", errors.BadRequest),
        ("s", "broken.zip", errors.BadArchive),
        ("s", "forbidden.bin", errors.OriginFailed),
        ("tiny", "shard-0.bin", errors.TooLarge),
    ],
)
def test_errors_name_the_shard(origin: Origin, source: str, key: str, kind: type[errors.CacheError]) -> None:
    origin.put("broken.zip", data=b"this is no archive" * 100)
    origin.put("forbidden.bin", SIZE, always=Status(403))
    sources = {"s": origin.url, "tiny": origin.url}
    with (
        Daemon(sources, max_bytes=4096 if source == "tiny" else 0) as daemon,
        ShardCache(source, socket=daemon.socket, wait=20) as cache,
        pytest.raises(kind) as caught,
    ):
        cache.open(key)
    assert caught.value.source == source
    if kind is not errors.SourceUnknown:
        assert caught.value.key == key
    assert caught.value.code
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "no foreign traceback before it"


def test_a_full_cache(daemon: Daemon) -> None:
    with ShardCache("s", socket=daemon.socket, wait=1) as cache:
        held = [cache.open(key) for key in KEYS[:4]]
        with pytest.raises(errors.CacheFull, match=r"4.*leased|leased.*4") as caught:
            cache.open(KEYS[4])
        assert caught.value.retryable
        held.pop().close()
        with cache.open(KEYS[4]) as shard:
            assert good(shard.path, KEYS[4])
        for shard in held:
            shard.close()


def test_as_ready_gives_every_shard_once(origin: Origin, cache: ShardCache) -> None:
    """With a cap smaller than the list, and one slow shard that holds nobody up."""
    origin[KEYS[0]].latency = 1.0
    try:
        seen = []
        for shard in cache.as_ready([*KEYS, KEYS[1]]):
            assert good(shard.path, shard.key)
            assert not shard.closed
            seen.append(shard.key)
        assert sorted(seen) == sorted(KEYS)
        assert seen[0] != KEYS[0]
    finally:
        origin[KEYS[0]].latency = 0.0


def test_as_ready_with_a_shard_that_fails(cache: ShardCache) -> None:
    arrived = []
    with pytest.raises(errors.ShardMissing, match="none"):
        arrived.extend(shard.key for shard in cache.as_ready([KEYS[0], "none.bin", KEYS[1]]))
    assert not list(cache.as_ready([]))
