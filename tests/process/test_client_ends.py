"""Programs that close nothing end at once, whatever the daemon does; uses are told, exactly, or the last of them."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import ShardCache
from tests.fakes import disk, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

KEYS = [f"shard-{number}.bin" for number in range(6)]


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for key in KEYS:
            one.put(key, 5000)
        one.put("never.bin", 5000, latency=60)
        yield one


@pytest.fixture
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=10) as one:
        for key in KEYS:
            one.path("s", key)
        yield one


def leased(cache: Path) -> list[str]:
    found = []
    for name in disk.published(cache):
        with (cache / "shards" / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(name)
    return found


# --- ends of programs (C-60)

ENDING = """
import asyncio, multiprocessing
from cachedaemon_client import aio

cache = ShardCache("s")   # never closed

def worker(keys, ready):
    with cache.open(keys[0]):
        ready.set()
        time.sleep(100)

def leave():
    sys.exit(3)

if __name__ == "__main__":
    held = cache.open(ARG["keys"][0])   # never closed
    plans = [cache.plan(ARG["keys"]) for _ in range(5)]
    seen = iter(plans[0])
    next(seen)
    job = cache.prefetch([*ARG["keys"], "never.bin"])
    ready = multiprocessing.Event()
    child = multiprocessing.Process(target=worker, args=(ARG["keys"], ready), daemon=True)
    child.start()
    ready.wait()
    say("in mid-epoch")
    hear()
    if ARG["how"] == "interrupt":
        say("going on")
        while True:
            time.sleep(0.1)
            cache.open(ARG["keys"][1]).close()
    if ARG["how"] == "thread":
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    if ARG["how"] == "exception":
        raise RuntimeError("the trainer's own")
    if ARG["how"] == "exit":
        leave()
"""
WAYS = {"end": 0, "thread": 0, "exit": 3, "exception": 1, "interrupt": -signal.SIGINT}


@pytest.mark.parametrize("other", ["alive", "frozen", "stopped"])
def test_a_program_that_closes_nothing_ends_at_once(daemon: Daemon, other: str) -> None:
    """However it ends, with a worker of its own that holds a lease; all leases end with them."""
    args = [{"how": how, "keys": KEYS} for how in WAYS]
    with readers.spawn(daemon, ENDING, args) as programs:
        for program in programs:
            assert program.line(60) == "in mid-epoch"
        {"alive": lambda: None, "frozen": daemon.freeze, "stopped": daemon.stop}[other]()
        for program, (how, status) in zip(programs, WAYS.items(), strict=True):
            began = time.monotonic()
            program.tell()
            if how == "interrupt":
                assert program.line(20) == "going on"
                os.kill(program.pid, signal.SIGINT)
            assert program.wait(30) == status, (how, program.errors)
            assert time.monotonic() - began < 5, how
            assert not program.children()
        daemon.thaw()  # it holds shards itself for a while after an answer
        until(lambda: not leased(daemon.cache), 20, "the end of all leases")
    if other == "alive":
        until(lambda: not daemon.status()["plans"], 10, "the end of all plans")


# --- counts


def hits(daemon: Daemon) -> float:
    return daemon.metric("requests_total", source="s", result="hit")


def test_every_hit_is_counted_once(daemon: Daemon) -> None:
    """From several processes and threads; a miss counts as a miss only."""
    before = hits(daemon)
    snippet = """
with ShardCache("s") as cache:
    def use():
        for number in range(1000):
            cache.open(ARG[number % 5]).close()
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
    readers.run_all(daemon, snippet, [KEYS] * 2)
    assert hits(daemon) - before == 4000


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_worker_s_last_hits_are_counted(daemon: Daemon, start: str) -> None:
    """Multiprocessing ends a forked worker without atexit; fewer hits than are told at once are not lost with it."""
    before = hits(daemon)
    snippet = """
import multiprocessing
import warnings
warnings.filterwarnings('ignore', 'This process .* is multi-threaded')
def work(cache, keys):
    for _ in range(10):
        for key in keys:
            cache.open(key).close()
if __name__ == "__main__":
    how = multiprocessing.get_context(ARG["start"])
    cache = ShardCache("s")
    cache.open(ARG["keys"][0]).close()
    cache.close()
    workers = [how.Process(target=work, args=(cache, ARG["keys"][:3])) for _ in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    say([worker.exitcode for worker in workers])
"""
    with readers.Reader(daemon, snippet, {"start": start, "keys": KEYS}) as reader:
        assert reader.line(60) == [0, 0]
    until(lambda: hits(daemon) - before == 61, 10, "all hits")


def test_hits_are_told_before_each_acquire(daemon: Daemon) -> None:
    with ShardCache("s", socket=daemon.socket, wait=20) as cache:
        before = hits(daemon)
        for _ in range(10):
            cache.open(KEYS[0]).close()
        assert hits(daemon) == before, "fewer than 256, and no 5 s have passed"
        cache.acquire(KEYS[1]).close()
        until(lambda: hits(daemon) == before + 11, 10)


def test_the_order_of_use_is_what_the_readers_did(daemon: Daemon) -> None:
    """What was used last is evicted last, though nobody asked the daemon."""
    with ShardCache("s", socket=daemon.socket, wait=20) as cache:
        for key in (KEYS[3], KEYS[1]):
            cache.open(key).close()
    used = {shard["key"]: shard["last_used"] for shard in daemon.shards("s")}
    assert sorted(used, key=lambda key: -used[key])[:2] == [KEYS[1], KEYS[3]]


def test_a_stopped_daemon_hears_the_last_256_uses(daemon: Daemon) -> None:
    """No hit waits for it; when it goes on, it hears the report that it was sent and the last uses after that."""
    with ShardCache("s", socket=daemon.socket, wait=20) as cache:
        cache.open(KEYS[0]).close()
        before, slowest = hits(daemon), 0.0
        daemon.freeze()
        began, count = time.monotonic(), 0
        while time.monotonic() - began < 6 or cache._reporter.due[0] - time.monotonic() < 4:
            start = time.monotonic()
            cache.open(KEYS[count % 3]).close()
            slowest = max(slowest, time.monotonic() - start)
            count += 1
        assert slowest < 2, "a hit waited"
        daemon.thaw()
    told = hits(daemon) - before
    assert 2 * 256 <= told < count
    assert len(cache._reporter.uses) == 0


def test_uses_are_told_to_the_next_daemon(daemon: Daemon) -> None:
    with ShardCache("s", socket=daemon.socket, wait=20) as cache:
        cache.open(KEYS[0]).close()
        cache._reporter.flush()
        daemon.kill9()
        for _ in range(100):
            cache.open(KEYS[0]).close()
        daemon.start()
    assert hits(daemon) >= 100


def test_a_client_takes_part_from_any_program(daemon: Daemon) -> None:
    """flock(1) of a shell is a lease like any other."""
    path: Any = daemon.path("s", KEYS[0])
    snippet = (
        "import subprocess; p = subprocess.Popen(['flock', '-s', ARG, 'sleep', '100']); say('up'); hear(); p.kill()"
    )
    with readers.Reader(daemon, snippet, str(path)) as reader:
        assert reader.line() == "up"
        until(lambda: leased(daemon.cache) == [f"s/{KEYS[0]}"], 20)
        assert daemon.evict("s", KEYS[0]).code == "leased"
