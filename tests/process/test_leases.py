"""Leases and grace: what a reader holds stays, what it no longer holds goes (C-24, C-29, C-34)."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin, Status
from tests.fakes.readers import Reader, spawn
from tests.fakes.waiting import freeze, thaw, until

MB = 1 << 20

HOLD = """
shards = [ShardCache("s").open(name) for name in ARG]
say("held")
hear()
"""

HOLD_IN_WORKERS = """
import multiprocessing
def work(name, pipe):
    with ShardCache("s").open(name):
        pipe.send(os.getpid())
        time.sleep(600)
if __name__ == "__main__":
    mine = ShardCache("s").open(ARG["own"])
    fork = multiprocessing.get_context("fork")
    pids = []
    for name in ARG["workers"]:
        here, there = fork.Pipe()
        fork.Process(target=work, args=(name, there)).start()
        pids.append(here.recv())
    say(pids)
    time.sleep(600)
"""

READ_ON = """
import random
chance, cache, wrong, reads = random.Random(ARG["seed"]), ShardCache("s"), 0, 0
end = time.monotonic() + ARG["seconds"]
while time.monotonic() < end:
    name = f"{chance.randrange(ARG['shards'])}.bin"
    with cache.open(name) as shard:
        wrong += not content.matches(shard.path, name, ARG["size"])
        wrong += not os.path.exists(shard.path)
    reads += 1
say([reads, wrong])
"""


@contextlib.contextmanager
def held(path: Path, how: int = fcntl.LOCK_SH) -> Iterator[None]:
    """A lease as any program may take one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def say(link: http.client.HTTPConnection, path: str, body: object) -> tuple[int, bytes]:
    """A call on a connection that stays."""
    link.request("POST", path, json.dumps(body).encode())
    answer = link.getresponse()
    return answer.status, answer.read()


def acquire_on(link: http.client.HTTPConnection, key: str) -> Path:
    status, body = say(link, "/v1/acquire", {"source": "s", "key": key, "wait": 30})
    assert status == 200, body
    return Path(json.loads(body)["path"])


def leased(daemon: Daemon) -> dict[str, bool]:
    return {shard["key"]: shard["leased"] for shard in daemon.shards("s")}


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        one.default(lambda name: one.put(name, 100_000))
        yield one


# ---- grace


def test_a_reader_can_open_what_it_was_told(origin: Origin) -> None:
    """C-24: A and B ask for X, A releases it, a third shard is asked for before B opens its path."""
    with Daemon({"s": origin.url}, max_shards=1, grace="5s") as daemon:
        first, second = daemon.connection(), daemon.connection()
        path = acquire_on(first, "x")
        assert acquire_on(second, "x") == path
        with held(path):
            say(first, "/v1/touch", {"source": "s", "used": [["x", 0]]})
        refused = daemon.acquire("s", "y", wait=0.5)
        assert refused.code == "cache_full"
        with held(path):
            say(second, "/v1/touch", {"source": "s", "used": [["x", 0]]})
            assert content.matches(path, "x", 100_000)
            assert daemon.acquire("s", "y", wait=0.5).code == "cache_full"
        assert daemon.acquire("s", "y").status == 200
        assert not path.exists()
        for link in (first, second):
            link.close()


def test_grace_ends_by_its_time(origin: Origin) -> None:
    """Whoever never says that it has its lease does not hold up a small cap for longer, nor does the end of its connection."""
    with Daemon({"s": origin.url}, max_shards=1, grace="1500ms") as daemon:
        began = time.monotonic()
        path = daemon.path("s", "x")  # this connection is closed by now
        assert path.exists()
        daemon.path("s", "y")
        assert time.monotonic() - began > 1.4


def test_a_touch_ends_grace_and_counts_nothing(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=1, grace="60s") as daemon:
        link = daemon.connection()
        acquire_on(link, "x")
        acquire_on(link, "x")
        touch = {"source": "s", "used": [["x", 0]]}
        say(link, "/v1/touch", touch)
        assert daemon.acquire("s", "y", wait=0.5).code == "cache_full"  # two answers, one touch
        say(link, "/v1/touch", touch)
        daemon.path("s", "y")
        assert daemon.metric("requests_total", source="s", result="hit") == 1
        link.close()


def test_a_touch_on_another_connection_ends_no_grace(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=1, grace="60s") as daemon:
        link, other = daemon.connection(), daemon.connection()
        acquire_on(link, "x")
        say(other, "/v1/touch", {"source": "s", "used": [["x", 0]]})
        assert daemon.acquire("s", "y", wait=0.5).code == "cache_full"
        assert daemon.metric("requests_total", source="s", result="hit") == 1
        link.close()
        other.close()


