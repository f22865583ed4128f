"""Training data from zip shards with a torch DataLoader: two data sets to copy from, and a program that runs them.

    python examples/torch_dataloader.py imagenet images-0.zip images-1.zip ... [--style map] [--workers 4]

Needs `torch` and `cachedaemon-client`. Every random stream is derived from (run seed, epoch, purpose, shard), so an
epoch's order of shards and the order of samples within each shard are the same on every machine, whatever the number of
workers and whatever is in the cache. `docs/dataloader.md` says when to take which of the two.
"""

from __future__ import annotations

import argparse
import random
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from multiprocessing.sharedctypes import RawValue
from typing import Any, TypeVar

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

    from cachedaemon_client import Shard, ShardCache
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"torch_dataloader.py needs torch and cachedaemon-client: {cause}") from None

T = TypeVar("T")
Sample = tuple[str, torch.Tensor]
"""Where it comes from (shard and member), and its bytes; decode them here, in the worker, where a trainer would."""


def stream(seed: int, epoch: int, purpose: str, shard: str = "") -> random.Random:
    """The random stream of one purpose. A string seeds `random.Random` by its digest: the same in every process."""
    return random.Random(f"{seed}/{epoch}/{purpose}/{shard}")


def shuffled(items: Sequence[T], order: random.Random) -> list[T]:
    """The items in the order that a stream gives."""
    return order.sample(items, len(items))


def sample(shard: Shard, index: int) -> Sample:
    """One member, as a data set gives it to the DataLoader."""
    name = f"{shard.key}/{shard.members[index]}"
    return name, torch.frombuffer(bytearray(shard.read(index)), dtype=torch.uint8)


class Epoch:
    """The number of the epoch, in memory that workers share: those that outlive an epoch see it too."""

    def __init__(self) -> None:
        self._number = RawValue("q", 0)

    def set(self, number: int) -> None:
        """Say it before the DataLoader is iterated."""
        self._number.value = number

    def __int__(self) -> int:
        """What it is now."""
        return self._number.value


