"""The order of an epoch: the same on every machine, for every way to read and whatever is in a cache.

Each random stream is derived from (run seed, epoch, purpose, shard), so that the order of shards and that of the samples
within one are independent of each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def of_shards(keys: Iterable[str], seed: int, epoch: int) -> list[str]:
    """All shards, in the order of this epoch; the same for all ranks."""
    return _shuffled(sorted(keys), f"{seed}/{epoch}/shards")


def of_samples(key: str, count: int, seed: int, epoch: int, part: slice) -> list[int]:
    """Indices of one rank's samples in a shard, which `part` takes from the order: all ranks share each shard."""
    return _shuffled(range(count), f"{seed}/{epoch}/samples/{key}")[part]


def _shuffled(items: Iterable[T], stream: str) -> list[T]:
    found = list(items)
    random.Random(stream).shuffle(found)  # noqa: S311 - an order that can be repeated, no secret
    return found
