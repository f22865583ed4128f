"""How each rival reads an epoch: the same batches, workers, cap and kind of shuffling, as near as each comes to it.

Each function makes one rank's loader, under that rival's interpreter: called with an epoch's number, it gives batches of the
samples' numbers, whose bytes the workers have compared. Shards come in a new order each epoch and samples are shuffled
within about one shard, since that is what all four can do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rivals_data import Data

BATCH = 10
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "looks",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For those that read S3 only."""
Epochs = Callable[[int], Iterator[list[int]]]


@dataclass(frozen=True)
class Task:
    """What one job is to read, and where from."""

    rival: str
    url: str
    """Prefix of its shards at the origin."""
    local: str
    """The cache's folder; for cachedaemon the daemon's socket."""
    cap: int
    """Bytes."""
    ranks: int
    workers: int
    epochs: int
    seed: int
    shards: int
    members: int
    size: int

    @property
    def data(self) -> Data:
        """The samples."""
        return Data(self.shards, self.members, self.size)

    @property
    def endpoint(self) -> str:
        """The origin as an S3 server."""
        return self.url.rstrip("/").rpartition("/")[0]

    @property
    def bucket(self) -> str:
        """The origin's folder as a bucket of it."""
        return "s3://" + self.url.rstrip("/").rpartition("/")[2]


def loader_of(task: Task, rank: int) -> Epochs:
    """One rank's loader. The environment says RANK and the like, as torchrun does."""
    sides = {
        "cachedaemon": _cachedaemon,
        "mosaicml-streaming": _mosaicml_streaming,
        "litdata": _litdata,
        "webdataset": _webdataset,
    }
    return sides[task.rival](task, rank)


def _loader(samples: Any, task: Task, collate: Callable[[list[Any]], list[int]]) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(samples, BATCH, num_workers=task.workers, collate_fn=collate, persistent_workers=True)


def _cachedaemon(task: Task, rank: int) -> Epochs:
    from cachedaemon_client import ShardCache, ShardSampler
    from cachedaemon_client.torch import ShardDataset

    keys = [task.data.name(shard, "zip") for shard in range(task.shards)]
    sampler = ShardSampler(keys, seed=task.seed, rank=rank, world_size=task.ranks)
    cache = ShardCache("s", socket=task.local)
    samples = ShardDataset(cache, sampler, partial(_member, task.data), epochs=task.epochs)
    loader = _loader(samples, task, list)

    def epoch(number: int) -> Iterator[list[int]]:
        samples.set_epoch(number)
        return iter(loader)

    return epoch


def _member(data: Data, shard: Any, member: str) -> int:
    return data.checked(int(member.partition(".")[0]), shard.read(member))


def _records(data: Data, batch: list[dict[str, Any]]) -> list[int]:
    return [data.checked(sample["number"], sample["body"]) for sample in batch]


def _mosaicml_streaming(task: Task, _: int) -> Epochs:
    """Its default shuffling, over blocks of one shard: over the default of 262,144 samples every worker would want all shards at once."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = task.endpoint
    samples = StreamingDataset(
        remote=task.bucket,
        local=task.local,
        cache_limit=task.cap,
        shuffle=True,
        shuffle_seed=task.seed,
        shuffle_block_size=task.members,
        batch_size=BATCH,
    )
    loader = _loader(samples, task, partial(_records, task.data))
    return lambda _: iter(loader)


def _litdata(task: Task, _: int) -> Epochs:
    """Its object store's client refuses a server without TLS, and has no option for it."""
    from litdata import StreamingDataLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    collate = partial(_records, task.data)
    loader = StreamingDataLoader(
        _chunks(task), batch_size=BATCH, num_workers=task.workers, collate_fn=collate, persistent_workers=True
    )
    return lambda _: iter(loader)


def _chunks(task: Task, attempts: int = 30) -> Any:
    """Ranks that start together wait 1 s for the one that gets the index, then fail: here they try again."""
    from litdata import StreamingDataset

    try:
        return StreamingDataset(
            task.bucket,
            cache_dir=task.local,
            max_cache_size=task.cap,
            shuffle=True,
            seed=task.seed,
            drop_last=False,
            item_shuffle_window="full",
            storage_options={"endpoint_url": task.endpoint},
        )
    except ValueError:
        if not attempts:
            raise
        time.sleep(1)
        return _chunks(task, attempts - 1)


def _webdataset(task: Task, _: int) -> Epochs:
    """Its cache looks at its size every 30 s, longer than a run here takes: it is made to look before each download."""
    from webdataset import WebDataset, split_by_node
    from webdataset.cache import FileCache

    urls = [task.url + task.data.name(shard, "tar") for shard in range(task.shards)]
    samples = WebDataset(
        urls,
        nodesplitter=split_by_node,
        shardshuffle=task.shards,
        detshuffle=True,
        seed=task.seed,
        cache_dir=task.local,
        cache_size=task.cap,
        empty_check=False,
    )
    for stage in samples.pipeline:
        if isinstance(stage, FileCache):
            stage.cleaner.interval = 0
    loader = _loader(samples.shuffle(task.members), task, partial(_tar_members, task.data))
    return lambda _: iter(loader)


def _tar_members(data: Data, batch: list[dict[str, Any]]) -> list[int]:
    return [data.checked(int(sample["__key__"]), sample["bin"]) for sample in batch]
