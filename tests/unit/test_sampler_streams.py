"""Random streams: the same for ever and everywhere, without bias, and independent of each other."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachedaemon_client import sample_order, stream
from cachedaemon_client.sampler_streams import Stream
from tests.conftest import PROJECT
from tests.process.test_client_alone import PYTHONS

IDENTITIES = st.tuples(st.integers(), st.integers(0, 1 << 70), st.text(max_size=8), st.text(max_size=8))


def test_streams_never_change() -> None:
    """Golden values: a run that is resumed finds its order again."""
    words = stream(0, 0, "x")
    assert [words.word() for _ in range(3)] == [0x94F22176D4B168F4, 0x6522F03C2A7CCC74, 0x29BF48B98D7EE891]
    assert stream(7, 3, "samples", "é").below(10**6) == 626460
    assert stream(1, 2, "p").permutation(12) == [6, 10, 5, 7, 2, 4, 3, 11, 0, 8, 9, 1]
    assert sample_order(5, 1, "a.tar", 10) == [5, 7, 1, 9, 0, 6, 2, 3, 8, 4]


SAME = """
import sys
sys.path.insert(0, sys.argv[1])
from hashlib import sha256
from cachedaemon_client import ShardSampler, sample_order
keys = [f"s{number}" for number in range(97)]
orders = [sample_order(-3, 1 << 65, "ä\\ud800", 1000)]
for partition in "uneven", "drop", "pad":
    sampler = ShardSampler(set(keys), seed=5, rank=1, world_size=4, local_world_size=2, partition=partition, locality="node",
                           strata=lambda key: key[-1] == "1", weights=lambda key: 0.3 * int(key[1:]) / 7)
    orders += [sampler.upcoming(1000), sampler.state_dict()]
print(sha256(repr(orders).encode()).hexdigest())
"""


def test_every_python_has_the_same_orders() -> None:
    """Whatever the version, and the seed of its hashes; and they are those of the first release."""
    found = {}
    for version, python in PYTHONS.items():
        environ = {**os.environ, "PYTHONHASHSEED": str(len(version) + len(found))}
        command = [python, "-W", "error", "-c", SAME, str(PROJECT / "client")]
        found[version] = subprocess.run(
            command, env=environ, check=True, capture_output=True, text=True, timeout=60
        ).stdout
    assert set(found.values()) == {"5e426f7c957689b80a122d133a60154b01fa06c08f6f5f37888e6364cfc9f3d9\n"}, found


@given(IDENTITIES, IDENTITIES)
@example((1, 2, "a", "bc"), (1, 2, "ab", "c"))
@example((1, 2, "a\n", "b"), (1, 2, "a", "\nb"))
@example((1, 23, "a", ""), (12, 3, "a", ""))
@example((-1, 0, "", ""), (1, 0, "", ""))
def test_different_identities_have_different_streams(
    one: tuple[int, int, str, str], other: tuple[int, int, str, str]
) -> None:
    assert (stream(*one).word() == stream(*other).word()) == (one == other)


@given(st.integers(), st.integers(0, 300))
def test_a_permutation_has_everything_once(seed: int, count: int) -> None:
    assert sorted(stream(seed, 0, "p").permutation(count)) == list(range(count))


def test_permutations_are_equally_likely() -> None:
    """Chi-squared over the 24 orders of 4 things, 23 degrees of freedom: 49.7 is passed once in 1,000 seeds."""
    seen = Counter(tuple(sample_order(0, epoch, "s", 4)) for epoch in range(4800))
    assert len(seen) == 24
    assert sum((times - 200) ** 2 / 200 for times in seen.values()) < 49.7


@pytest.mark.parametrize("bound", [1, 3, 1 << 32, (1 << 63) + 1, (1 << 64) - 1])
def test_integers_below_a_bound(bound: int) -> None:
    draws = stream(1, 0, "below")
    drawn = [draws.below(bound) for _ in range(2000)]
    assert max(drawn) < bound
    assert min(drawn) >= 0
    assert abs(sum(drawn) / len(drawn) - (bound - 1) / 2) <= bound / 30


class Scripted(Stream):
    """A stream whose words are given."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(b"k")
        self._words = iter(words)


def test_a_draw_that_would_be_unfair_is_drawn_again() -> None:
    """Of 2**64 words, one must give no integer below 3, and it is the one whose product's lower half is 0."""
    assert Scripted([0, (1 << 64) - 1]).below(3) == 2
    assert Scripted([1, 1]).permutation(3) == [1, 2, 0]
    assert Scripted([1]).below(3) == 0


@pytest.mark.parametrize("bound", [0, -1, 1 << 64])
def test_a_bound_that_cannot_be(bound: int) -> None:
    with pytest.raises(ValueError, match=r"allowed are 1 to 2\*\*64 - 1"):
        stream(0, 0, "p").below(bound)


def met(window: int, order: str, *, epochs: int = 100) -> float:
    """The share of all pairs of samples of 64 shards of 64 that were in one batch, in some epoch.

    `window` shards are open at a time, and each batch has one sample of each. `order`: whose stream the samples have.
    """
    seen = [0] * 4096
    for epoch in range(epochs):
        shards = stream(0, epoch, "shards").permutation(64)
        for first in range(0, 64, window):
            opened = shards[first : first + window]
            orders = [[64 * one + i for i in sample_order(0, epoch, order.format(one), 64)] for one in opened]
            for batch in zip(*orders, strict=True):
                mask = sum(1 << sample for sample in batch)
                for sample in batch:
                    seen[sample] |= mask
    pairs = sum(mask.bit_count() - 1 for mask in seen if mask)
    return pairs / (4096 * 4032)


def test_samples_meet_as_often_as_chance_has_it() -> None:
    """1 - (1 - p / 64)**100 = 62.2 %, where p = 0.62 is the chance that two shards are open together.

    With one order for all shards of an epoch, samples of another index never meet: 1 in 64 pairs at the most.
    """
    assert met(48, "shard-{}") == pytest.approx(0.622, abs=0.005)
    assert met(48, "all", epochs=20) <= 1 / 64


def test_samples_do_not_follow_their_shard() -> None:
    """A shard's place in the epoch says nothing of the order of its samples."""
    pairs = Counter(
        (stream(0, epoch, "shards").permutation(8).index(shard), sample_order(0, epoch, str(shard), 8)[0])
        for epoch in range(400)
        for shard in range(8)
    )
    assert len(pairs) == 64
    assert sum((times - 50) ** 2 / 50 for times in pairs.values()) < 103.4  # 63 degrees of freedom, 1 in 1,000


def test_a_stream_seeds_other_generators() -> None:
    words = stream(3, 1, "crops", "a.tar")
    assert len(set(islice(iter(words.word, None), 100))) == 100


def test_numbers_that_are_no_integers_are_refused() -> None:
    with pytest.raises(TypeError):
        stream(0.5, 0, "p")  # type: ignore[arg-type]
