"""Figure 5: how fast the cache fills, and for how much CPU, over HTTP, from a mounted folder, and from an object store.

    python bench/fill.py [--files 16] [--size 134217728] [--width 4] [--rounds 3] [--source /tmp] [--sink /dev/shm] [--only s3]

The rival over HTTP is `curl -o` from the same nginx, and from the mount `cp` across the two file systems; each is followed
by `xxhsum -H2` (Debian's package xxhash) of the file, since the daemon takes that digest too. The store is moto's S3 server,
and the rival `curl`, which can sign for it. Both sides run `--width` transfers at once and take turns;
the CPU is that of the daemon with its helpers, and that of the rival's processes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from side_by_side import GB, Daemon, Nginx, NotMeasured, children_cpu, cpu, filled, folder, main, middle, table, verdict

from tests.fakes import stores


class Run(NamedTuple):
    """One side, once."""

    seconds: float
    cpu: float


def rival(how: Callable[[str, Path], Sequence[str]], names: Sequence[str], sink: Path, width: int) -> Run:
    """Fetch and hash each file by programs."""
    sink.mkdir()

    def one(name: str) -> None:
        subprocess.run(how(name, sink / name), check=True)
        subprocess.run(["xxhsum", "-q", "-H2", str(sink / name)], check=True, stdout=subprocess.DEVNULL)

    began, before = time.perf_counter(), children_cpu()
    with ThreadPoolExecutor(width) as pool:
        list(pool.map(one, names))
    run = Run(time.perf_counter() - began, children_cpu() - before)
    shutil.rmtree(sink)
    return run


def ours(url: str, names: Sequence[str], sink: Path, width: int, **more: object) -> Run:
    """Have a fresh daemon bring each file; its start, and a first file that warms it, do not count."""
    source = {"url": url, "archives": "opaque", "concurrency": width, **more}
    with Daemon({"s": source}, cache_dir=sink, max_shards=len(names) + 1, check=False, scan="1h") as daemon:
        daemon.path("s", "warm")
        began, before = time.perf_counter(), cpu(daemon.pid)
        with ThreadPoolExecutor(width) as pool:
            list(pool.map(lambda name: daemon.path("s", name, 300), names))
        run = Run(time.perf_counter() - began, cpu(daemon.pid) - before)
    shutil.rmtree(sink)
    return run


def compare(title: str, sides: dict[str, Callable[[], Run]], size: int, rounds: int) -> None:
    """Run the sides in turns, and print medians and ratios."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 else reversed(sides):
            runs[name].append(sides[name]())
    rates = {name: size / middle([run.seconds for run in found]) for name, found in runs.items()}
    costs = {name: middle([run.cpu for run in found]) / size for name, found in runs.items()}
    print(title)
    rows = [[name, f"{rates[name] / 1e6:,.0f}", f"{costs[name] * GB:.2f}"] for name in sides]
    table(["", "MB/s", "CPU s/GB"], rows)
    mine, other = sides
    verdict(5, f"rate, {mine} / {other}", rates[mine] / rates[other], at_least=0.9)
    verdict(5, f"CPU, {mine} / {other}", costs[mine] / costs[other], at_most=1.3)


class Places(NamedTuple):
    """Where the files are and go, and how many at once."""

    source: Path
    sink: Path
    names: Sequence[str]
    width: int

    def ours(self, url: str, **more: object) -> Run:
        """The daemon's side."""
        return ours(url, self.names, self.sink / "ours", self.width, **more)

    def rival(self, how: Callable[[str, Path], Sequence[str]]) -> Run:
        """The other side."""
        return rival(how, self.names, self.sink / "rival", self.width)


def curl(url: str, *more: str) -> Callable[[str, Path], Sequence[str]]:
    """How `curl` fetches a file from below a URL."""
    return lambda name, to: ["curl", "-sf", *more, "-o", str(to), url + name]


def http(places: Places, size: int, rounds: int) -> None:
    """From nginx."""
    with Nginx(places.source) as server:
        sides = {
            "cachedaemon": lambda: places.ours(server.url),
            "curl, xxhsum": lambda: places.rival(curl(server.url)),
        }
        compare("HTTP", sides, size, rounds)


def mount(places: Places, size: int, rounds: int) -> None:
    """From the folder itself."""
    sides = {
        "cachedaemon": lambda: places.ours(places.source.as_uri() + "/"),
        "cp, xxhsum": lambda: places.rival(lambda name, to: ["cp", str(places.source / name), str(to)]),
    }
    compare("mount", sides, size, rounds)


def s3(places: Places, size: int, rounds: int) -> None:
    """From moto, in a bucket that has the files."""
    with stores.moto() as store:
        for name in (*places.names, "warm"):
            store.put(name, (places.source / name).read_bytes())
        settings = {"endpoint": store.url, **stores.SETTINGS["s3"]}
        signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{stores.ACCESS}:{stores.SECRET}"]
        sides = {
            "cachedaemon": lambda: places.ours(f"s3://{stores.BUCKET}/", **settings),
            "curl, xxhsum": lambda: places.rival(curl(f"{store.url}/{stores.BUCKET}/", *signed)),
        }
        compare("S3", sides, size, rounds)


def run() -> None:
    """Compare over HTTP, from a mount and from a store."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", type=int, default=16)
    options.add_argument("--size", type=int, default=1 << 27)
    options.add_argument("--width", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--source", default="/tmp", help="where the origin's files lie; read once before, so in memory"
    )
    options.add_argument("--sink", default="/dev/shm", help="where the copies go; on a disk its speed is what counts")
    options.add_argument("--only", choices=("http", "mount", "s3"))
    chosen = options.parse_args()
    if shutil.which("xxhsum") is None:
        raise NotMeasured("xxhsum is not installed (Debian's package xxhash)")
    with folder(chosen.source) as source, folder(chosen.sink) as sink:
        if source.stat().st_dev == sink.stat().st_dev:
            raise NotMeasured(f"{chosen.source} and {chosen.sink} are one file system")
        names = [filled(source / f"{number:03d}.bin", chosen.size).name for number in range(chosen.files)]
        filled(source / "warm", 1 << 20)
        print(f"{chosen.files} files of {chosen.size} bytes, {chosen.width} at once, {source} to {sink}")
        places = Places(source, sink, names, chosen.width)
        for name, fill in (("http", http), ("mount", mount), ("s3", s3)):
            if chosen.only in (None, name):
                fill(places, chosen.files * chosen.size, chosen.rounds)


if __name__ == "__main__":
    main(run)