def test_evict_drops_grace_first(origin: Origin) -> None:
    with Daemon({"s": origin.url}, grace="60s") as daemon:
        path = daemon.path("s", "x")
        assert daemon.evict("s", "x").status == 204
        assert not path.exists()
        assert (daemon.evict("s", "x").status, daemon.evict("s", "x").code) == (404, "not_found")


def test_grace_of_a_shard_that_was_replaced_is_its_own(origin: Origin) -> None:
    """Somebody deletes a shard within its grace: what is fetched in its place is held for its asker all the same."""
    with Daemon({"s": origin.url}, max_shards=1, grace="60s", scan="0s") as daemon:
        daemon.path("s", "x").unlink()
        path = daemon.path("s", "x")
        assert daemon.acquire("s", "y", wait=0.5).code == "cache_full"
        assert path.exists()
        assert daemon.evict("s", "x").status == 204


def test_the_daemons_own_locks_are_no_leases(origin: Origin) -> None:
    with Daemon({"s": origin.url}, grace="60s") as daemon:
        daemon.path("s", "x")
        path = daemon.path("s", "y")
        with held(path):
            assert leased(daemon) == {"x": False, "y": True}
            answer = daemon.evict("s", "y")
            assert (answer.status, answer.code) == (409, "leased")
            assert "s/y" in answer.body["error"]["message"]
        assert daemon.evict("s", "y").status == 204


def test_an_exclusive_lock_of_somebody_else(origin: Origin) -> None:
    """`409 locked` names who holds it; the shard stays, and is served again afterwards."""
    with Daemon({"s": origin.url}, grace="0s") as daemon:
        path = daemon.path("s", "x")
        until(lambda: not leased(daemon)["x"])
        with held(path, fcntl.LOCK_EX):
            answer = daemon.acquire("s", "x")
            assert (answer.status, answer.code) == (409, "locked")
            assert f"pid {os.getpid()} " in answer.body["error"]["message"]
            assert answer.body["error"]["retryable"]
            assert daemon.acquire("s", "y").status == 200
        assert daemon.acquire("s", "x").body["result"] == "hit"


# ---- leases under pressure


def test_a_leased_shard_survives_any_pressure(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=3, grace="100ms") as daemon, Reader(daemon, HOLD, ["kept"]) as reader:
        assert reader.line() == "held"
        path = daemon.path("s", "kept")
        inode = path.stat().st_ino
        for number in range(40):
            daemon.path("s", f"{number}.bin")
        assert daemon.evict("s", "kept").code == "leased"
        assert path.stat().st_ino == inode
        assert content.matches(path, "kept", 100_000)
        assert origin["kept"].gets == 1


def test_sigkill_of_the_reader_frees_its_leases_at_once(origin: Origin) -> None:
    """All leased and the cap reached: the next one waits, and then gets an error that says how many are leased."""
    with Daemon({"s": origin.url}, max_shards=3, grace="60s") as daemon:
        with Reader(daemon, HOLD, ["a", "b", "c"]) as reader:
            assert reader.line() == "held"
            refused = daemon.acquire("s", "d", wait=1)
            assert (refused.status, refused.code) == (503, "cache_full")
            assert "3 of 3 shards are leased" in refused.body["error"]["message"]
            assert refused.headers["retry-after"]
            said: list[int] = []
            waiting = threading.Thread(target=lambda: said.append(daemon.acquire("s", "d", wait=30).status))
            waiting.start()
            until(lambda: daemon.status()["cache"]["full"] == {"leased": 3, "in_transfer": 0, "waiting": 1}, 20)
            reader.kill9()
            waiting.join(30)
        assert said == [200]


