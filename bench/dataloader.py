"""Figure 14: a cold epoch through a torch DataLoader, from an origin that is slow to answer and limited per connection.

    python bench/dataloader.py [--shards 480] [--members 100] [--size 20000] [--workers 12] [--cap 20] [--rounds 3]

The origin answers after 50 ms, gives a connection 4 MB/s and all together 40 MB/s. Its ceiling is what as many connections
as the daemon may open get when they do nothing but drain whole shards. Sides, each with the same DataLoader, seeds and
order: the client's `ShardDataset`, whose workers read each shard together, over a cold daemon; the same with whole shards of its
own for each worker; whole shards, fetched into memory by each worker as it needs them; and one Range request per sample at a known
offset, over connections that stay open (on a part of the shards: it takes long). That torch starts its processes, a second or so, is
part of every epoch: the shorter it is, the more that counts (`--shards 120`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache as once
from typing import NamedTuple

from side_by_side import ROOT, Daemon, NotMeasured, main, middle, table, verdict

from cachedaemon_client import ShardCache, ShardSampler, worker_slice
from tests.fakes import disk, packing
from tests.fakes.origin import OriginProcess, shard_name

warnings.filterwarnings("ignore", "(Failed to initialize NumPy|This DataLoader will create)")
try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from cachedaemon_client.torch import ShardDataset
except ImportError:
    print("could not measure: torch is not installed (make torch)", file=sys.stderr)
    sys.exit(1)
sys.path.insert(0, str(ROOT / "examples"))
from torch_dataloader import Sample, decode  # noqa: E402 - needs torch and the path

CONNECTIONS = 16
"""That the daemon may open, and that the ceiling is taken with."""


@dataclass(frozen=True)
class Data:
    """What the origin offers."""

    shards: int
    members: int
    size: int

    @property
    def keys(self) -> list[str]:
        """All shards."""
        return [shard_name(number, "zip") for number in range(self.shards)]

    def index(self, number: int) -> list[tuple[str, int, int]]:
        """Name, offset and length of each member of a shard, as a manifest would tell a rival."""
        with zipfile.ZipFile(io.BytesIO(packing.zip_bytes(self._images(number)))) as archive:
            heads = ((info, info.header_offset + 30 + len(info.filename)) for info in archive.infolist())
            return [(info.filename, start, info.file_size) for info, start in heads]

    def _images(self, number: int) -> dict[str, bytes]:
        return packing.image_like(self.members, number, self.size)


def dataset(cache: ShardCache, keys: list[str], split: str = "samples") -> ShardDataset[Sample]:
    """One epoch of the client's data set, in the order that all sides have."""
    return ShardDataset(cache, ShardSampler(keys, seed=0), decode, split=split, epochs=1)


class Remote(IterableDataset[Sample]):
    """The same order, read from the origin itself."""

    def __init__(self, port: int, index: dict[str, list[tuple[str, int, int]]]) -> None:
        super().__init__()
        self.port, self.index = port, index
        self.sampler = ShardSampler(index, seed=0)

    def __iter__(self) -> Iterator[Sample]:
        """Shard by shard, in the worker's own connection."""
        worker = get_worker_info()
        link = http.client.HTTPConnection("127.0.0.1", self.port)
        for key in worker_slice(self.sampler.remaining(), worker.id, worker.num_workers):
            index = self.index[key]
            order = [index[place] for place in self.sampler.samples(key, len(index))]
            for name, body in self.bodies(link, key, order):
                yield f"{key}/{name}", torch.frombuffer(body, dtype=torch.uint8)
        link.close()

    def bodies(
        self, link: http.client.HTTPConnection, key: str, order: list[tuple[str, int, int]]
    ) -> Iterator[tuple[str, bytearray]]:
        """Name and bytes of each sample of a shard."""
        raise NotImplementedError


class WholeShards(Remote):
    """One request a shard."""

    def bodies(
        self, link: http.client.HTTPConnection, key: str, order: list[tuple[str, int, int]]
    ) -> Iterator[tuple[str, bytearray]]:
        """The shard in memory, cut up."""
        link.request("GET", f"/{key}")
        whole = memoryview(link.getresponse().read())
        for name, start, length in order:
            yield name, bytearray(whole[start : start + length])


class RangeRequests(Remote):
    """One request a sample."""

    def bodies(
        self, link: http.client.HTTPConnection, key: str, order: list[tuple[str, int, int]]
    ) -> Iterator[tuple[str, bytearray]]:
        """Each sample by its range."""
        for name, start, length in order:
            link.request("GET", f"/{key}", headers={"Range": f"bytes={start}-{start + length - 1}"})
            yield name, bytearray(link.getresponse().read())


