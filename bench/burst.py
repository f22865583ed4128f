"""Figure 10: the peak of disk use, as part of the cap, while more is asked for at once than there is room for.

    python bench/burst.py [--shards 16] [--members 200] [--size 20000] [--readers 12] [--cap 6]

Zip shards are unpacked (packed and unpacked are on the disk together for a while) or read in place, with a cap in shards
and with one in bytes that `--cap` shards just fit in, packed and unpacked together.
The cache lies on a tmpfs of its own, whose used blocks the kernel tells in one call: no look can miss or add up what was
not there together. Meta files and member tables, which the cap does not count, are taken off. Needs root, to mount.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path
from typing import Self

from side_by_side import Daemon, NotMeasured, main, table, verdict

from tests.fakes import disk, mounts, readers
from tests.fakes.origin import OriginProcess, shard_name

READER = """
import random
order = random.Random(ARG["seed"]).sample(ARG["names"], len(ARG["names"]))
with ShardCache("s", wait=300) as cache:
    for name in order:
        with cache.open(name) as shard:
            shard.size
"""


class Peaks:
    """Looks at a cache on a file system of its own, every few ms, while the block runs."""

    def __init__(self, cache: Path) -> None:
        """Nothing seen yet."""
        self.cache, self.bytes, self.shards, self.looks = cache, 0, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Looking."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No more looks."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            seen = os.statvfs(self.cache)
            names = disk.published(self.cache)
            if names == disk.published(self.cache):
                self.shards = max(self.shards, len(names))
            self.bytes = max(self.bytes, (seen.f_blocks - seen.f_bfree) * seen.f_frsize)
            self.looks += 1


def burst(mode: str, url: str, caps: dict[str, int], room: int, args: list[object]) -> list[str]:
    """Peak / cap, and what that rests on."""
    source = {"url": url, "archives": mode, "concurrency": 16}
    with mounts.small_tmpfs(4 * room) as home, Daemon({"s": source}, cache_dir=home / "cache", **caps) as daemon:
        began = time.perf_counter()
        with Peaks(daemon.cache) as peaks:
            readers.run_all(daemon, READER, args, seconds=540)
        seconds = time.perf_counter() - began
        evicted = daemon.metric("evictions_total", source="s")
        beside = disk.blocks(daemon.cache / "meta", daemon.cache / "members")
        most = {"max_shards": peaks.shards, "max_bytes": peaks.bytes - beside}
        peak = max(most[name] / cap for name, cap in caps.items() if cap)
        return [f"{peak:.3f}", f"{evicted:.0f}", f"{seconds:.1f}", f"{peaks.looks:,}"]


def run() -> None:
    """Both modes of archives, with a cap in shards and one in bytes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=16)
    options.add_argument("--members", type=int, default=200)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--readers", type=int, default=12)
    options.add_argument("--cap", type=int, default=6)
    chosen = options.parse_args()
    if reason := mounts.why_no_mount():
        raise NotMeasured(reason)
    names = [shard_name(number, "zip") for number in range(chosen.shards)]
    room = chosen.cap * chosen.members * 2 * (chosen.size + 4096)
    all_caps = {"shards": {"max_shards": chosen.cap, "max_bytes": 0}, "bytes": {"max_shards": 0, "max_bytes": room}}
    args: list[object] = [{"names": names, "seed": seed} for seed in range(chosen.readers)]
    with OriginProcess(objects=chosen.shards, members=chosen.members, size=chosen.size) as origin:
        rows = [
            [mode, name, *burst(mode, origin.url, caps, room, args)]
            for mode in ("unpack", "index")
            for name, caps in all_caps.items()
        ]
    print(f"{chosen.readers} readers of {chosen.shards} shards; caps of {chosen.cap} shards, {room} bytes")
    table(["archives", "cap in", "peak / cap", "evictions", "s", "looks"], rows)
    verdict(10, "highest peak / cap", max(float(row[2]) for row in rows), at_most=1)


if __name__ == "__main__":
    main(run)
