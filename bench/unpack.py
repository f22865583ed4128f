"""Figure 12: unpacking many small files, against `unzip` and `bsdtar`, and how long the loop is held up meanwhile.

    python bench/unpack.py [--members 10000] [--size 20000] [--rounds 5] [--folder /dev/shm]

The sides take turns within each round, each into a fresh folder; printed are medians. `cachedaemon` checks every name and
CRC, computes the digest, and runs in its warm worker process, as it does in the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

import uvloop

from cachedaemon.archives.workers import Limits, Modes, Workers

TICK = 0.002  # seconds between two looks at the loop


def make(path: Path, members: int, size: int, method: int) -> None:
    """A zip of half-compressible members in 100 folders."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for number in range(members):
            content = random.randbytes(size // 2) + bytes(size - size // 2)
            archive.writestr(f"class{number % 100:03d}/{number:06d}.jpg", content)


async def watch_loop(worst: list[float]) -> None:
    """Note how late the loop wakes us."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + TICK
        await asyncio.sleep(TICK)
        worst.append(clock() - due)


async def ours(workers: Workers, archive: Path, folder: Path) -> None:
    """Unpack as the daemon does."""
    async with workers.unpack("zip", archive, folder, Modes(0o440, 0o750)) as unpacking:
        async for _ in unpacking:
            pass


def theirs(archive: Path) -> dict[str, list[str]]:
    """Rivals that are here, as commands to run in the folder to fill."""
    commands = {"unzip": ["unzip", "-q", str(archive)], "bsdtar": ["bsdtar", "-xf", str(archive)]}
    return {name: command for name, command in commands.items() if shutil.which(name)}


async def run(folder: Path, archive: Path, rounds: int) -> tuple[dict[str, float], list[float], list[float]]:
    """Median seconds of each side; the loop's delays idle and while unpacking."""
    workers = Workers(limits=Limits(1_000_000, 1 << 40, 600), most=1)
    seconds: dict[str, list[float]] = {"cachedaemon": []}
    idle: list[float] = []
    busy: list[float] = []
    try:
        await ours(workers, archive, folder / "warm")
        await asyncio.to_thread(shutil.rmtree, folder / "warm")
        for _ in range(rounds):
            await watched(asyncio.sleep(0.3), idle)
            seconds["cachedaemon"].append(await watched(ours(workers, archive, folder / "out"), busy))
            await asyncio.to_thread(shutil.rmtree, folder / "out")
            for name, command in theirs(archive).items():
                (folder / "out").mkdir()
                began = time.perf_counter()
                await asyncio.to_thread(subprocess.run, command, cwd=folder / "out", check=True)
                seconds.setdefault(name, []).append(time.perf_counter() - began)
                await asyncio.to_thread(shutil.rmtree, folder / "out")
    finally:
        await workers.close()
    return {name: statistics.median(found) for name, found in seconds.items()}, idle, busy


async def watched(work: object, delays: list[float]) -> float:
    """Seconds that some work takes, with the loop's delays noted meanwhile."""
    watcher = asyncio.create_task(watch_loop(delays))
    began = time.perf_counter()
    await work  # type: ignore[misc]
    seconds = time.perf_counter() - began
    watcher.cancel()
    return seconds


def main() -> None:
    """Run all sides on a stored and on a deflated archive, and print a table for each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--members", type=int, default=10_000)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folder", default="/dev/shm", help="where to unpack; tmpfs shows the programs, not the disk")
    chosen = options.parse_args()
    for title, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
            archive = Path(name) / "archive.zip"
            make(archive, chosen.members, chosen.size, method)
            print(f"{chosen.members} files of {chosen.size} bytes, {title}, in {chosen.folder}")
            report(*uvloop.run(run(Path(name), archive, chosen.rounds)), chosen.members)


def report(medians: dict[str, float], idle: list[float], busy: list[float], members: int) -> None:
    """Print rates, ratios and the loop's delays."""
    for name, seconds in medians.items():
        print(f"  {name:14}{members / seconds:10,.0f} files/s{seconds / medians['cachedaemon']:8.2f} x our time")
    for title, delays in (("idle", idle), ("unpacking", busy)):
        middle, high = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
        print(f"  loop {title:10} late by {middle * 1e3:.2f} ms (median), {high * 1e3:.2f} ms (p99)")
    if "unzip" in medians:
        print(f"  figure 12: {medians['unzip'] / medians['cachedaemon']:.2f} times unzip (reach 1)\n")


if __name__ == "__main__":
    main()