class ShardStream(IterableDataset[Sample]):
    """Shard after shard: each worker of each rank takes its part of the epoch's shards and reads them whole.

    A worker without a shard ends at once. Cheap to pickle and to fork: it keeps settings, no open shard.
    """

    def __init__(self, cache: ShardCache, keys: Sequence[str], *, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.cache, self.keys = cache, sorted(keys)
        self.seed, self.rank, self.ranks = seed, rank, ranks
        self.epoch = Epoch()

    def mine(self) -> list[str]:
        """What this worker reads in this epoch, in order."""
        order = shuffled(self.keys, stream(self.seed, int(self.epoch), "shards"))
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        return order[self.rank :: self.ranks][number::workers]

    def __iter__(self) -> Iterator[Sample]:
        """The samples. The plan lets the daemon fetch ahead; its shards are closed as they are done with."""
        keys, epoch = self.mine(), int(self.epoch)
        if not keys:
            return
        with self.cache.plan(keys) as plan:
            for shard in plan:
                for index in shuffled(range(len(shard.members)), stream(self.seed, epoch, "samples", shard.key)):
                    yield sample(shard, index)


class ShardSamples(Dataset[Sample]):
    """Sample number i of all, at random: for code that wants `len` and an index. Use it with `ByShard`.

    Each worker keeps the last `holds` shards that it read open, so the cap must have room for workers x `holds`.
    """

    def __init__(self, cache: ShardCache, keys: Sequence[str], *, holds: int = 2) -> None:
        self.cache, self.keys, self.holds = cache, sorted(keys), holds
        self.ends = list(accumulate(self._count(key) for key in self.keys))
        self._open: OrderedDict[str, Shard] = OrderedDict()

    def _count(self, key: str) -> int:
        """Members of a shard. Asking for all fetches all: a real data set has the counts in a list of its own."""
        with self.cache.open(key) as shard:
            return len(shard.members)

    def __len__(self) -> int:
        """Samples of all shards."""
        return self.ends[-1] if self.ends else 0

    def span(self, number: int) -> range:
        """The indexes of the samples of shard `number`."""
        return range(self.ends[number - 1] if number else 0, self.ends[number])

    def __getitem__(self, index: int) -> Sample:
        """Sample `index`."""
        number = bisect_right(self.ends, index)
        return sample(self._shard(self.keys[number]), index - self.span(number).start)

    def _shard(self, key: str) -> Shard:
        """An open shard; a lease that a fork made the parent's is taken anew."""
        shard = self._open.pop(key, None)
        if shard is None or shard.closed:
            shard = self.cache.open(key)
        self._open[key] = shard
        while len(self._open) > self.holds:
            self._open.popitem(last=False)[1].close()
        return shard

    def close(self) -> None:
        """End the leases of this process."""
        while self._open:
            self._open.popitem()[1].close()

    def __getstate__(self) -> dict[str, object]:
        """For spawn and forkserver: leases stay with the process that took them."""
        return self.__dict__ | {"_open": OrderedDict()}


class ByShard(Sampler[int]):
    """All indexes of a rank's shards, shard by shard, both orders shuffled: random enough, and kind to the cache."""

    def __init__(self, samples: ShardSamples, *, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        self.samples, self.seed, self.rank, self.ranks = samples, seed, rank, ranks
        self.epoch = 0

    def mine(self) -> list[int]:
        """Numbers of this rank's shards, in the epoch's order."""
        keys = range(len(self.samples.keys))
        return shuffled(keys, stream(self.seed, self.epoch, "shards"))[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[int]:
        """The indexes, in the epoch's order."""
        for number in self.mine():
            order = stream(self.seed, self.epoch, "samples", self.samples.keys[number])
            yield from shuffled(self.samples.span(number), order)

    def __len__(self) -> int:
        """How many there are."""
        return sum(len(self.samples.span(number)) for number in self.mine())


def collate(batch: list[Sample]) -> tuple[list[str], list[torch.Tensor]]:
    """A batch of images that are not decoded yet: they differ in length."""
    names, images = zip(*batch, strict=True)
    return list(names), list(images)


def epochs(
    cache: ShardCache, keys: Sequence[str], *, style: str = "iterable", count: int = 2, seed: int = 0, **how: Any
) -> Iterator[Iterator[tuple[list[str], list[torch.Tensor]]]]:
    """The batches of each epoch. `how` goes to the DataLoader: `num_workers`, `batch_size`, `multiprocessing_context`."""
    how = {"batch_size": 32, "collate_fn": collate, **how}
    if style == "iterable":
        data = ShardStream(cache, keys, seed=seed)
        loader = DataLoader(data, **how)
    else:
        samples = ShardSamples(cache, keys)
        sampler = ByShard(samples, seed=seed)
        loader = DataLoader(samples, sampler=sampler, **how)
    for epoch in range(count):
        if style == "iterable":
            data.epoch.set(epoch)
        else:
            sampler.epoch = epoch
        yield iter(loader)
    if style != "iterable":
        samples.close()


def main() -> None:
    """Read all epochs, and say of each how long it took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", help="name of the source in the daemon's configuration")
    options.add_argument("keys", nargs="+", help="the shards")
    options.add_argument("--style", choices=("iterable", "map"), default="iterable")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--start", choices=("fork", "spawn", "forkserver"), help="how workers are started")
    chosen = options.parse_args()
    how = {"num_workers": chosen.workers, "multiprocessing_context": chosen.start if chosen.workers else None}
    with ShardCache(chosen.source) as cache:
        runs = epochs(cache, chosen.keys, style=chosen.style, count=chosen.epochs, seed=chosen.seed, **how)
        for number, batches in enumerate(runs):
            began, seen, size = time.perf_counter(), 0, 0
            for names, images in batches:
                seen, size = seen + len(names), size + sum(len(image) for image in images)
            took = time.perf_counter() - began
            print(f"epoch {number}: {seen} samples, {size} bytes, {seen / took:,.0f} samples/s")


if __name__ == "__main__":
    main()
