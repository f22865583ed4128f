"""The shards that a sampler deals out: their keys, classes and weights, and what of them is fixed for a whole run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TypeVar

from cachedaemon_client.sampler_streams import stream

V = TypeVar("V")
ByKey = Mapping[str, V] | Callable[[str], V]
"""Something for each key: a mapping, or a function of the key."""

HEAVIEST = 1000.0
"""The largest weight."""
_ONE = 1 << 32
"""A weight of 1; weights are kept in this many parts, so that all machines round alike."""


@dataclass(frozen=True)
class Homes:
    """The node that each key belongs to, and the key's place in the ring of that node's keys."""

    nodes: list[int]
    places: list[int]
    sizes: list[int]
    """Keys of each node."""


class Shards:
    """The keys by number, in sorted order where they are shuffled: then it does not matter in which they were listed."""

    def __init__(
        self,
        keys: Iterable[str],
        *,
        seed: int,
        shuffle: bool,
        strata: ByKey[Hashable] | None,
        weights: ByKey[float] | None,
    ) -> None:
        listed = _checked(keys)
        self.keys = sorted(listed) if shuffle else listed
        self.seed = seed
        self.shuffle = shuffle
        self.classes = None if strata is None else _numbered(_of_each("strata", strata, self.keys))
        self.weights = None if weights is None else _parts(self.keys, _of_each("weights", weights, self.keys))
        self._homes: Homes | None = None

    @property
    def least(self) -> int:
        """Items that every epoch has about, and never many less."""
        return len(self.keys) if self.weights is None else sum(self.weights) // _ONE

    def order(self, epoch: int) -> list[int]:
        """The epoch's items: numbers of keys, each as often as it comes, in the order of the epoch."""
        listed = list(range(len(self.keys)))
        if self.weights is not None:
            listed = [number for number, times in enumerate(self._times(epoch)) for _ in range(times)]
        return stream(self.seed, epoch, "shards").shuffled(listed) if self.shuffle else listed

    def _times(self, epoch: int) -> list[int]:
        """How often each key comes: the whole steps that its weight makes from `epoch` to the next, from a phase of its own."""
        assert self.weights is not None
        return [
            ((epoch + 1) * weight + phase) // _ONE - (epoch * weight + phase) // _ONE
            for weight, phase in zip(self.weights, self._phases, strict=True)
        ]

    @cached_property
    def _phases(self) -> list[int]:
        """Spread evenly, so that keys of one weight come as often all together in every epoch, give or take 1."""
        count = len(self.keys)
        return [place * _ONE // count for place in stream(self.seed, 0, "weights").permutation(count)]

    @cached_property
    def ring(self) -> list[int]:
        """All keys' numbers in an order that no epoch changes: whose turn it is to be left out, and where keys are at home."""
        count = len(self.keys)
        return stream(self.seed, 0, "ring").permutation(count) if self.shuffle else list(range(count))

    def homes(self, nodes: int) -> Homes:
        """Where keys are at home, with so many nodes: the same in all epochs, each class shared out evenly."""
        if self._homes is None or len(self._homes.sizes) != nodes:
            self._homes = _homes(self.by_class(self.ring), self.ring, nodes)
        return self._homes

    def by_class(self, numbers: list[int]) -> list[int]:
        """The keys' numbers class by class, within a class in the order that they have."""
        return numbers if self.classes is None else sorted(numbers, key=self.classes.__getitem__)

    @cached_property
    def described(self) -> dict[str, str | None]:
        """Keys, classes and weights in a line each, which differ when those do."""
        described: dict[str, str | None] = dict.fromkeys(("strata", "weights"))
        described["keys"] = f"{len(self.keys)} keys, digest {_digest(self.keys)}"
        if self.classes is not None:
            described["strata"] = f"{1 + max(self.classes)} classes, digest {_digest(map(str, self.classes))}"
        if self.weights is not None:
            described["weights"] = f"sum {sum(self.weights) / _ONE:g}, digest {_digest(map(str, self.weights))}"
        return described


def _homes(dealt: list[int], ring: list[int], count: int) -> Homes:
    homes = Homes([0] * len(ring), [0] * len(ring), [0] * count)
    for turn, key in enumerate(dealt):
        homes.nodes[key] = turn % count
    for key in ring:
        node = homes.nodes[key]
        homes.places[key] = homes.sizes[node]
        homes.sizes[node] += 1
    return homes


def _checked(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys = {keys!r}: allowed is a list of keys, not a single one")
    listed = list(keys)
    if not listed:
        raise ValueError("keys are empty: a sampler needs at least one shard")
    for key in listed:
        if not isinstance(key, str):
            raise TypeError(f"keys: {key!r} is no str")
        if not key:
            raise ValueError("keys: the empty key names no shard")
    if len(set(listed)) < len(listed):
        twice, times = Counter(listed).most_common(1)[0]
        raise ValueError(
            f"keys: {twice!r} is there {times} times; each shard is named once (weights= has one come more often)"
        )
    return listed


def _of_each(name: str, by_key: ByKey[V], keys: list[str]) -> list[V]:
    if not isinstance(by_key, Mapping):
        return [by_key(key) for key in keys]
    try:
        return [by_key[key] for key in keys]
    except KeyError as cause:
        raise ValueError(f"{name}: nothing for the key {cause}") from None


def _numbered(classes: list[Hashable]) -> list[int]:
    """Classes by number, in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in classes]


def _parts(keys: list[str], weights: list[float]) -> list[int]:
    for key, weight in zip(keys, weights, strict=True):
        if not (math.isfinite(weight) and 0 <= weight <= HEAVIEST):
            raise ValueError(f"weights: {weight!r} for the key {key!r}; allowed are 0 to {HEAVIEST:g}")
    parts = [round(weight * _ONE) for weight in weights]
    if sum(parts) < _ONE:
        raise ValueError(f"weights: their sum is {sum(parts) / _ONE:g}; an epoch needs at least 1")
    return parts


def _digest(texts: Iterable[str]) -> str:
    spelled = "".join(f"{len(text)}:{text}" for text in texts)
    return blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
