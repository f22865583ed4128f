"""Training data from zip shards with a torch DataLoader.

    python examples/torch_dataloader.py imagenet images-0.zip images-1.zip ... [--style map] [--workers 4] [--mix 2]

Needs `torch` and `cachedaemon-client`. An epoch's order of shards and the order of samples within each shard are the same on
every machine, whatever the number of workers and whatever is in the cache. `docs/dataloader.md` says when to take which of
the two data sets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

try:
    import torch
    from torch.utils.data import DataLoader

    from cachedaemon_client import Shard, ShardCache, ShardSampler
    from cachedaemon_client.torch import MapDataset, ShardDataset, ShardOrder
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"torch_dataloader.py needs torch and cachedaemon-client: {cause}") from None

Sample = tuple[str, torch.Tensor]
"""Where it comes from (shard and member), and its bytes."""


def decode(shard: Shard, member: str) -> Sample:
    """One sample, made in the worker: here the bytes as they are, where a trainer would decode an image."""
    return f"{shard.key}/{member}", torch.frombuffer(bytearray(shard.read(member)), dtype=torch.uint8)


def collate(batch: list[Sample]) -> tuple[list[str], list[torch.Tensor]]:
    """A batch of images that are not decoded yet: they differ in length."""
    names, images = zip(*batch, strict=True)
    return list(names), list(images)


def epochs(  # noqa: PLR0913 - what a run is made of
    cache: ShardCache,
    keys: Sequence[str],
    *,
    style: str = "iterable",
    count: int = 2,
    seed: int = 0,
    mix: int = 1,
    **how: Any,
) -> Iterator[Iterator[tuple[list[str], list[torch.Tensor]]]]:
    """The batches of each epoch. `how` goes to the DataLoader: `num_workers`, `batch_size`, `multiprocessing_context`."""
    how = {"batch_size": 32, "collate_fn": collate, **how}
    sampler = ShardSampler(keys, seed=seed)
    if style == "iterable":
        ordered = data = ShardDataset(cache, sampler, decode, mix=mix, epochs=count)
        loader = DataLoader(data, **how)
    else:
        samples = MapDataset(cache, keys, decode)
        ordered = order = ShardOrder(samples, sampler, epochs=count)
        loader = DataLoader(samples, sampler=order, **how)
    for epoch in range(count):
        ordered.set_epoch(epoch)
        yield iter(loader)
    if style == "map":
        samples.close()


def main() -> None:
    """Read all epochs, and say of each how long it took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", help="name of the source in the daemon's configuration")
    options.add_argument("keys", nargs="+", help="the shards")
    options.add_argument("--style", choices=("iterable", "map"), default="iterable")
    options.add_argument("--mix", type=int, default=1, help="shards that each worker has open at once")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--start", choices=("fork", "spawn", "forkserver"), help="how workers are started")
    chosen = options.parse_args()
    how = {"num_workers": chosen.workers, "multiprocessing_context": chosen.start if chosen.workers else None}
    with ShardCache(chosen.source) as cache:
        order = {"style": chosen.style, "count": chosen.epochs, "seed": chosen.seed, "mix": chosen.mix}
        for number, batches in enumerate(epochs(cache, chosen.keys, **order, **how)):
            began, seen, size = time.perf_counter(), 0, 0
            for names, images in batches:
                seen, size = seen + len(names), size + sum(len(image) for image in images)
            took = time.perf_counter() - began
            print(f"epoch {number}: {seen} samples, {size} bytes, {seen / took:,.0f} samples/s")


if __name__ == "__main__":
    main()
