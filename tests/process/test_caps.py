"""The caps hold, whatever arrives; and who waits for room gets it in order, or a clear refusal (C-24, C-27, C-28)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachedaemon.cache import PATIENCE
from tests.fakes import content, disk
from tests.fakes.daemon import Daemon
from tests.fakes.mounts import small_tmpfs
from tests.fakes.origin import Gate, Origin
from tests.fakes.packing import image_like, tar_bytes, zip_bytes
from tests.fakes.readers import spawn
from tests.fakes.waiting import until

MB = 1 << 20

BURST = """
import random
names, cache = ARG["names"], ShardCache("s")
random.Random(ARG["seed"]).shuffle(names)
for name in names[:ARG["opens"]]:
    with cache.open(name) as shard:
        members = sum(len(files) for _, _, files in os.walk(shard.path))
        assert members == ARG["members"], (name, members)
say("done")
"""


@contextlib.contextmanager
def lease(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def leases(daemon: Daemon, *keys: str) -> contextlib.ExitStack:
    """Leases on shards, taken before their grace ends."""
    stack = contextlib.ExitStack()
    for key in keys:
        stack.enter_context(lease(daemon.path("s", key)))
    return stack


def burst(processes: int, shards: int, opens: int, cap: int) -> None:
    """Every archive is fetched and unpacked, sampled every 20 ms: neither cap is passed, staging and trash included."""
    packed = zip_bytes(image_like(30, size=4000))
    size = 20 * (len(packed) + 30 * 4096)
    names = [f"{n}.zip" for n in range(shards)]
    arg = {"names": names, "opens": opens, "members": 30}
    with Origin() as origin:
        origin.default(lambda name: origin.put(name, data=packed, latency=0.005))
        source = {"url": origin.url, "archives": "unpack"}
        with Daemon({"s": source}, max_shards=cap, max_bytes=size // 3, grace="1s") as daemon:
            args = [arg | {"seed": seed} for seed in range(processes)]
            with disk.Sampler(daemon.cache) as sampler, spawn(daemon, BURST, args) as readers:
                said = [reader.rest(600) for reader in readers]
            assert said == [["done"]] * processes
            assert sampler.looks > 10
            assert 0 < sampler.most.shards <= cap
            assert 0 < sampler.most.bytes <= size // 3


def test_a_burst_with_unpacking() -> None:
    burst(8, 40, 12, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_burst_of_64_processes_over_200_shards_with_unpacking() -> None:
    burst(64, 200, 20, 20)


# ---- too large, and not now


def test_larger_than_the_cap() -> None:
    """C-27: an error that names both sizes, at once; other shards are fine."""
    with Origin() as origin, Daemon({"s": origin.url}, max_bytes="1MB") as daemon:
        big = origin.put("big", 10_000_000)
        origin.put("small", 500_000)
        began = time.monotonic()
        answer = daemon.acquire("s", "big", wait=60)
        assert time.monotonic() - began < 30
        assert (answer.status, answer.code) == (413, "too_large")
        assert not answer.body["error"]["retryable"]
        assert "cache.max_bytes allows 1000000" in answer.body["error"]["message"]
        assert "needs 10002432 bytes" in answer.body["error"]["message"]  # in whole blocks
        assert big.sent < 10_000_000
        assert daemon.path("s", "small").stat().st_size == 500_000


def test_larger_than_the_cap_of_unknown_size() -> None:
    with Origin() as origin, Daemon({"s": origin.url}, max_bytes="3MB") as daemon:
        origin.put("big", 10_000_000, framing="chunked")
        origin.put("small", 2_500_000, framing="chunked")
        assert daemon.acquire("s", "big").code == "too_large"
        assert daemon.path("s", "small").stat().st_size == 2_500_000


def test_larger_than_the_cap_once_unpacked() -> None:
    with Origin() as origin:
        origin.put("big.zip", data=zip_bytes({f"{n}": bytes(200_000) for n in range(30)}, method=8))
        with Daemon({"s": {"url": origin.url, "archives": "unpack"}}, max_bytes="3MB") as daemon:
            assert daemon.acquire("s", "big.zip").code == "too_large"


def test_three_leases_held_and_a_fourth_asked_for() -> None:
    """C-27: it waits for a release; else an error at the deadline says how many are leased."""
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=3) as daemon:
        origin.default(lambda name: origin.put(name, 100_000))
        with leases(daemon, "a", "b") as held:
            path = daemon.path("s", "c")
            with lease(path):
                refused = daemon.acquire("s", "d", wait=0.5)
                assert refused.code == "cache_full"
                assert "3 of 3 shards are leased" in refused.body["error"]["message"]
                said: list[int] = []
                waiting = threading.Thread(target=lambda: said.append(daemon.acquire("s", "d", wait=40).status))
                waiting.start()
                until(lambda: daemon.status()["cache"]["full"])
                assert not said
            waiting.join(40)
            assert said == [200]
            assert not path.exists()
            assert daemon.acquire("s", "e", wait=0.1).code == "cache_full"
            held.close()
        assert daemon.acquire("s", "e").status == 200


def test_room_goes_in_the_order_of_asking() -> None:
    """One shard at a time has room: each comes only after the one before has been evicted."""
    keys = [f"k{number}" for number in range(6)]
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=1, grace="0s") as daemon:
        origin.default(lambda name: origin.put(name, 100_000))
        with arrivals(daemon) as arrived:
            with leases(daemon, "held"):
                threads = [threading.Thread(target=daemon.path, args=("s", key), kwargs={"wait": 60}) for key in keys]
                for number, thread in enumerate(threads):
                    thread.start()
                    until(lambda n=number: daemon.status()["waiters"] == n + 1, 20)
                assert arrived == ["held"]
            for thread in threads:
                thread.join(60)
            until(lambda: len(arrived) == 1 + len(keys), 20)
        assert arrived == ["held", *keys]


@contextlib.contextmanager
def arrivals(daemon: Daemon) -> Iterator[list[str]]:
    """Keys in the order in which the daemon publishes them, as its events tell."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(daemon.socket))
    link.sendall(b"GET /v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
    lines, arrived = link.makefile("rb"), list[str]()
    while not lines.readline().startswith(b": from now on"):
        pass

    def listen() -> None:
        kind = b""
        for line in lines:
            kind = line if line.startswith(b"event: ") else kind
            if line.startswith(b"data: ") and kind == b"event: ready\n":
                arrived.append(json.loads(line[6:])["key"])

    thread = threading.Thread(target=listen)
    thread.start()
    with link, lines:
        yield arrived
        link.shutdown(socket.SHUT_RDWR)
        thread.join()


# ---- transfers that grow


def test_who_has_the_room_that_others_wait_for_gets_a_turn_from_them() -> None:
    """C-24: a transfer that begins again waits for no turn of those who wait for its room."""
    with Origin() as origin, Daemon({"s": {"url": origin.url, "concurrency": 2}}, max_shards=1, grace="50ms") as daemon:
        gate = Gate(1000)
        origin.put("first", MB, etag=None, gate=gate, cut=[2000])
        origin.default(lambda name: origin.put(name, 1000))
        with arrivals(daemon) as arrived, ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(daemon.path, "s", "first")]
            assert gate.reached.wait(20)
            for number in range(4):
                asked.append(pool.submit(daemon.path, "s", f"{number}"))
                until(lambda number=number: daemon.status()["waiters"] == number + 2, 20, "all who wait")  # type: ignore[misc]
            until(lambda: origin.gets == 2, 20, "the other turn is taken too")
            began = time.monotonic()
            gate.open()
            for one in asked:
                one.result(20)
            assert time.monotonic() - began < PATIENCE - 2
            until(lambda: len(arrived) == 5, 20, "all to have come")
            assert arrived == ["first", "0", "1", "2", "3"]


