"""Samples per second of an SPDL pipeline on a cold cache: by hand, and with the client's source.

    python bench/spdl_pipeline.py [--shards 60] [--members 100] [--size 20000] [--cap 20] [--mix 4] [--threads 8] [--rounds 3]

Both pipelines give the same samples, `mix` shards shuffled together, in batches, from the same origin, keep at most `cap` shards on the
disk, and decode nothing. By hand is what one writes without a daemon: download, unpack, merge with a sample order, read each
sample, sink; the shard that came first makes room, whether its samples were read or not, since nothing tells. The ceiling
is what the origin gives to as many connections, which drain whole shards and forget them. "Local" is the client's source with all
shards in the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import logging
import shutil
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from side_by_side import Daemon, NotMeasured, folder, main, middle, table

from cachedaemon_client import Shard, ShardCache, ShardSampler
from cachedaemon_client.sampler import stream
from tests.fakes import disk
from tests.fakes.origin import OriginProcess, shard_name

try:
    from spdl.pipeline import PipelineBuilder
    from spdl.pipeline.defs import Aggregator

    from cachedaemon_client.spdl import Batches, ShardSource
except ImportError:
    print("could not measure: spdl-core is not installed (scripts/install dev)", file=sys.stderr)
    sys.exit(1)
logging.getLogger("spdl").setLevel(logging.CRITICAL)  # it writes a traceback for each sample that is lost

BATCH = 32


@dataclass(frozen=True)
class Run:
    """What all sides share."""

    port: int
    url: str
    keys: list[str]
    members: int
    cap: int
    mix: int
    threads: int

    @property
    def samples(self) -> int:
        """Of a whole epoch."""
        return len(self.keys) * self.members

    def body(self, key: str) -> bytes:
        """A shard, from the origin."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as link:
            link.request("GET", f"/{key}")
            return link.getresponse().read()


class Epoch(NamedTuple):
    """What one epoch gave."""

    samples: int
    seconds: float
    shards: int = 0
    """The most that were on the disk at once."""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


def counted(batches: Iterator[list[tuple[str, bytes]]]) -> Epoch:
    """An epoch, its samples counted once each."""
    names: set[str] = set()
    began = time.perf_counter()
    for batch in batches:
        names.update(name for name, _ in batch)
    return Epoch(len(names), time.perf_counter() - began)


# ---- with the client


def decode(shard: Shard, member: str) -> tuple[str, bytes]:
    """A sample as it is."""
    return f"{shard.key}/{member}", shard.read(member)


def leased(run: Run, daemon: Daemon) -> Epoch:
    """The client's source, whose shards are leased while their samples are out."""
    sampler = ShardSampler(run.keys, seed=0)
    cache = ShardCache("s", socket=daemon.socket)
    source = ShardSource(cache, sampler, decode, batch_size=BATCH, mix=run.mix, holds=run.mix + 1, epochs=1)
    builder = PipelineBuilder().add_source(source)
    builder.pipe(source.read, concurrency=run.threads, output_order="input").aggregate(Batches()).add_sink(4)
    pipeline = builder.build(num_threads=run.threads)
    with disk.Sampler(daemon.cache) as watched, pipeline.auto_stop():
        epoch = counted(batch.samples for batch in pipeline)
    return epoch._replace(shards=watched.most.shards)


def cold(run: Run) -> Epoch:
    """With a daemon that has nothing."""
    with Daemon({"s": {"url": run.url, "concurrency": run.threads}}, max_shards=run.cap) as daemon:
        return leased(run, daemon)


def local(run: Run) -> Epoch:
    """With a daemon that has all: reading in place, through SPDL."""
    with Daemon({"s": {"url": run.url, "concurrency": run.threads}}, max_shards=len(run.keys)) as daemon:
        for key in run.keys:
            daemon.path("s", key)
        return leased(run, daemon)


# ---- by hand


