"""Figure 1: what a hit costs, against a bare `os.open` and `os.close` of the same file; and during evictions.

    python bench/hits.py [--shards 200] [--rounds 40] [--big 4] [--cache /tmp]

Beside them the floor: the system calls of a lease, and nothing else, written out in Python. Where others want the processor, a
pass of these or of hits is interrupted more often than not, the shorter one of bare opens is not: there the processor time
says more.

Sides take turns, a pass over all shards each. The time of each operation is taken by itself for the percentiles (which adds
the clock's own 60 ns or so to every side), the ratios are those of whole passes. Then hits are timed while another process
evicts shards of 1 GiB, one after the other; idle spells of the same length lie in between.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable
from fcntl import LOCK_NB, LOCK_SH, LOCK_UN, flock
from functools import partial
from pathlib import Path

from side_by_side import Daemon, folder, main, middle, table, verdict

from cachedaemon_client import ShardCache
from cachedaemon_client.process import LEASED
from tests.fakes import disk
from tests.fakes.readers import Reader

GIB = 1 << 30
EVICTOR = """
import http.client, socket
from pathlib import Path
from tests.fakes.api import Api
class At(Api):
    socket = Path(ARG["socket"])
trash = Path(ARG["trash"])
say("ready")
while (key := hear()) is not None:
    answer = At().evict("big", key)
    while any(trash.iterdir()):
        time.sleep(0.001)
    say(answer.status)