def test_growing_transfers_end_one_after_the_other() -> None:
    """Together they do not fit, and none says how large it is: all arrive, the oldest first, and the cap holds."""
    with Origin() as origin:
        for number in range(4):
            origin.put(f"{number}.bin", 5 * MB, framing="chunked", bps=20 * MB)
        with (
            Daemon({"s": origin.url}, max_bytes=f"{9 * MB}", grace="0s") as daemon,
            disk.Sampler(daemon.cache) as sampler,
        ):
            said: list[int] = []
            threads = [
                threading.Thread(target=lambda n=n: said.append(daemon.acquire("s", f"{n}.bin", wait=50).status))
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert said == [200] * 4
            assert sampler.most.bytes <= 9 * MB


def test_the_youngest_that_grows_is_stopped_and_comes_back() -> None:
    with Origin() as origin, Daemon({"s": origin.url}, max_bytes=f"{8 * MB}", grace="0s") as daemon:
        old_gate, young_gate = Gate(2 * MB), Gate(4 * MB)
        old = origin.put("old", 6 * MB, framing="chunked", gate=old_gate)
        young = origin.put("young", 5 * MB, framing="chunked", gate=young_gate)
        said: list[tuple[str, int]] = []

        def ask(key: str) -> threading.Thread:
            thread = threading.Thread(target=lambda: said.append((key, daemon.acquire("s", key, wait=50).status)))
            thread.start()
            return thread

        threads = [ask("old")]
        assert old_gate.reached.wait(20)
        threads.append(ask("young"))
        assert young_gate.reached.wait(20)
        old_gate.open()
        until(lambda: young.aborted == 1, 30)
        until(lambda: said, 30)
        assert said == [("old", 200)]
        young_gate.open()
        for thread in threads:
            thread.join(60)
        assert said == [("old", 200), ("young", 200)]
        assert (old.gets, old.aborted) == (1, 0)


def test_half_of_the_cap_for_one_source_while_another_waits() -> None:
    with Origin() as origin:
        gate = Gate(2 * MB)
        for name in [*(f"a{n}" for n in range(8)), *(f"b{n}" for n in range(8))]:
            origin.put(name, 3 * MB, gate=gate)
        sources = {"s": {"url": origin.url, "concurrency": 8}, "t": {"url": origin.url, "concurrency": 8}}
        with Daemon(sources, max_shards=4, grace="0s", fetch={"concurrency": 20}) as daemon:
            said: list[int] = []

            def ask(source: str, key: str) -> threading.Thread:
                thread = threading.Thread(target=lambda: said.append(daemon.acquire(source, key, wait=60).status))
                thread.start()
                return thread

            def sending(source: str) -> int:
                return sum(f["source"] == source and f["bytes"] > 0 for f in daemon.status()["fetches"])

            threads = [ask("s", f"a{n}") for n in range(8)]
            until(lambda: sending("s") == 4, 20)  # alone it may have all
            threads += [ask("t", f"b{n}") for n in range(8)]
            until(lambda: (sending("s"), sending("t")) == (2, 2), 30)
            gate.open()
            for thread in threads:
                thread.join(60)
            assert said == [200] * 16


# ---- caps that change


def test_a_lowered_cap() -> None:
    """The surplus goes at once, the least recently used first, and what is leased as its lease ends."""
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=8, grace="0s") as daemon:
        origin.default(lambda name: origin.put(name, 100_000))
        for number in range(8):
            daemon.path("s", f"{number}")

        def here() -> set[str]:
            return {shard["key"] for shard in daemon.shards("s")}

        with leases(daemon, "0", "1", "2", "3"):
            for number in (4, 5, 6, 7):
                daemon.api("POST", "/v1/touch", {"source": "s", "used": [[str(number), 0]]})
            daemon.tables["cache"]["max_shards"] = 2
            daemon.reload()
            until(lambda: here() == {"0", "1", "2", "3"}, 20)
            refused = daemon.acquire("s", "new", wait=0.5)
            assert refused.code == "cache_full"
            assert "4 of 4 shards are leased" in refused.body["error"]["message"]
        until(lambda: len(here()) == 2, 20)
        assert here() == {"2", "3"}
        assert daemon.metric("evictions_total", source="s", reason="cap") == 6
        assert origin.gets == 9


