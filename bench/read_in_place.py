"""Figure 13: reading stored members in place, by name, against `zipfile` and bare `pread` at known offsets.

    python bench/read_in_place.py [--members 5000] [--size 20000] [--rounds 9]

One process, warm page cache, members in a shuffled order. The sides take turns within each round; printed are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from cachedaemon.archives.workers import Limits, Workers
from cachedaemon.model import Stamp
from cachedaemon_client.members import MemberReader


def make(path: Path, members: int, size: int) -> list[str]:
    """A zip of stored members; returns their names."""
    names = [f"class{number % 100:03d}/{number:06d}.jpg" for number in range(members)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            archive.writestr(name, random.randbytes(size))
    return names


async def index(shard: Path, table: Path) -> float:
    """Write the member table; returns the seconds that took, a fresh process included."""
    found = os.stat(shard)
    stamp = Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    workers = Workers(limits=Limits(1_000_000, 1 << 40, 600), most=1)
    began = time.perf_counter()
    try:
        await workers.index("zip", shard, table, stamp, verify=False)
        return time.perf_counter() - began
    finally:
        await workers.close()


def timed(side: Callable[[], int], expected: int) -> float:
    """Seconds that one side takes to read everything."""
    began = time.perf_counter()
    got = side()
    seconds = time.perf_counter() - began
    if got != expected:
        raise SystemExit(f"read {got} bytes, not {expected}")
    return seconds


def main() -> None:
    """Run all sides and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--members", type=int, default=5000)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=9)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), chosen.members, chosen.size, chosen.rounds)


def run(folder: Path, members: int, size: int, rounds: int) -> None:
    """All sides, in turns."""
    shard, table = folder / "shard.zip", folder / "table"
    names = make(shard, members, size)
    indexed = asyncio.run(index(shard, table))
    random.shuffle(names)
    fd = os.open(shard, os.O_RDONLY)
    began = time.perf_counter()
    reader = MemberReader(fd, str(shard), table)
    opened = time.perf_counter() - began
    places = [reader.locate(name)[1:] for name in names]
    with zipfile.ZipFile(shard) as archive:
        sides: dict[str, Callable[[], int]] = {
            "pread at known offsets": lambda: sum(len(os.pread(fd, length, at)) for at, length in places),
            "read(name)": lambda: sum(len(reader.read(name)) for name in names),
            "view(name)": lambda: sum(len(reader.view(name)) for name in names),
            "zipfile": lambda: sum(len(archive.read(name)) for name in names),
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, read in sides.items():
                seconds[side].append(timed(read, members * size))
    reader.close()
    os.close(fd)
    print(f"{members} members of {size} bytes; table written in {indexed:.3f} s, opened in {opened * 1e6:.0f} us\n")
    report({side: statistics.median(found) for side, found in seconds.items()}, members)


def report(medians: dict[str, float], members: int) -> None:
    """Print rates and ratios."""
    print(f"{'':24}{'members/s':>12}{'of pread':>10}{'x zipfile':>11}")
    for side, seconds in medians.items():
        of_pread, of_zipfile = medians["pread at known offsets"] / seconds, medians["zipfile"] / seconds
        print(f"{side:24}{members / seconds:12,.0f}{of_pread:10.2f}{of_zipfile:11.1f}")
    of_pread = medians["pread at known offsets"] / medians["read(name)"]
    of_zipfile = medians["zipfile"] / medians["read(name)"]
    print(f"\nfigure 13: {of_zipfile:.1f} times zipfile (reach 4), {of_pread:.2f} of pread (reach 0.6)")


if __name__ == "__main__":
    main()
