"""Training data from tar shards with WebDataset.

    python examples/webdataset_loader.py imagenet train-0.tar train-1.tar ... [--workers 4]

Needs `webdataset`, `torch` and `cachedaemon-client`. Each sample comes once an epoch, with any number of workers, in an order
of shards that is the same on every machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

try:
    import torch
    import webdataset as wds

    from cachedaemon_client import ShardCache, ShardSampler
    from cachedaemon_client.webdataset import LocalShards
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"webdataset_loader.py needs webdataset, torch and cachedaemon-client: {cause}") from None

Sample = dict[str, Any]
"""What WebDataset makes of the files that share a name: `__key__`, and the bytes of each by its ending."""


def pipeline(shards: LocalShards) -> wds.DataPipeline:
    """Samples as WebDataset groups them. Here the bytes as they are, where a trainer would have `wds.decode("rgb")`."""
    return wds.DataPipeline(shards, wds.tarfile_to_samples())


def fluid(shards: LocalShards, keys: Sequence[str]) -> wds.WebDataset:
    """The same with WebDataset's own class, whose splitters give way to the sampler."""
    return wds.WebDataset(
        list(keys), nodesplitter=shards, workersplitter=None, shardshuffle=False, empty_check=False, seed=0
    )


def epochs(  # noqa: PLR0913 - what a run is made of
    cache: ShardCache,
    keys: Sequence[str],
    *,
    style: str = "pipeline",
    count: int = 2,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    **how: Any,
) -> Iterator[Iterator[list[Sample]]]:
    """The batches of each epoch. `how` goes to the DataLoader: `num_workers`, `batch_size`, `persistent_workers`."""
    shards = LocalShards(cache, ShardSampler(keys, seed=seed, rank=rank, world_size=world_size), epochs=count)
    data = pipeline(shards) if style == "pipeline" else fluid(shards, keys)
    loader = torch.utils.data.DataLoader(data, **{"batch_size": 32, "collate_fn": list, **how})
    for epoch in range(count):
        shards.set_epoch(epoch)
        yield iter(loader)


def main() -> None:
    """Read all epochs, and say of each how long it took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", help="name of the source in the daemon's configuration")
    options.add_argument("keys", nargs="+", help="the shards")
    options.add_argument("--style", choices=("pipeline", "fluid"), default="pipeline")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    with ShardCache(chosen.source) as cache:
        order = {"style": chosen.style, "count": chosen.epochs, "seed": chosen.seed}
        for number, batches in enumerate(epochs(cache, chosen.keys, **order, num_workers=chosen.workers)):
            began, seen = time.perf_counter(), 0
            for batch in batches:
                seen += len(batch)
            print(f"epoch {number}: {seen} samples, {seen / (time.perf_counter() - began):,.0f} samples/s")


if __name__ == "__main__":
    main()