def test_a_lowered_byte_cap_and_a_raised_one() -> None:
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=0, max_bytes="3MB", grace="0s") as daemon:
        origin.default(lambda name: origin.put(name, 499_712))
        for number in range(6):
            daemon.path("s", f"{number}")
        assert daemon.status()["cache"]["shards"] == 6
        daemon.tables["cache"]["max_bytes"] = "1MB"
        daemon.reload()
        until(lambda: daemon.status()["cache"]["shards"] == 2, 20)
        until(lambda: disk.usage(daemon.cache) <= 1_000_000, 20)
        daemon.tables["cache"]["max_bytes"] = "2MB"
        daemon.reload()
        until(lambda: daemon.status()["cache"]["max_bytes"] == 2_000_000, 20)
        for number in range(4):
            daemon.path("s", f"new{number}")
        assert daemon.status()["cache"]["shards"] == 4


@pytest.mark.root
def test_min_free_is_left_to_others() -> None:
    """On a small disk without any byte cap; and when others fill it meanwhile, ours go for new ones."""
    with Origin() as origin, small_tmpfs(size="40m") as folder:
        origin.default(lambda name: origin.put(name, 4 * MB))
        cache = folder / "cache"
        with Daemon({"s": origin.url}, cache_dir=cache, max_shards=100, min_free="10MiB", grace="0s") as daemon:
            for number in range(12):
                daemon.path("s", f"{number}")
                seen = os.statvfs(folder)
                assert seen.f_bavail * seen.f_frsize >= 10 * MB
            assert 5 <= daemon.status()["cache"]["shards"] <= 7
            content.write(folder / "others", "others", 8 * MB)
            daemon.path("s", "more")
            seen = os.statvfs(folder)
            assert seen.f_bavail * seen.f_frsize >= 10 * MB
            answer = daemon.acquire("s", "never", wait=5)
            assert answer.status == 200