def test_every_refusal_of_a_crowd_says_how_many_are_leased(origin: Origin) -> None:
    """Those too that have not got as far as asking for room, since the transfers before them wait for it."""
    with Daemon({"s": origin.url}, max_shards=2) as daemon, Reader(daemon, HOLD, ["a", "b"]) as reader:
        assert reader.line() == "held"
        said = []
        threads = [
            threading.Thread(target=lambda n=n: said.append(daemon.acquire("s", f"{n}.bin", wait=2))) for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [answer.code for answer in said] == ["cache_full"] * 20
        assert all("2 of 2 shards are leased" in answer.body["error"]["message"] for answer in said)


def test_a_lease_ends_with_the_process_that_took_it(origin: Origin) -> None:
    """C-34: the parent's with the parent, a worker's with the worker; one that is stopped keeps its own."""
    names = [f"w{n}" for n in range(4)]
    with Daemon({"s": origin.url}, grace="100ms") as daemon:
        with Reader(daemon, HOLD_IN_WORKERS, {"own": "own", "workers": names}) as reader:
            pids = reader.line()
            until(lambda: leased(daemon) == dict.fromkeys(["own", *names], True))
            reader.kill9()
            until(lambda: leased(daemon) == {"own": False} | dict.fromkeys(names, True))
            freeze(pids[0])
            try:
                assert daemon.evict("s", "own").status == 204
                assert daemon.evict("s", "w0").code == "leased"
                os.kill(pids[1], 9)
                until(lambda: not leased(daemon)["w1"])
                assert leased(daemon) == {"w0": True, "w1": False, "w2": True, "w3": True}
            finally:
                thaw(pids[0])
        until(lambda: not any(leased(daemon).values()))


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(240)])])
def test_readers_under_constant_eviction(origin: Origin, seconds: int) -> None:
    """4 readers: no failed read, no wrong byte."""
    arg = {"seconds": seconds, "shards": 12, "size": 100_000}
    with Daemon({"s": origin.url}, max_shards=6, grace="500ms") as daemon:
        with spawn(daemon, READ_ON, [arg | {"seed": seed} for seed in range(4)]) as readers:
            chance = random.Random(5)
            while any(reader.process.poll() is None for reader in readers):
                daemon.evict("s", f"{chance.randrange(12)}.bin")
            said = [reader.rest()[0] for reader in readers]
        assert all(reads > 10 and wrong == 0 for reads, wrong in said), said
        assert daemon.metric("evictions_total", source="s") > 10
        assert daemon.metric("requests_total", source="s", result="failed") == 0


# ---- order of use


def test_uses_without_the_daemon_keep_the_order(origin: Origin) -> None:
    """Hits cost no call, and are told in batches: what was used last goes last."""
    use = """
cache = ShardCache("s")
for name in ARG:
    cache.open(name).close()
cache.close()
"""
    with Daemon({"s": origin.url}, max_shards=3, grace="0s") as daemon:
        for name in "abc":
            daemon.path("s", name)
        with Reader(daemon, use, ["b", "a"]) as reader:
            reader.rest()
        for number in range(2):
            daemon.path("s", f"{number}.bin")
        assert set(leased(daemon)) == {"a", "0.bin", "1.bin"}


def test_an_old_use_that_is_told_late_moves_nothing_back(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=2, grace="0s") as daemon:
        for name in "ab":
            daemon.path("s", name)
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [["a", 0], ["b", 3600]]})
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [["a", 3600]]})
        daemon.path("s", "c")
        assert set(leased(daemon)) == {"a", "c"}


# ---- accounting


def cycles(origin: Origin, count: int, seed: int) -> None:
    """C-29: fetch, cancel, evict, fail in random order; then all that is reported is on the disk, and nothing else."""
    names = [f"{n}.bin" for n in range(10)]
    for number, name in enumerate(names):
        origin.put(name, 40_000 * (number + 1))
    with Daemon({"s": origin.url}, max_shards=6, max_bytes="2MB", grace="20ms", fetch={"retries": 0}) as daemon:
        files = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for step in range(count // 4):
                name = chance.choice(names)
                if step % 3 == 0:
                    origin[name].cut = [chance.randrange(origin[name].size)]
                kind = chance.random()
                if kind < 0.2:
                    with contextlib.suppress(TimeoutError):  # asks, and does not wait for the answer
                        daemon.api("POST", "/v1/acquire", {"source": "s", "key": name, "wait": 5}, timeout=0.005)
                else:
                    daemon.acquire("s", name, wait=5 if kind < 0.9 else 0.01)
                if chance.random() < 0.5:
                    daemon.evict("s", name)

        threads = [threading.Thread(target=work, args=(seed + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        until(lambda: not daemon.status()["fetches"], 30)
        daemon.audit()
        assert daemon.status()["cache"]["reserved_bytes"] == 0
        until(lambda: daemon.descriptors() <= files + 10, 30, "descriptors back to base")
        for name in names:
            origin[name].cut = []
            assert content.matches(daemon.path("s", name), name, origin[name].size)


def test_random_load_leaves_nothing_behind(origin: Origin) -> None:
    cycles(origin, 400, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_thousand_cycles_leave_nothing_behind(origin: Origin) -> None:
    cycles(origin, 5000, 2)


def test_failures_half_way_leave_nothing_behind(origin: Origin) -> None:
    with Daemon({"s": origin.url}, fetch={"retries": 0}) as daemon:
        origin.put("cut", 3 * MB, cut_always=MB)
        origin.put("gone", MB, always=Status(404))
        for _ in range(10):
            assert daemon.acquire("s", "cut").code == "origin_unavailable"
            assert daemon.acquire("s", "gone").code == "missing"
        daemon.audit()
