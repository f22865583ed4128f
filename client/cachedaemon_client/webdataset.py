"""Tar shards for WebDataset's pipelines. Needs webdataset; nothing else of the client does.

    shards = LocalShards("imagenet", ShardSampler(keys, seed=0, rank=rank, world_size=world_size), epochs=90)
    data = wds.DataPipeline(shards, wds.tarfile_to_samples(), wds.decode("rgb"), wds.to_tuple("jpg", "cls"))
    loader = wds.WebLoader(data, batch_size=256, num_workers=8, persistent_workers=True)
    for epoch in range(90):
        shards.set_epoch(epoch)
        for batch in loader:
            ...

`docs/webdataset.md` says what holds, and how to resume.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from webdataset.utils import pytorch_worker_info

from cachedaemon_client.cache import ShardCache
from cachedaemon_client.reading import announced
from cachedaemon_client.sampler import ShardSampler, worker_slice
from cachedaemon_client.shared import Shared

__all__ = ["LocalShards"]


class LocalShards:
    """The first stage of a pipeline: local paths of the shards that this worker reads in this epoch, in the sampler's order.

    Each is leased until the next stage asks for the next, which WebDataset's tar expansion does at the shard's end: no
    stage that runs ahead of it, such as a shuffle of shards, may stand in between. It takes a `wds.WebDataset`'s own split
    as well, as its `nodesplitter`. `epochs` is how many there will be: beyond the last nothing is fetched ahead. It
    pickles and forks as it is.
    """

    def __init__(self, cache: ShardCache | str, sampler: ShardSampler, *, epochs: int | None = None) -> None:
        self.cache = ShardCache(cache) if isinstance(cache, str) else cache
        self.sampler = copy.copy(sampler)
        self.epochs = epochs
        # Shared with workers: those that outlive an epoch hear of the next one too.
        self._told = Shared([sampler.epoch])

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, before the loader is iterated; without it, each iteration is the same epoch."""
        self.sampler.set_epoch(epoch)
        self._told[0] = epoch

    def __call__(self, urls: Iterable[object] = ()) -> Iterator[dict[str, str]]:  # noqa: ARG002 - the sampler has them
        """What WebDataset's openers take: `url` is the local path. A splitter is given `urls`; the sampler's keys count."""
        self.sampler.set_epoch(self._told[0])
        keys = self._mine(self.sampler)
        if keys:
            with announced(self.cache, keys + self._later(), 1):
                for key in keys:
                    with self.cache.open(key) as shard:
                        yield {"url": str(shard.path)}

    def _mine(self, sampler: ShardSampler) -> list[str]:
        """This worker's keys of what is left of an epoch; the sampler's node and rank are dealt already."""
        _, _, worker, workers = pytorch_worker_info()
        return worker_slice(sampler.remaining(), worker, workers)

    def _later(self) -> list[str]:
        """What this worker reads in the next epoch."""
        epoch = self.sampler.epoch + 1
        if self.epochs is not None and epoch >= self.epochs:
            return []
        later = copy.copy(self.sampler)
        later.set_epoch(epoch)
        return self._mine(later)