@pytest.mark.root
def test_inodes_of_an_archive_are_counted_once_while_it_is_unpacked() -> None:
    """More than half of the inodes go to one archive, whose room grows step by step."""
    packed = tar_bytes({f"{number:04}": b"x" for number in range(1700)}, "gz")
    with Origin() as origin, small_tmpfs(size=64 * MB, inodes=3000) as folder:
        origin.put("a.tar.gz", data=packed)
        origin.put("more.tar.gz", data=packed)
        source = {"url": origin.url, "archives": "unpack"}
        with Daemon({"s": source}, cache_dir=folder / "cache", min_free="1MB", grace="0s") as daemon:
            with lease(daemon.path("s", "a.tar.gz")):
                assert os.statvfs(folder).f_favail < 1300
                answer = daemon.acquire("s", "more.tar.gz", wait=3)
                assert answer.code in ("cache_full", "wait_expired", "no_space"), "1700 are not left"
            daemon.path("s", "more.tar.gz")


# ---- what is not ours


@pytest.mark.parametrize("where", ["same", "inside", "around", "link"])
def test_a_cache_that_overlaps_its_source_is_refused(folder: Path, where: str) -> None:
    source = folder / "data" / "set"
    source.mkdir(parents=True)
    content.write(source / "x.bin", "x.bin", 10_000)
    (folder / "link").symlink_to(source)
    cache = {"same": source, "inside": source / "cache", "around": folder / "data", "link": folder / "link" / "cache"}
    before = sorted(path for path, _ in disk.walk(folder))
    with Daemon({"s": f"file://{source}/"}, cache_dir=cache[where], begin=False, check=False) as daemon:
        ran = daemon.fails()
        assert ran.status == 1
        assert "allowed is a folder apart from every source" in ran.err
        assert len(ran.err.strip().splitlines()) == 1
    assert sorted(path for path, _ in disk.walk(folder)) == before
    assert content.matches(source / "x.bin", "x.bin", 10_000)


def test_foreign_things_in_the_cache_directory(folder: Path) -> None:
    """Left alone and reported; links are not followed; the start succeeds."""
    outside = folder / "outside"
    outside.mkdir()
    content.write(outside / "precious", "precious", 5000)
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=2, grace="0s") as daemon:
        origin.default(lambda name: origin.put(name, 100_000))
        daemon.path("s", "a")
        daemon.stop()
        shards = daemon.cache / "shards" / "s"
        (daemon.cache / "stray").write_text("somebody's")
        (shards / "stray.bin").write_bytes(b"x" * 5000)
        (shards / "link").symlink_to(outside / "precious")
        (shards / "tree").symlink_to(outside)
        secret = shards / "secret"
        secret.write_bytes(b"?")
        secret.chmod(0)
        daemon.start()
        for number in range(5):
            daemon.path("s", f"{number}")
        assert (daemon.cache / "stray").read_text() == "somebody's"
        for name in ("stray.bin", "link", "tree", "secret"):
            assert f"{shards / name} is not the daemon's: it is left alone" in daemon.log
            assert (shards / name).is_symlink() or (shards / name).exists()
        assert content.matches(outside / "precious", "precious", 5000)
        assert daemon.status()["cache"]["shards"] == 2
        for name in ("stray.bin", "link", "tree", "secret"):
            (shards / name).unlink()


def test_a_link_in_a_shards_place_is_not_followed(folder: Path) -> None:
    content.write(folder / "precious", "precious", 5000)
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        origin.put("a", 100_000)
        path = daemon.path("s", "a")
        path.unlink()
        path.symlink_to(folder / "precious")
        again = daemon.path("s", "a")
        assert again == path
        assert not path.is_symlink()
        assert content.matches(path, "a", 100_000)
        assert content.matches(folder / "precious", "precious", 5000)
