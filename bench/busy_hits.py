"""Figure 1 once more: the p99 of warm hits while large shards are fetched, unpacked and evicted, against their idle p99.

    python bench/busy_hits.py [--big 16] [--size 1024] [--shards 200] [--cache /tmp]

Zips of `--size` MiB, of members that are stored, come from a mounted folder and are unpacked, one after the other; the cap has room for
two of them, so that from the third on each evicts another. Meanwhile this process takes hits on small shards. Idle spells of the same
length lie in between, after the disk has written what it has. The zips are one file under as many names: what is read of it is in
memory, and more of the time goes to writing.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
import zipfile
from functools import partial
from pathlib import Path

from hits import each, hit
from side_by_side import Daemon, folder, main, table, verdict

from cachedaemon_client import ShardCache
from tests.fakes import disk
from tests.fakes.readers import Reader
from tests.fakes.waiting import until

MIB = 1 << 20
AT_ONCE = 2
"""Large shards that the cap has room for."""
FETCHER = """
with ShardCache("big") as cache:
    say("ready")
    while (key := hear()) is not None:
        cache.open(key).close()
        say(key)
"""


def made(home: Path, small: int, big: int, mebibytes: int) -> None:
    """Small shards of 4 kB, and one zip with all the names of the large ones."""
    for name in ("small", "big"):
        (home / name).mkdir()
    for number in range(small):
        (home / "small" / f"{number:04d}").write_bytes(os.urandom(4096))
    first = home / "big" / "0.zip"
    with zipfile.ZipFile(first, "w") as archive:
        piece = os.urandom(4 * MIB)
        for number in range(mebibytes // 4):
            archive.writestr(f"{number:04d}", piece)
    for number in range(1, big):
        os.link(first, home / "big" / f"{number}.zip")


def measured(daemon: Daemon, keys: list[str], big: list[str]) -> tuple[list[int], list[int]]:
    """Nanoseconds of each hit: idle, and while the large shards come and go."""
    one = partial(hit, ShardCache("small"))
    idle: list[int] = []
    busy: list[int] = []
    each(one, keys, [])
    with Reader(daemon, FETCHER) as fetcher:
        fetcher.line()
        for key in big:
            fetcher.tell(key)
            spell = time.perf_counter()
            while fetcher._said.empty():  # noqa: SLF001 - a look that does not wait
                each(one, keys, busy)
            spell = time.perf_counter() - spell
            fetcher.line()
            until(lambda: disk.leftovers(daemon.cache) == [], 120, "trash to be empty")
            os.sync()
            end = time.perf_counter() + spell
            while time.perf_counter() < end:
                each(one, keys, idle)
        fetcher.tell(None)
    return idle, busy


def run() -> None:
    """Serve both, and time hits."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--big", type=int, default=16, help="large shards")
    options.add_argument("--size", type=int, default=1024, help="MiB of each")
    options.add_argument("--shards", type=int, default=200)
    options.add_argument("--cache", default="/tmp", help="where the cache lies")
    chosen = options.parse_args()
    with folder(chosen.cache) as home:
        made(home, chosen.shards, chosen.big, chosen.size)
        sources = {name: {"url": (home / name).as_uri() + "/", "settle": 0} for name in ("small", "big")}
        sources["big"]["archives"] = "unpack"
        how = {"cache_dir": home / "cache", "max_shards": chosen.shards + AT_ONCE, "check": False, "scan": "1h"}
        with Daemon(sources, **how) as daemon:
            os.environ["CACHEDAEMON_SOCKET"] = str(daemon.socket)
            keys = [f"{number:04d}" for number in range(chosen.shards)]
            for key in keys:
                daemon.path("small", key)
            gc.disable()
            report(chosen, *measured(daemon, keys, [f"{number}.zip" for number in range(chosen.big)]))
            evicted = daemon.metric("evictions_total", source="big", reason="room")
            print(f"large shards evicted meanwhile: {evicted:.0f} of {chosen.big}")


def report(chosen: argparse.Namespace, idle: list[int], busy: list[int]) -> None:
    """Percentiles of both, and their ratio."""
    rows, highs = [], []
    for name, found in (("idle", idle), ("fetched, unpacked, evicted", busy)):
        cuts = statistics.quantiles(found, n=100)
        highs.append(cuts[98])
        rows.append([name, f"{len(found):,}", f"{cuts[49] / 1e3:.2f}", f"{cuts[98] / 1e3:.2f}"])
    table([f"hits, {chosen.big} shards of {chosen.size} MiB", "hits", "p50 us", "p99 us"], rows)
    verdict(1, "p99 while large shards come and go / idle p99", highs[1] / highs[0], at_most=2)


if __name__ == "__main__":
    main(run)
