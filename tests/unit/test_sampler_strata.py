"""Classes come in proportion, in every rank's order and every window of it; weights say how often keys come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachedaemon_client import ShardSampler
from cachedaemon_client.sampler_strata import interleaved

CLASSES = st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(any)
"""How many keys each class has."""


def keys(counts: Sequence[int]) -> list[str]:
    """Keys that begin with the letter of their class."""
    return [f"{'abcdef'[number]}/{one}.tar" for number, count in enumerate(counts) for one in range(count)]


def class_of(key: str) -> str:
    return key[0]


def ranks(listed: Sequence[str], world_size: int, epoch: int = 0, **how: object) -> list[ShardSampler]:
    made = [ShardSampler(listed, rank=rank, world_size=world_size, **{"seed": 1, **how}) for rank in range(world_size)]  # type: ignore[arg-type]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def furthest(order: Sequence[object]) -> float:
    """How far, at the most, any window of an order is from the proportions of the whole, in items of a class."""
    off = 0.0
    for one, count in Counter(order).items():
        share = count / len(order)
        ahead = list(accumulate(((each == one) - share for each in order), initial=0.0))
        off = max(off, max(ahead) - min(ahead))
    return off


@given(CLASSES)
@example([1, 1, 1, 1, 1, 1])
@example([97, 1, 1, 1])
@example([50, 50])
def test_no_class_is_an_item_ahead_or_behind(counts: list[int]) -> None:
    """Of every beginning of the sequence; hence no window is off by 2."""
    pattern = interleaved(counts)
    assert [pattern.count(number) for number in range(len(counts))] == counts
    for number, count in enumerate(counts):
        seen = accumulate(one == number for one in pattern)
        assert all(abs(have * len(pattern) - place * count) < len(pattern) for place, have in enumerate(seen, start=1))


@given(CLASSES, st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_every_window_of_every_rank_has_the_classes_in_proportion(
    counts: list[int],
    world_size: int,
    epoch: int,
    shuffle: bool,  # noqa: FBT001 - hypothesis fills it in by place
) -> None:
    """Each rank has its share of each class, rounded up or down; no window of its order is off by 2."""
    listed = keys(counts)
    parts = [sampler.remaining() for sampler in ranks(listed, world_size, epoch, strata=class_of, shuffle=shuffle)]
    assert sorted(chain(*parts)) == sorted(listed)
    for number, count in enumerate(counts):
        of_class = [sum(key[0] == "abcdef"[number] for key in part) for part in parts]
        assert set(of_class) <= {count // world_size, -(-count // world_size)}
    assert all(furthest([key[0] for key in part]) < 2 for part in parts if part)


@given(CLASSES, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["drop", "pad", "uneven"]), st.booleans())
def test_nodes_and_equal_parts_keep_the_proportions(
    counts: list[int],
    nodes: int,
    local: int,
    partition: str,
    shared: bool,  # noqa: FBT001 - hypothesis fills it in
) -> None:
    """What each node keeps, and what is dropped or repeated, changes a class by a shard or two, and never a window's bound."""
    size = nodes * local
    listed = keys([count + size for count in counts])
    how = {"strata": class_of, "partition": partition, "shared": shared, "locality": "node", "local_world_size": local}
    for sampler in ranks(listed, size, **how):
        assert furthest([key[0] for key in sampler.remaining()]) < 2


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(2, 8), st.integers(0, 5))
def test_ranks_in_step_see_the_classes_in_proportion_too(counts: list[int], world_size: int, epoch: int) -> None:
    """Where each rank has the same classes: each step of all ranks together is a window of one sequence, off by less than 2.

    If all ranks began it at one place, they would all see the same class at once.
    """
    parts = [
        sampler.remaining()
        for sampler in ranks(keys([n * world_size for n in counts]), world_size, epoch, strata=class_of)
    ]
    total = sum(counts)
    for step in zip(*parts, strict=True):
        seen = Counter(key[0] for key in step)
        assert all(abs(seen["abcdef"[n]] - world_size * count / total) < 2 for n, count in enumerate(counts))


def test_a_class_is_shuffled_within() -> None:
    orders = {
        tuple(key for key in ShardSampler(keys([8, 4]), seed=seed, strata=class_of).remaining() if key[0] == "a")
        for seed in range(10)
    }
    assert len(orders) == 10


def test_the_first_of_an_epoch_is_of_any_class() -> None:
    sampler = ShardSampler(keys([5, 5, 5]), seed=1, strata={key: key[0] for key in keys([5, 5, 5])})
    firsts = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        firsts.add(sampler.remaining()[0][0])
    assert firsts == {"a", "b", "c"}


# ---- weights

WEIGHTS = st.lists(st.one_of(st.floats(0, 3), st.sampled_from([0.5, 1.0, 1 / 3])), min_size=1, max_size=20)


@given(WEIGHTS.filter(lambda weights: sum(weights) > 1), st.integers(0, 6), st.integers(1, 12), st.integers(1, 3))
def test_a_key_comes_as_often_as_its_weight_says(
    weights: list[float], start: int, epochs: int, world_size: int
) -> None:
    """In any run of epochs, weight x epochs times, rounded up or down. All ranks together."""
    by_key = dict(zip(keys([len(weights)]), weights, strict=True))
    samplers = ranks(list(by_key), world_size, weights=by_key)
    times: Counter[str] = Counter()
    for epoch in range(start, start + epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
            times.update(sampler.remaining())
    for key, weight in by_key.items():
        assert abs(times[key] - weight * epochs) < 1 + 1e-6


@given(st.integers(1, 50), st.floats(0.1, 3), st.integers(0, 9))
def test_an_epoch_of_one_weight_has_one_length(count: int, weight: float, epoch: int) -> None:
    if weight * count < 1.01:
        return
    (sampler,) = ranks(keys([count]), 1, epoch, weights=lambda _: weight)
    assert abs(len(sampler) - weight * count) <= 1 + 1e-6


def test_a_weight_of_one_is_none() -> None:
    (plain,), (weighted,) = ranks(keys([9]), 1), ranks(keys([9]), 1, weights=lambda _: 1)
    assert weighted.remaining() == plain.remaining()


def test_weights_and_classes_together() -> None:
    (sampler,) = ranks(keys([10, 10]), 1, strata=class_of, weights=lambda key: 3 if key[0] == "a" else 1)
    seen = [key[0] for key in sampler]
    assert Counter(seen) == {"a": 30, "b": 10}
    assert furthest(seen) < 2


@pytest.mark.parametrize("partition", ["drop", "pad"])
def test_weights_with_equal_parts(partition: str) -> None:
    samplers = ranks(keys([10]), 4, 3, weights=lambda key: 0.7 + int(key[2]) / 10, partition=partition)
    assert len({len(sampler) for sampler in samplers}) == 1
    (whole,) = ranks(keys([10]), 1, 3, weights=lambda key: 0.7 + int(key[2]) / 10)
    extra = Counter(samplers[0].repeated) - Counter()
    given_out = Counter(chain(*(sampler.remaining() for sampler in samplers)))
    assert given_out + Counter(samplers[0].dropped) - extra == Counter(whole.remaining())