def collate(batch: list[Sample]) -> tuple[list[str], torch.Tensor]:
    """One tensor a batch: what crosses from a worker is then the same few descriptors for every side."""
    return [name for name, _ in batch], torch.cat([image for _, image in batch])


class Epoch(NamedTuple):
    """What one epoch gave."""

    samples: int
    bytes: int
    seconds: float
    shards: int = 0
    """The most that were in the cache at once."""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


def read(data: IterableDataset[Sample], workers: int) -> Epoch:
    """One epoch, its samples counted once each."""
    names: set[str] = set()
    size, began = 0, time.perf_counter()
    for some, images in DataLoader(data, 32, num_workers=workers, collate_fn=collate):
        names.update(some)
        size += len(images)
    return Epoch(len(names), size, time.perf_counter() - began)


def ours(origin: OriginProcess, data: Data, workers: int, cap: int, split: str) -> Epoch:
    """A cold daemon, and the client's data set."""
    source = {"url": origin.url, "concurrency": CONNECTIONS}
    with Daemon({"s": source}, max_shards=cap) as daemon:
        with disk.Sampler(daemon.cache) as sampler:
            epoch = read(dataset(ShardCache("s", socket=daemon.socket), data.keys, split), workers)
        return epoch._replace(shards=sampler.most.shards)


def ceiling(origin: OriginProcess, data: Data) -> Epoch:
    """Whole shards, drained and forgotten."""

    def drain(key: str) -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", origin.port)) as link:
            link.request("GET", f"/{key}")
            answer, size, buffer = link.getresponse(), 0, bytearray(1 << 16)
            while count := answer.readinto(buffer):
                size += count
            return size

    began = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        size = sum(pool.map(drain, data.keys))
    return Epoch(data.shards * data.members, size, time.perf_counter() - began)


def run() -> None:
    """All sides, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=480)
    options.add_argument("--members", type=int, default=100)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--workers", type=int, default=12)
    options.add_argument("--cap", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--part", type=int, default=24, help="shards of the side with a request per sample")
    chosen = options.parse_args()
    data = Data(chosen.shards, chosen.members, chosen.size)
    limits = {"latency": 0.05, "connection_bps": 4e6, "link_bps": 40e6}
    with OriginProcess(objects=data.shards, members=data.members, size=data.size, **limits) as origin:
        index = {key: data.index(number) for number, key in enumerate(data.keys)}
        part = {key: index[key] for key in data.keys[: chosen.part]}
        workers = chosen.workers
        sides: dict[str, Callable[[], Epoch]] = {
            "origin's ceiling": lambda: ceiling(origin, data),
            "cachedaemon": lambda: ours(origin, data, workers, chosen.cap, "samples"),
            "cachedaemon, split by shards": lambda: ours(origin, data, workers, chosen.cap, "shards"),
            "whole shards per worker": lambda: read(WholeShards(origin.port, index), workers),
            "a Range request per sample": once(lambda: read(RangeRequests(origin.port, part), workers)),
        }
        epochs: dict[str, list[Epoch]] = {name: [] for name in sides}
        for _ in range(chosen.rounds):
            for name, side in sides.items():
                epochs[name].append(side())
    report(epochs, data, chosen.cap)


def report(epochs: dict[str, list[Epoch]], data: Data, cap: int) -> None:
    """Print rates against the ceiling, what was lost, and the peak."""
    rates = {name: middle([epoch.rate for epoch in found]) for name, found in epochs.items()}
    top = rates["origin's ceiling"]
    rows = [
        [name, f"{rate / 1e6:.1f}", f"{rate / data.size:,.0f}", f"{rate / top:.2f}", f"{epochs[name][0].seconds:.1f}"]
        for name, rate in rates.items()
    ]
    table(["", "MB/s", "samples/s", "x ceiling", "s, first epoch"], rows)
    mine = epochs["cachedaemon"]
    lost = max(data.shards * data.members - epoch.samples for epoch in mine)
    if any(epoch.samples != data.shards * data.members for epoch in epochs["whole shards per worker"]):
        raise NotMeasured("the rival lost samples: it does something else")
    verdict(14, "part of the ceiling", rates["cachedaemon"] / top, at_least=0.85)
    verdict(14, "samples lost", lost, at_most=0)
    verdict(14, "peak shards / cap", max(epoch.shards for epoch in mine) / cap, at_most=1)


if __name__ == "__main__":
    main(run)
