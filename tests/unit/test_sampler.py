"""A sampler deals out each epoch's shards: disjoint, complete, known ahead, by rank or by node."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachedaemon_client
from cachedaemon_client import ShardSampler, sample_order, worker_slice


def keys(count: int) -> list[str]:
    return [f"train/{number:04d}.tar" for number in range(count)]


def ranks(count: int, world_size: int, epoch: int = 0, **how: object) -> list[ShardSampler]:
    """The samplers of all ranks, at one epoch."""
    made = [
        ShardSampler(keys(count), rank=rank, world_size=world_size, **{"seed": 1, **how}) for rank in range(world_size)
    ]  # type: ignore[arg-type]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def read(samplers: list[ShardSampler]) -> list[list[str]]:
    """What each rank reads in the rest of its epoch; the samplers stay where they are."""
    return [sampler.remaining() for sampler in samplers]


COUNTS = st.integers(1, 60)
WORLDS = st.tuples(st.integers(1, 5), st.integers(1, 5))
"""Nodes, and ranks of each."""
EPOCHS = st.integers(0, 7)
HOW = st.fixed_dictionaries({"shuffle": st.booleans(), "locality": st.sampled_from([None, "node"])})
SHARING = st.fixed_dictionaries({"shared": st.booleans(), "locality": st.sampled_from([None, "node"])})


# ---- partitions


@given(COUNTS, WORLDS, EPOCHS, HOW)
def test_uneven_parts_are_disjoint_and_complete(
    count: int, world: tuple[int, int], epoch: int, how: dict[str, object]
) -> None:
    nodes, local = world
    parts = read(ranks(count, nodes * local, epoch, local_world_size=local, **how))
    assert sorted(chain(*parts)) == keys(count)
    sizes = [len(part) for part in parts]
    if how["locality"] is None:
        assert max(sizes) - min(sizes) <= 1


@given(COUNTS, WORLDS, EPOCHS, HOW)
def test_dropped_shards_are_few_and_reported(
    count: int, world: tuple[int, int], epoch: int, how: dict[str, object]
) -> None:
    nodes, local = world
    size = nodes * local
    if count < size:
        with pytest.raises(ValueError, match="would leave out all of them"):
            ranks(count, size, local_world_size=local, partition="drop")
        return
    all_ranks = ranks(count, size, epoch, local_world_size=local, partition="drop", **how)
    assert [len(part) for part in read(all_ranks)] == [count // size] * size
    assert len(all_ranks[0].dropped) == count % size
    assert sorted([*chain(*read(all_ranks)), *all_ranks[0].dropped]) == keys(count)
    assert {tuple(sampler.dropped) for sampler in all_ranks} == {tuple(all_ranks[0].dropped)}


@given(COUNTS, WORLDS, EPOCHS, HOW)
def test_repeated_shards_are_few_and_reported(
    count: int, world: tuple[int, int], epoch: int, how: dict[str, object]
) -> None:
    nodes, local = world
    size = nodes * local
    all_ranks = ranks(count, size, epoch, local_world_size=local, partition="pad", **how)
    assert [len(part) for part in read(all_ranks)] == [-(-count // size)] * size
    once_more = Counter(chain(*read(all_ranks))) - Counter(keys(count))
    assert once_more == Counter(all_ranks[size - 1].repeated)
    assert once_more.total() == -count % size
    if how["locality"] is None and count:
        assert max(once_more.values(), default=0) <= -(-size // count)


@pytest.mark.parametrize("partition", ["drop", "pad"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("locality", [None, "node"])
def test_each_is_dropped_or_repeated_in_turn(partition: str, *, shuffle: bool, locality: str | None) -> None:
    """After any number of epochs, every shard of a ring has been dropped, or repeated, as often as every other, give or take 1."""
    sampler = ShardSampler(
        keys(26), seed=3, world_size=4, local_world_size=2, partition=partition, shuffle=shuffle, locality=locality
    )
    times = Counter(dict.fromkeys(keys(26), 0))
    for epoch in range(30):
        sampler.set_epoch(epoch)
        times.update(sampler.dropped + sampler.repeated)
        assert max(times.values()) - min(times.values()) <= 1
    assert times.total() == 60


def test_shuffled_order_does_not_depend_on_the_order_of_listing() -> None:
    """Two machines that list a folder differently must not read one shard twice and another never."""
    listed = ShardSampler(keys(50), seed=1)
    assert listed.remaining() == ShardSampler(reversed(keys(50)), seed=1).remaining() != keys(50)


def test_an_order_as_given() -> None:
    backwards = list(reversed(keys(9)))
    assert ShardSampler(backwards, seed=1, shuffle=False).upcoming(12) == backwards + backwards[:3]
    assert ShardSampler(backwards, seed=1, shuffle=False, rank=1, world_size=2).remaining() == backwards[1::2]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(ranks(30, 1, epoch, seed=seed)[0].remaining()) for seed in range(-3, 4) for epoch in range(5)}
    assert len(orders) == 35


# ---- iteration


@given(COUNTS, st.integers(1, 4), st.sampled_from(["uneven", "pad"]), st.integers(0, 150), st.integers(0, 60))
def test_what_is_upcoming_is_what_comes(count: int, size: int, partition: str, ahead: int, start: int) -> None:
    sampler = ShardSampler(keys(max(count, size)), seed=1, world_size=size, partition=partition)
    endless = (key for _ in iter(int, 1) for key in sampler)
    for _ in range(start):
        next(endless)
    told = sampler.upcoming(ahead)
    assert told == [next(endless) for _ in range(ahead)]


def test_an_epoch_ends_and_the_next_begins() -> None:
    sampler = ShardSampler(keys(10), seed=1)
    first, second = list(sampler), list(sampler)
    assert sampler.epoch == 2
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_an_iteration_that_was_left_goes_on_at_its_place() -> None:
    sampler = ShardSampler(keys(10), seed=1)
    whole = sampler.remaining()
    assert next(iter(sampler)) == whole[0]
    sampler.set_epoch(0)
    assert list(sampler) == whole[1:]


def test_an_iteration_ends_where_another_epoch_is_begun() -> None:
    sampler = ShardSampler(keys(10), seed=1)
    order = iter(sampler)
    next(order)
    sampler.set_epoch(5)
    assert list(order) == []
    assert sampler.epoch == 5
    assert len(sampler.remaining()) == 10


@given(COUNTS, WORLDS, EPOCHS, st.sampled_from(["uneven", "pad"]), SHARING)
def test_the_length_is_what_comes(
    count: int, world: tuple[int, int], epoch: int, partition: str, sharing: dict[str, object]
) -> None:
    nodes, local = world
    for sampler in ranks(count, nodes * local, epoch, local_world_size=local, partition=partition, **sharing):
        assert len(sampler) == len(list(sampler))


def test_a_rank_without_shards_ends_at_once() -> None:
    """C-61: 3 shards for 8 ranks; the others read all of them."""
    idle = ranks(3, 8)[7]
    assert list(idle) == [] == idle.upcoming(10)
    assert len(idle) == 0
    assert sorted(chain(*read(ranks(3, 8)))) == keys(3)


def test_it_travels_with_its_place() -> None:
    sampler = ShardSampler(keys(10), seed=1)
    next(iter(sampler))
    assert pickle.loads(pickle.dumps(sampler)).remaining() == sampler.remaining()


# ---- nodes


@given(COUNTS, WORLDS, EPOCHS, st.sampled_from(["uneven", "drop", "pad"]))
def test_ranks_that_share_read_the_shards_of_their_node(
    count: int, world: tuple[int, int], epoch: int, partition: str
) -> None:
    nodes, local = world
    how = {"local_world_size": local, "shared": True, "partition": partition}
    parts = read(ranks(max(count, nodes), nodes * local, epoch, **how))
    alone = read(ranks(max(count, nodes), nodes, epoch, partition=partition))
    assert parts == [alone[rank // local] for rank in range(nodes * local)]


@given(st.integers(0, 40), st.integers(1, 6), EPOCHS, HOW)
def test_ranks_of_a_node_share_the_samples(count: int, local: int, epoch: int, how: dict[str, object]) -> None:
    """Disjoint, complete, each about as many."""
    node = ranks(4, 2 * local, epoch, local_world_size=local, shared=True, **how)[local:]
    shares = [sampler.samples("train/0001.tar", count) for sampler in node]
    assert sorted(chain(*shares)) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_who_has_a_sample_more_changes() -> None:
    node = ranks(64, 4, local_world_size=4, shared=True)
    totals = [sum(len(sampler.samples(key, 5)) for key in keys(64)) for sampler in node]
    assert max(totals) - min(totals) < 20


def test_without_sharing_a_rank_has_all_samples_of_its_shards() -> None:
    sampler = ranks(4, 4, 2, local_world_size=2)[1]
    assert sampler.samples("a", 9) == sample_order(1, 2, "a", 9)
    assert sampler.samples("a", 9, epoch=7) == sample_order(1, 7, "a", 9)
    assert ranks(4, 4, 2, shuffle=False)[1].samples("a", 9) == list(range(9))


@given(COUNTS, WORLDS, HOW, SHARING)
def test_a_node_keeps_its_shards(
    count: int, world: tuple[int, int], how: dict[str, object], sharing: dict[str, object]
) -> None:
    """Over epochs the same keys, in another order; nodes have as many each, give or take 1."""
    nodes, local = world
    how = {**sharing, **how, "local_world_size": local, "locality": "node"}
    homes = []
    for epoch in range(3):
        parts = read(ranks(count, nodes * local, epoch, **how))
        homes.append([{key for part in parts[n * local : (n + 1) * local] for key in part} for n in range(nodes)])
    assert homes[0] == homes[1] == homes[2]
    assert max(map(len, homes[0])) - min(map(len, homes[0])) <= 1
    assert not any(one & other for one, other in combinations(homes[0], 2))


def test_a_node_shuffles_what_it_keeps() -> None:
    first, second = (ranks(40, 2, epoch, locality="node")[0].remaining() for epoch in (0, 1))
    assert sorted(first) == sorted(second)
    assert first != second


# ---- workers


@pytest.mark.parametrize("workers", [0, 1, 4, 12])
@pytest.mark.parametrize("count", [1, 3, 30])
def test_workers_read_each_shard_once(count: int, workers: int) -> None:
    """C-61: fewer shards than workers, and none."""
    whole = ShardSampler(keys(count), seed=1).remaining()
    slices = [worker_slice(whole, worker, workers) for worker in range(max(workers, 1))]
    assert sorted(chain(*slices)) == sorted(whole)
    assert worker_slice([], 0, workers) == []


@pytest.mark.parametrize(("worker", "workers"), [(-1, 4), (4, 4), (1, 0), (1, 1)])
def test_a_worker_that_is_none(worker: int, workers: int) -> None:
    with pytest.raises(ValueError, match=r"worker = .*: allowed are 0 to"):
        worker_slice(keys(3), worker, workers)


# ---- refused


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"keys": []}, "keys are empty"),
        ({"keys": ["a", "b", "a", "a"]}, "'a' is there 3 times"),
        ({"keys": ["a", ""]}, "the empty key"),
        ({"rank": 4, "world_size": 4}, "rank = 4: allowed are 0 to 3, with world_size = 4"),
        ({"rank": -1}, "rank = -1: allowed are 0 to 0"),
        ({"world_size": 0}, "world_size = 0: at least 1"),
        ({"world_size": 6, "local_world_size": 4}, "local_world_size = 4: it has to divide world_size = 6"),
        ({"local_world_size": 0}, "local_world_size = 0"),
        ({"partition": "even"}, "partition = 'even': allowed are 'uneven', 'drop', 'pad'"),
        ({"locality": "rack"}, "locality = 'rack': allowed are None, 'node'"),
        ({"partition": "drop", "world_size": 4}, "partition = 'drop' with 2 shards for 4 readers"),
        ({"weights": {"a": 1.0}}, "weights: nothing for the key 'b'"),
        ({"strata": {"b": 1}}, "strata: nothing for the key 'a'"),
        ({"weights": {"a": 1.0, "b": -0.5}}, "weights: -0.5 for the key 'b'; allowed are 0 to 1000"),
        ({"weights": {"a": float("nan"), "b": 1}}, "weights: nan for the key 'a'"),
        ({"weights": {"a": 0.25, "b": 0.25}}, "weights: their sum is 0.5; an epoch needs at least 1"),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as refusal:
        ShardSampler(**{"keys": ["a", "b"], "seed": 0, **how})  # type: ignore[arg-type]
    assert said in str(refusal.value)


@pytest.mark.parametrize("wrong", ["images.zip", b"images.zip", [b"a"], ["a", None], 7])
def test_keys_that_are_no_list_of_texts(wrong: object) -> None:
    with pytest.raises(TypeError):
        ShardSampler(wrong, seed=0)  # type: ignore[arg-type]


def test_an_epoch_before_the_first_and_a_count_below_none() -> None:
    sampler = ShardSampler(keys(3), seed=0)
    with pytest.raises(ValueError, match="epoch = -1"):
        sampler.set_epoch(-1)
    with pytest.raises(ValueError, match="count = -1"):
        sampler.upcoming(-1)


def test_a_program_that_only_opens_shards_starts_without_samplers() -> None:
    ask = "import sys, cachedaemon_client as c; print('cachedaemon_client.sampler' in sys.modules, c.ShardSampler.__name__)"
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True, timeout=60).stdout
    assert told.split() == ["False", "ShardSampler"]
    with pytest.raises(AttributeError, match="no attribute 'Sampler'"):
        cachedaemon_client.Sampler  # noqa: B018
