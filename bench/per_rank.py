"""One plan for each worker of a DataLoader, beside one for its whole rank: the same data, origin and seed.

    python bench/per_rank.py [--shards 60] [--members 50] [--size 20000] [--workers 8] [--epochs 4] [--rounds 3]

The workers of a rank read each shard together, each its portion of the samples. "A plan a worker" is what `ShardDataset` does;
for "a plan a rank" the first worker tells the only one, and the others' places count for nothing. Half of the shards fit, the
link gives 0.6 of what the trainer would consume, and the trainer works on each batch for a while. Standstill is the part of its
time in which it waits for a batch, after the first epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from side_by_side import ROOT, Daemon, NotMeasured, main, middle, table

from cachedaemon_client import ShardCache, ShardSampler
from cachedaemon_client.reading import Reading
from tests.fakes.origin import OriginProcess, shard_name

warnings.filterwarnings("ignore", "(Failed to initialize NumPy|This DataLoader will create)")
try:
    from torch.utils.data import DataLoader, get_worker_info

    from cachedaemon_client.torch import ShardDataset
except ImportError:
    print("could not measure: torch is not installed (make torch)", file=sys.stderr)
    sys.exit(1)
sys.path.insert(0, str(ROOT / "examples"))
from torch_dataloader import Sample, collate, decode  # noqa: E402 - needs torch and the path


class Unannounced(Reading[Sample]):
    """A reading without a plan."""

    def samples(self, cache: ShardCache) -> Iterator[Sample]:
        """As the client's, with nothing told ahead."""
        while self._given:
            yield from self._mixed(cache)


class PerRank(ShardDataset[Sample]):
    """Only the first worker tells a plan."""

    def _fresh(self, epoch: int) -> Reading[Sample]:
        reading, info = super()._fresh(epoch), get_worker_info()
        if info is None or info.id == 0:
            return reading
        return Unannounced(self.sampler, self.decode, self._reader(epoch))


class Ran(NamedTuple):
    """What came of all epochs but the first."""

    samples: int
    seconds: float
    waited: float
    sent: int
    """Bytes of the origin, in all epochs."""


class Work(NamedTuple):
    """What both sides do."""

    keys: list[str]
    members: int
    size: int
    workers: int
    epochs: int
    link: float

    @property
    def step(self) -> float:
        """Seconds that the trainer works on a batch of a shard's size."""
        return self.members * self.size * 0.6 / self.link


def read(work: Work, kind: type[ShardDataset[Sample]], origin: OriginProcess) -> Ran:
    """All epochs over a cold daemon."""
    before, samples, waited, began = origin.stats()["sent"], 0, 0.0, 0.0
    with Daemon({"s": origin.url}, max_shards=len(work.keys) // 2, scan="1h") as daemon:
        data = kind(ShardCache("s", socket=daemon.socket), ShardSampler(work.keys, seed=0), decode, epochs=work.epochs)
        loader = DataLoader(data, work.members, num_workers=work.workers, collate_fn=collate, persistent_workers=True)
        for epoch in range(work.epochs):
            if epoch == 1:
                samples, waited, began = 0, 0.0, time.monotonic()
            data.set_epoch(epoch)
            asked = time.monotonic()
            for names, _ in loader:
                waited += time.monotonic() - asked
                samples += len(names)
                time.sleep(work.step * len(names) / work.members)
                asked = time.monotonic()
        seconds = time.monotonic() - began
        del loader
    if samples != (work.epochs - 1) * len(work.keys) * work.members:
        raise NotMeasured(f"{samples} samples were read")
    return Ran(samples, seconds, waited, origin.stats()["sent"] - before)


def run() -> None:
    """Both sides, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=60)
    options.add_argument("--members", type=int, default=50)
    options.add_argument("--size", type=int, default=20_000)
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--link", type=float, default=8e6, help="bytes a second")
    chosen = options.parse_args()
    keys = [shard_name(number, "zip") for number in range(chosen.shards)]
    work = Work(keys, chosen.members, chosen.size, chosen.workers, chosen.epochs, chosen.link)
    kinds = {"a plan a worker": ShardDataset, "a plan a rank": PerRank}
    found: dict[str, list[Ran]] = {name: [] for name in kinds}
    limits = {"latency": 0.05, "link_bps": chosen.link}
    with OriginProcess(objects=len(keys), members=work.members, size=work.size, **limits) as origin:
        for _ in range(chosen.rounds):
            for name, kind in kinds.items():
                found[name].append(read(work, kind, origin))
    report(found)


def report(found: dict[str, list[Ran]]) -> None:
    """Print the middle of the rounds, and the load at the end."""
    rows = [
        [
            name,
            f"{middle([ran.sent for ran in rans]) / 1e6:.1f}",
            f"{middle([ran.samples / ran.seconds for ran in rans]):,.0f}",
            f"{middle([ran.waited / ran.seconds for ran in rans]):.3f}",
        ]
        for name, rans in found.items()
    ]
    table(["", "remote MB", "samples/s", "standstill"], rows)
    print(f"  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(run)
