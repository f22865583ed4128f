"""A run goes on where it was, with any number of workers, and of ranks where all their states are known."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon_client import ShardSampler, worker_slice
from cachedaemon_client.sampler import in_step, joined


def keys(count: int) -> list[str]:
    return [f"{'ab'[number % 3 == 0]}/{number:04d}.tar" for number in range(count)]


def ranks(count: int, world_size: int, state: dict[str, Any] | None = None, **how: object) -> list[ShardSampler]:
    """The samplers of all ranks, each having loaded the state as a checkpoint keeps it."""
    made = [
        ShardSampler(keys(count), rank=rank, world_size=world_size, **{"seed": 1, **how}) for rank in range(world_size)
    ]  # type: ignore[arg-type]
    for sampler in made:
        if state is not None:
            sampler.load_state_dict(json.loads(json.dumps(state)))
    return made


def take(sampler: ShardSampler, count: int) -> list[str]:
    return list(islice(sampler, count))


HOW = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "locality": st.sampled_from([None, "node"]),
        "strata": st.sampled_from([None, lambda key: key[0]]),
        "partition": st.sampled_from(["uneven", "drop", "pad"]),
    }
)
WORKERS = st.lists(st.sampled_from([0, 1, 4, 12]), min_size=1, max_size=4)
WORLDS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=4)


@given(st.integers(0, 40), st.integers(0, 3), HOW)
def test_a_resumed_epoch_goes_on_where_it_was(done: int, epoch: int, how: dict[str, object]) -> None:
    whole, begun = (ranks(40, 3, **how)[1] for _ in range(2))
    for sampler in (whole, begun):
        sampler.set_epoch(epoch)
    order = whole.upcoming(60)
    taken = len(take(begun, min(done, len(begun))))
    again = ranks(40, 3, **how)[1]
    again.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    again.set_epoch(again.epoch)
    assert again.upcoming(60 - taken) == order[taken:]
    assert again.state_dict() == begun.state_dict()
    assert list(again) == order[taken : len(whole)]


@given(st.integers(1, 40), WORKERS, st.integers())
def test_any_number_of_workers_goes_on(count: int, workers: list[int], seed: int) -> None:
    """Runs with 0, 1, 4 and 12 workers that come to different places, one after the other: each shard once."""
    chance = Random(seed)
    state, read = ShardSampler(keys(count), seed=1).state_dict(), []
    for number in workers:
        (sampler,) = ranks(count, 1, state)
        slices = [worker_slice(sampler.remaining(), worker, number) for worker in range(max(number, 1))]
        done = [chance.randint(0, len(one)) for one in slices]
        read += [key for one, end in zip(slices, done, strict=True) for key in one[:end]]
        state = sampler.state_of(done)
    (last,) = ranks(count, 1, state)
    assert sorted([*read, *last]) == sorted(keys(count))


@settings(max_examples=40)
@given(st.integers(9, 60), WORLDS, st.integers(), HOW)
def test_what_nobody_has_read_is_dealt_to_another_world(
    count: int, worlds: list[tuple[int, int]], seed: int, how: dict[str, object]
) -> None:
    """Worlds of several sizes, one after the other in one epoch, with ranks at different places: nothing is lost.

    And nothing comes twice, but where parts are made equal by repeating.
    """
    chance = Random(seed)
    state: dict[str, Any] | None = None
    read: list[str] = []
    for nodes, local in worlds:
        samplers = ranks(count, nodes * local, state, local_world_size=local, **how)
        read += chain(*(take(sampler, chance.randint(0, len(sampler) // 2)) for sampler in samplers))
        state = joined([sampler.state_dict() for sampler in samplers])
    (last,) = ranks(count, 1, state, **how)
    times = Counter([*read, *last])
    assert set(times) == set(keys(count))
    if how["partition"] != "pad":
        assert max(times.values()) == 1
    assert last.epoch == 1


@given(st.integers(4, 60), st.integers(1, 4), st.integers(0, 8), HOW)
def test_ranks_in_step_go_on_alike_in_a_world_of_the_same_size(
    count: int, world_size: int, done: int, how: dict[str, object]
) -> None:
    """One rank's state for all: without classes, which are dealt anew, each goes on just as it would have."""
    how = {**how, "strata": None}
    samplers = ranks(count, world_size, **how)
    taken = min(done, count // world_size)
    for sampler in samplers:
        take(sampler, taken)
    for before, after in zip(samplers, ranks(count, world_size, in_step(samplers[0].state_dict()), **how), strict=True):
        assert after.remaining() == before.remaining()
        assert after.upcoming(2 * count // world_size) == before.upcoming(2 * count // world_size)


def test_in_step_into_another_world() -> None:
    """Six ranks have done two shards each; four read the rest of the epoch, and begin the next as any four would."""
    six = ranks(30, 6)
    read = list(chain(*(take(sampler, 2) for sampler in six)))
    state = in_step(six[3].state_dict())
    four = ranks(30, 4, state)
    assert sorted([*read, *chain(*(sampler.remaining() for sampler in four))]) == sorted(keys(30))
    for sampler, fresh in zip(four, ranks(30, 4), strict=True):
        assert sum(1 for _ in sampler) in (4, 5)
        fresh.set_epoch(1)
        assert sampler.remaining() == fresh.remaining()
    assert in_step(state) == state


def test_a_joined_state_belongs_to_its_epoch() -> None:
    """Another epoch, and the same one begun anew, are whole."""
    (sampler,) = ranks(10, 1, joined([one.state_dict() for one in ranks(10, 1) if take(one, 3)]))
    assert len(sampler.remaining()) < 10
    sampler.set_epoch(4)
    assert len(sampler) == 10
    sampler.set_epoch(0)
    assert len(sampler) == 10


def test_the_beginning_of_an_epoch_is_that_of_every_rank_and_world() -> None:
    saved = ranks(10, 4)[2]
    saved.set_epoch(7)
    for sampler, fresh in zip(ranks(10, 3, saved.state_dict()), ranks(10, 3), strict=True):
        fresh.set_epoch(7)
        assert sampler.epoch == 7
        assert sampler.remaining() == fresh.remaining()


def test_the_last_shard_done_is_the_end_of_the_epoch() -> None:
    """Nothing of it comes again, and the next begins."""
    sampler = ShardSampler(keys(4), seed=1)
    (again,) = ranks(4, 1, sampler.state_of([4]))
    assert list(again) == []
    assert again.epoch == 1
    assert len(list(again)) == 4


def test_ranks_that_share_shards() -> None:
    """Nodes of other sizes go on where the ranks of each node have come equally far."""
    samplers = ranks(12, 4, local_world_size=2, shared=True)
    read = [next(iter(sampler)) for sampler in samplers]
    assert read[0] == read[1] != read[2] == read[3]
    after = ranks(12, 3, joined([one.state_dict() for one in samplers]), local_world_size=1, shared=True)
    assert sorted([*set(read), *chain(*(sampler.remaining() for sampler in after))]) == sorted(keys(12))
    next(iter(samplers[3]))
    with pytest.raises(ValueError, match=r"ranks 2 and 3 of a node share shards .* not come equally far"):
        joined([one.state_dict() for one in samplers])


# ---- refused

LOAD_OTHER: list[tuple[dict[str, Any], str]] = [
    ({"seed": 2}, r"seed \(1 in the state, 2 here\)"),
    ({"keys": keys(9)}, r"keys \('10 keys, digest \w+' in the state, '9 keys, digest \w+' here\)"),
    ({"keys": [*keys(9), "z"]}, r"keys \('10 keys, .*' in the state, '10 keys, .*' here\)"),
    ({"shuffle": False}, r"shuffle \(True in the state, False here\)"),
    ({"partition": "pad"}, r"partition \('uneven' in the state, 'pad' here\)"),
    ({"shared": True}, "shared"),
    ({"locality": "node"}, "locality"),
    ({"strata": lambda key: key[-5]}, r"strata \(None in the state, '10 classes, digest \w+' here\)"),
    ({"weights": lambda _: 2.0}, r"weights \(None in the state, 'sum 20, digest \w+' here\)"),
    ({"seed": 3, "partition": "drop"}, r"seed .*; partition "),
]


@pytest.mark.parametrize(("how", "said"), LOAD_OTHER)
def test_another_run_refuses_and_says_what_differs(how: dict[str, Any], said: str) -> None:
    state = ShardSampler(keys(10), seed=1).state_dict()
    with pytest.raises(ValueError, match=said):
        ShardSampler(**{"keys": keys(10), "seed": 1, **how}).load_state_dict(state)


def test_keys_in_another_order_are_others_where_that_is_the_order() -> None:
    backwards = list(reversed(keys(10)))
    state = ShardSampler(keys(10), seed=1).state_dict()
    ShardSampler(backwards, seed=1).load_state_dict(state)
    state = ShardSampler(keys(10), seed=1, shuffle=False).state_dict()
    with pytest.raises(ValueError, match="keys"):
        ShardSampler(backwards, seed=1, shuffle=False).load_state_dict(state)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"rank": 0, "world_size": 2}, "rank 1 in the state, 0 here: one rank's state"),
        ({"rank": 1, "world_size": 4}, "world_size 2 in the state, 4 here"),
        ({"rank": 1, "world_size": 2, "local_world_size": 2}, "local_world_size 1 in the state, 2 here"),
    ],
)
def test_one_ranks_state_is_not_enough_for_others(world: dict[str, int], said: str) -> None:
    saved = ranks(10, 2)[1]
    next(iter(saved))
    with pytest.raises(ValueError, match=said) as refusal:
        ShardSampler(keys(10), seed=1, **world).load_state_dict(saved.state_dict())
    assert "joined(states of all ranks)" in str(refusal.value)


def test_states_that_cannot_be_joined() -> None:
    one, other = (sampler.state_dict() for sampler in ranks(10, 2))
    for states, said in (
        ([], "no states to join"),
        ([one], "states of the ranks 0: joined are one of each rank from 0 to 1"),
        ([one, one], "states of the ranks 0, 0"),
        ([one, other, joined([one, other])], "states that differ in before"),
        ([one, {**other, "epoch": 1}], r"differ in epoch .* \(rank 0: 0, rank 1: 1\)"),
        ([one, ranks(10, 2, seed=5)[1].state_dict()], "differ in run"),
    ):
        with pytest.raises(ValueError, match=said):
            joined(states)


@pytest.mark.parametrize("state", [{}, {"version": 2}, {"version": 1, "epoch": 0}])
def test_what_is_no_state(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no sampler's state|a sampler's state without before, done"):
        ShardSampler(keys(10), seed=1).load_state_dict(state)


@pytest.mark.parametrize("done", [[11], [-1], [3, 6], [0] * 10 + [1]])
def test_workers_that_have_done_more_than_they_have(done: list[int]) -> None:
    with pytest.raises(ValueError, match=r"done: .* keys of worker .* of .*, which has"):
        ShardSampler(keys(10), seed=1).state_of(done)
