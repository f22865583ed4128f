"""Random streams that are the same on every machine and in every version of Python.

A stream's identity is (run seed, epoch, purpose, shard): no two purposes, shards or epochs share numbers. Its 64-bit
words are BLAKE2b (RFC 7693) over a counter (8 bytes, little-endian), keyed with the BLAKE2b digest (32 bytes) of that
identity; each digest of 64 bytes gives eight words, little-endian. Integers below a bound are drawn without bias
(Lemire, "Fast Random Integer Generation in an Interval", 2019) and permutations are Fisher and Yates's, from the last
place down. None of this ever changes: an order of today is the order of a run that is resumed next year.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count as counter
from operator import index
from struct import unpack
from typing import TypeVar

T = TypeVar("T")

_PERSON = b"cachedaemon/1"
_LOW = (1 << 64) - 1


class Stream:
    """Numbers of one identity, from its first on. Made by `stream`."""

    def __init__(self, key: bytes) -> None:
        self._words = _words(key)

    def word(self) -> int:
        """The next 64 bits: to seed another library's generator with, for one."""
        return next(self._words)

    def below(self, bound: int) -> int:
        """An integer from 0 to `bound` - 1, each as likely. `bound` is 1 to 2**64 - 1."""
        if not 0 < bound <= _LOW:
            raise ValueError(f"bound = {bound!r}: allowed are 1 to 2**64 - 1")
        product = next(self._words) * bound
        return (product if product & _LOW >= bound else self._fair(product, bound)) >> 64

    def _fair(self, product: int, bound: int) -> int:
        """Draw again while the draw is one of those that would make some integers likelier."""
        unfair = (1 << 64) % bound
        while product & _LOW < unfair:
            product = next(self._words) * bound
        return product

    def permutation(self, count: int) -> list[int]:
        """The integers from 0 to `count` - 1 in a random order. About 0.7 us each."""
        order = list(range(count))
        word = self._words.__next__
        for last in range(count - 1, 0, -1):
            product = word() * (last + 1)
            if product & _LOW <= last:
                product = self._fair(product, last + 1)
            place = product >> 64
            order[last], order[place] = order[place], order[last]
        return order

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a random order."""
        return [items[place] for place in self.permutation(len(items))]


def stream(seed: int, epoch: int, purpose: str, shard: str = "") -> Stream:
    """The stream of one purpose, and of one shard where it has to do with one. Any integer is a seed."""
    identity = f"{index(seed):x}\n{index(epoch):x}\n{len(purpose)}\n{purpose}{shard}"
    return Stream(blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=32, person=_PERSON).digest())


def sample_order(seed: int, epoch: int, shard: str, count: int) -> list[int]:
    """The order of a shard's `count` samples in this epoch. It has nothing to do with the order of the shards."""
    return stream(seed, epoch, "samples", shard).permutation(count)


def _words(key: bytes) -> Iterator[int]:
    for block in counter():
        yield from unpack("<8Q", blake2b(block.to_bytes(8, "little"), key=key).digest())