"""


def bare(paths: Iterable[str]) -> None:
    """Open and close each file."""
    for path in paths:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def hits(cache: ShardCache, keys: Iterable[str]) -> None:
    """Lease and release each shard."""
    for key in keys:
        cache.open(key).close()


def by_hand(directory: int, key: str) -> None:
    """The system calls of a hit: lock and compare, unlock and close."""
    descriptor = os.open(key, LEASED, dir_fd=directory)
    flock(descriptor, LOCK_SH | LOCK_NB)
    os.fstat(descriptor)
    os.lstat(key, dir_fd=directory)
    flock(descriptor, LOCK_UN)
    os.close(descriptor)


def floor(directory: int, keys: Iterable[str]) -> None:
    """That, for each shard."""
    for key in keys:
        by_hand(directory, key)


def each(operation: Callable[[str], object], items: Iterable[str], into: list[int]) -> None:
    """Nanoseconds of each operation by itself."""
    clock = time.perf_counter_ns
    for item in items:
        began = clock()
        operation(item)
        into.append(clock() - began)


def hit(cache: ShardCache, key: str) -> None:
    """One hit."""
    cache.open(key).close()


def touch(path: str) -> None:
    """One bare open."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def compare(keys: list[str], paths: list[str], rounds: int) -> None:
    """Hits without and with a plan, and the bare calls, in turns."""
    plain, planned = ShardCache("small"), ShardCache("small")
    plan = planned.plan(keys * (2 * rounds + 1))
    directory = os.open(os.path.dirname(paths[0]), os.O_PATH | os.O_DIRECTORY)
    whole = {
        "bare open, close": partial(bare, paths),
        "floor": partial(floor, directory, keys),
        "hit": partial(hits, plain, keys),
        "hit, with a plan": partial(hits, planned, keys),
    }
    single = {
        "bare open, close": partial(each, touch, paths),
        "floor": partial(each, partial(by_hand, directory), keys),
        "hit": partial(each, partial(hit, plain), keys),
        "hit, with a plan": partial(each, partial(hit, planned), keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in whole}
    used: dict[str, list[float]] = {name: [] for name in whole}
    apart: dict[str, list[int]] = {name: [] for name in whole}
    for run in whole.values():
        run()  # paths are learned, files are in memory
    for _ in range(rounds):
        for name, run in whole.items():
            began, before = time.perf_counter(), time.thread_time()
            run()
            seconds[name].append((time.perf_counter() - began) / len(keys))
            used[name].append((time.thread_time() - before) / len(keys))
            single[name](apart[name])
    plan.close()
    os.close(directory)
    report(seconds, used, apart)


def report(seconds: dict[str, list[float]], used: dict[str, list[float]], apart: dict[str, list[int]]) -> None:
    """Print medians of passes, also of the processor time that they used, and percentiles of single operations."""
    first, least = (middle(next(iter(one.values()))) for one in (seconds, used))
    rows = []
    for name, found in seconds.items():
        cuts = statistics.quantiles(apart[name], n=100)
        rows.append([name, *(f"{us:.2f}" for us in (middle(found) * 1e6, cuts[49] / 1e3, cuts[98] / 1e3))])
        rows[-1] += [f"{middle(found) / first:.2f}", f"{middle(used[name]) / least:.2f}"]
    table(["", "us each", "p50 us", "p99 us", "x bare", "CPU, x bare"], rows)
    for name in list(seconds)[2:]:
        verdict(1, f"{name}, times bare", middle(seconds[name]) / first, at_most=4)


def during_evictions(daemon: Daemon, keys: list[str], big: list[str]) -> None:
    """The p99 of hits, idle and while shards of 1 GiB are evicted."""
    cache = ShardCache("small")
    one = partial(hit, cache)
    idle: list[int] = []
    busy: list[int] = []
    where = {"socket": daemon.socket, "trash": daemon.cache / "trash"}
    with Reader(daemon, EVICTOR, where) as evictor:
        evictor.line()
        for key in big:
            evictor.tell(key)
            spell = time.perf_counter()
            while evictor._said.empty():  # noqa: SLF001 - a look that does not wait
                each(one, keys, busy)
            spell = time.perf_counter() - spell
            if (status := evictor.line()) != 204:
                raise AssertionError(f"evicting {key} answered {status}")
            end = time.perf_counter() + spell
            while time.perf_counter() < end:
                each(one, keys, idle)
        evictor.tell(None)
    rows, highs = [], []
    for name, found in (("idle", idle), ("during evictions", busy)):
        cuts = statistics.quantiles(found, n=100)
        highs.append(cuts[98])
        rows.append([name, f"{len(found):,}", f"{cuts[49] / 1e3:.2f}", f"{cuts[98] / 1e3:.2f}"])
    table([f"hits, {len(big)} shards of 1 GiB", "hits", "p50 us", "p99 us"], rows)
    verdict(1, "p99 during evictions / idle p99", highs[1] / highs[0], at_most=2)


def made(source: Path, small: int, big: int) -> None:
    """Small shards of 4 kB, and big ones of 1 GiB of zeros without blocks of their own at the source."""
    for name in ("small", "big"):
        (source / name).mkdir()
    for number in range(small):
        (source / "small" / f"{number:04d}").write_bytes(os.urandom(4096))
    for number in range(big):
        with (source / "big" / f"{number}").open("wb") as file:
            file.truncate(GIB)


def run() -> None:
    """Serve small and big shards, and time hits."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=200)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--big", type=int, default=4, help="shards of 1 GiB; 0: none")
    options.add_argument(
        "--cache", default="/tmp", help="where the cache lies; a disk, for evictions that take their time"
    )
    chosen = options.parse_args()
    with folder(chosen.cache) as home:
        made(home, chosen.shards, chosen.big)
        sources = {name: {"url": (home / name).as_uri() + "/", "settle": 0} for name in ("small", "big")}
        how = {"cache_dir": home / "cache", "max_shards": chosen.shards + chosen.big, "check": False, "scan": "1h"}
        with Daemon(sources, **how) as daemon:
            os.environ["CACHEDAEMON_SOCKET"] = str(daemon.socket)
            keys = [f"{number:04d}" for number in range(chosen.shards)]
            paths = [str(daemon.path("small", key)) for key in keys]
            gc.disable()  # its pauses are the same for all sides, and not what is measured
            compare(keys, paths, chosen.rounds)
            if big := [f"{number}" for number in range(chosen.big)]:
                for key in big:
                    daemon.path("big", key, 120)
                if disk.blocks(daemon.cache / "shards" / "big") < chosen.big * GIB:
                    raise AssertionError("the big shards have no blocks: evicting them would cost nothing")
                os.sync()  # their writing is over
                during_evictions(daemon, keys, big)


if __name__ == "__main__":
    main(run)
