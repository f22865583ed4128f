"""What one worker of a loader reads, with which plan, and how states of workers make one; no framework is involved."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from cachedaemon_client import ShardCache, ShardSampler
from cachedaemon_client.reading import Reader, Reading, joined, resumed
from tests.fakes.waiting import until
from tests.process.torch_shards import KEYS, MEMBERS, members, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachedaemon_client import Shard
    from tests.fakes.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


@pytest.fixture
def cache(daemon: Daemon) -> Iterator[ShardCache]:
    with ShardCache("s", socket=daemon.socket) as one:
        yield one


def name(shard: Shard, member: str) -> str:
    return f"{shard.key}/{member}"


def whole(times: dict[str, int]) -> Counter[str]:
    """How often each sample comes when its shard comes so often."""
    return Counter({f"{key}/{one}": count for key, count in times.items() for one in members(KEYS.index(key))})


def test_a_plan_goes_on_into_the_next_epoch(cache: ShardCache) -> None:
    """One is in force while a worker reads, with all that it holds at once; none after, or when the loop breaks."""
    sampler = ShardSampler(KEYS, seed=3)
    for further in (True, False):
        samples = Reading(sampler, name, Reader(1, 2, mix=2, further=further)).samples(cache)
        next(samples)
        (plan,) = cache.status()["plans"]
        assert plan["keys"] == (8 if further else 4)
        samples.close()
        until(lambda: not cache.status()["plans"], 5, "the plan's end")


def test_a_worker_without_shards_asks_for_nothing(cache: ShardCache) -> None:
    assert list(Reading(ShardSampler(KEYS[:1], seed=3), name, Reader(1, 2)).samples(cache)) == []


def test_samples_of_shards_that_are_open_together_mix(cache: ShardCache) -> None:
    """Each of them keeps its own order, and the order is the same again."""
    sampler = ShardSampler(KEYS, seed=3)
    mixed, again = (list(Reading(sampler, name, Reader(mix=3)).samples(cache)) for _ in range(2))
    apart = list(Reading(sampler, name, Reader()).samples(cache))
    assert mixed == again != apart
    assert len({one.partition("/")[0] for one in mixed[: 3 * MEMBERS]}) == 3
    assert [one for one in mixed if one.startswith(KEYS[4])] == [one for one in apart if one.startswith(KEYS[4])]


def test_workers_that_read_together_have_each_a_portion_of_each_shard(cache: ShardCache) -> None:
    """As equal as can be, all in the shards' order, and one plan's order for all."""
    sampler = ShardSampler(KEYS, seed=3)
    readings = [Reading(sampler, name, Reader(number, 4, together=True)) for number in range(4)]
    assert {tuple(reading.left) for reading in readings} == {tuple(sampler.remaining())}
    parts = [list(reading.samples(cache)) for reading in readings]
    assert Counter(one for part in parts for one in part) == whole(dict.fromkeys(KEYS, 1))
    for part in parts:
        order = [one.partition("/")[0] for one in part]
        assert list(dict.fromkeys(order)) == sampler.remaining()
        assert set(Counter(order).values()) <= {MEMBERS // 4, MEMBERS // 4 + 1}


def test_a_state_of_portions_tells_other_ranks_which_shards_are_done(cache: ShardCache) -> None:
    """Those of which no worker has anything left."""
    sampler = ShardSampler(KEYS, seed=3)
    readings = [Reading(sampler, name, Reader(number, 2, together=True)) for number in range(2)]
    for reading, counted in zip(readings, (2 * MEMBERS, MEMBERS), strict=True):
        samples = reading.samples(cache)
        list(islice(samples, counted))
        samples.close()
    state = joined([reading.state() for reading in readings])
    done = [readings[1].state()["done"], readings[0].state()["done"]]
    sampler.load_state_dict(state["sampler"])
    assert sampler.remaining() == ShardSampler(KEYS, seed=3).remaining()[min(done) :]


def interrupted(cache: ShardCache, sampler: ShardSampler, rng: random.Random) -> Counter[str]:
    """One epoch, gone on with time and again by other numbers of workers, each of which stops anywhere."""
    seen: Counter[str] = Counter()
    state: dict[str, Any] | None = None
    for patience in (8, 20, 15, 5, 30, 10**6):
        of, mix, together = rng.choice([1, 2, 3, 12]), rng.choice([1, 1, 2, 5]), rng.choice([True, False])
        readers = [Reader(number, of, mix, together=together) for number in range(of)]
        readings = [resumed(state, sampler, name, one) if state else Reading(sampler, name, one) for one in readers]
        for reading in readings:
            samples = reading.samples(cache)
            seen.update(islice(samples, rng.randrange(patience) if patience < 10**6 else None))
            samples.close()
        state = joined([reading.state() for reading in readings])
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_each_sample_comes_once_however_often_it_is_gone_on(cache: ShardCache, seed: int) -> None:
    """Whatever the numbers of workers and of shards that are open, whole or by portions; shards come more than once, too."""
    rng = random.Random(seed)
    keys = KEYS[: rng.choice([1, 2, 9])]
    weights = {key: 1.0 + number % 3 for number, key in enumerate(keys)} if seed % 2 else None
    sampler = ShardSampler(keys, seed=seed, weights=weights)
    assert interrupted(cache, sampler, rng) == whole(Counter(sampler.remaining()))


def test_states_that_are_not_of_one_moment_do_not_join(cache: ShardCache) -> None:
    """Of all workers, once each, from the same beginning."""
    sampler = ShardSampler(KEYS, seed=3)
    first, second = (Reading(sampler, name, Reader(number, 2)).state() for number in range(2))
    for states in ([], [first], [first, first], [first, second, joined([first, second])]):
        with pytest.raises(ValueError, match="one of each worker"):
            joined(states)
    with pytest.raises(ValueError, match="not of one moment"):
        joined([first, {**second, "begun": [[1, 4]]}])
    with pytest.raises(ValueError, match="version 2"):
        joined([first, {**second, "version": 1}])


def test_a_state_with_more_shards_open_than_may_be(cache: ShardCache) -> None:
    reading = Reading(ShardSampler(KEYS, seed=3), name, Reader(mix=3))
    list(islice(reading.samples(cache), 5))
    with pytest.raises(ValueError, match="3 shards are open"):
        resumed(reading.state(), ShardSampler(KEYS, seed=3), name, Reader(mix=2))


def test_what_is_local_is_read_without_a_daemon() -> None:
    """The plan is in force when there is one again."""
    with serving() as daemon, ShardCache("s", socket=daemon.socket, wait=1) as cache:
        sampler = ShardSampler(KEYS, seed=3)
        for key in KEYS:
            cache.open(key).close()
        daemon.stop()
        samples = Reading(sampler, name, Reader()).samples(cache)
        seen = [next(samples)]
        daemon.start()
        cache.acquire(KEYS[0]).close()
        assert [plan["keys"] for plan in cache.status()["plans"]] == [18]
        assert Counter([*seen, *samples]) == whole(dict.fromkeys(KEYS, 1))


@pytest.mark.slow
def test_ranks_of_a_node_that_share_cost_one_transfer_a_shard() -> None:
    """Eight in step, on a cold cache: each sample is one rank's, and three places are enough for nine shards."""
    step = threading.Barrier(8, timeout=60)

    def read(rank: int) -> list[str]:
        sampler = ShardSampler(KEYS, seed=3, rank=rank, world_size=8, local_world_size=8, shared=True)
        seen: list[str] = []
        with ShardCache("s", socket=running.socket, wait=60) as cache, cache.plan(sampler.remaining()) as plan:
            for shard in plan:
                seen += [name(shard, shard.members[one]) for one in sampler.samples(shard.key, len(shard.members))]
                step.wait()
        return seen

    with serving() as running, ThreadPoolExecutor(8) as ranks:
        running.tables["cache"]["max_shards"] = 3
        running.reload()
        until(lambda: running.status()["cache"]["max_shards"] == 3, 20)
        parts = list(ranks.map(read, range(8)))
        assert Counter(sample for part in parts for sample in part) == whole(dict.fromkeys(KEYS, 1))
        assert running.metric("fetch_seconds_count", source="s") == len(KEYS)