class ByHand:
    """Download, unpack, and make room by what came first."""

    def __init__(self, run: Run, home: Path) -> None:
        self.run, self.home = run, home
        self._here: deque[Path] = deque()
        self._lock = threading.Lock()
        self.most = 0

    def download(self, key: str) -> Path:
        """A shard's file."""
        path = self.home / key
        path.write_bytes(self.run.body(key))
        return path

    def unpack(self, path: Path) -> Path:
        """A folder of its samples; the oldest one goes where there would be more than fit."""
        unpacked = path.with_suffix("")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(unpacked)
        path.unlink()
        with self._lock:
            self._here.append(unpacked)
            self.most = max(self.most, len(self._here))
            gone = [self._here.popleft() for _ in range(len(self._here) - self.run.cap)]
        for one in gone:
            shutil.rmtree(one)
        return unpacked

    def read(self, path: Path) -> tuple[str, bytes]:
        """One sample; FileNotFoundError when its shard went, which loses it."""
        return str(path.relative_to(self.home)), path.read_bytes()


class Merged(Aggregator):
    """Sample paths of `mix` shards, shuffled together."""

    def __init__(self, mix: int) -> None:
        self._mix, self._shards = mix, []

    def accumulate(self, item: Path) -> list[Path] | None:
        """The order, when there are enough shards."""
        self._shards.append(item)
        return self.flush() if len(self._shards) == self._mix else None

    def flush(self) -> list[Path] | None:
        """The order of what is there."""
        shards, self._shards = self._shards, []
        names = [path for shard in shards for path in sorted(shard.rglob("*.*"))]
        return stream(0, 0, "mix", "".join(map(str, shards))).shuffled(names) or None


def by_hand(run: Run) -> Epoch:
    """Single samples from stage to stage."""
    with folder("/tmp") as home:
        hand = ByHand(run, home)
        builder = PipelineBuilder().add_source(ShardSampler(run.keys, seed=0).remaining())
        builder.pipe(hand.download, concurrency=run.threads, output_order="input")
        builder.pipe(hand.unpack, output_order="input").aggregate(Merged(run.mix)).disaggregate()
        builder.pipe(hand.read, concurrency=run.threads, output_order="input").aggregate(BATCH).add_sink(4)
        pipeline = builder.build(num_threads=run.threads)
        with pipeline.auto_stop():
            epoch = counted(iter(pipeline))
        return epoch._replace(shards=hand.most)


def ceiling(run: Run) -> Epoch:
    """Whole shards, drained and forgotten."""
    began = time.perf_counter()
    with ThreadPoolExecutor(run.threads) as pool:
        for _ in pool.map(lambda key: len(run.body(key)), run.keys):
            pass
    return Epoch(run.samples, time.perf_counter() - began)


SIDES: dict[str, Callable[[Run], Epoch]] = {
    "origin's ceiling": ceiling,
    "by hand": by_hand,
    "cachedaemon, cold": cold,
    "cachedaemon, local": local,
}


def run() -> None:
    """All sides, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=60)
    options.add_argument("--members", type=int, default=100)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--cap", type=int, default=20)
    options.add_argument("--mix", type=int, default=4)
    options.add_argument("--threads", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    epochs: dict[str, list[Epoch]] = {name: [] for name in SIDES}
    with OriginProcess(objects=chosen.shards, members=chosen.members, size=chosen.size, latency=0.02) as origin:
        keys = [shard_name(number, "zip") for number in range(chosen.shards)]
        setup = Run(origin.port, origin.url, keys, chosen.members, chosen.cap, chosen.mix, chosen.threads)
        for _ in range(chosen.rounds):
            for name, side in SIDES.items():
                epochs[name].append(side(setup))
    report(epochs, setup)


def report(epochs: dict[str, list[Epoch]], setup: Run) -> None:
    """Print rates, what was lost, and the peak."""
    rates = {name: middle([epoch.rate for epoch in found]) for name, found in epochs.items()}
    rows = [
        [
            name,
            f"{rate:,.0f}",
            f"{rate / rates['by hand']:.2f}",
            f"{100 * (1 - middle([epoch.samples for epoch in epochs[name]]) / setup.samples):.1f}",
            str(max(epoch.shards for epoch in epochs[name]) or ""),
        ]
        for name, rate in rates.items()
    ]
    table(["", "samples/s", "x by hand", "% lost", "shards at most"], rows)
    for name in ("cachedaemon, cold", "cachedaemon, local"):
        if any(epoch.samples != setup.samples for epoch in epochs[name]):
            raise NotMeasured(f"{name}: samples were lost")


if __name__ == "__main__":
    main(run)
