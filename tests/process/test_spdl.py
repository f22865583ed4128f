"""The client's source and stage in real SPDL pipelines: order, exactly once, leases, states, and failures."""

from __future__ import annotations

import json
import logging
import threading
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pytest

from cachedaemon_client import CacheError, ShardCache, ShardSampler
from cachedaemon_client.reading import Reader, Reading, joined, resumed
from tests.fakes import disk, packing
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until
from tests.process.torch_shards import KEYS, MEMBERS, members, serving

pytest.importorskip("spdl.pipeline", reason="spdl-core is not installed")
from spdl.pipeline import PipelineBuilder, PipelineFailure

from cachedaemon_client.spdl import Batch, Batches, Part, ShardSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachedaemon_client import Shard

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


@pytest.fixture
def cache(daemon: Daemon) -> Iterator[ShardCache]:
    with ShardCache("s", socket=daemon.socket, wait=30) as one:
        yield one


def name(shard: Shard, member: str) -> str:
    """A sample that was really read."""
    assert shard.read(member) == members(KEYS.index(shard.key))[member]
    return f"{shard.key}/{member}"


def source(cache: ShardCache, keys: list[str] = KEYS, **how: Any) -> ShardSource[str]:
    how = {"batch_size": 5, "decode": name, **how}
    return ShardSource(cache, ShardSampler(keys, seed=3), how.pop("decode"), **how)


def batches(one: ShardSource[str], threads: int = 3, **how: Any) -> Iterator[Batch[str]]:
    """An epoch's batches; leaving the loop stops the pipeline."""
    builder = PipelineBuilder().add_source(one)
    builder.pipe(one.read, concurrency=threads, **{"output_order": "input", **how}).aggregate(Batches()).add_sink(2)
    pipeline = builder.build(num_threads=threads)
    with pipeline.auto_stop(timeout=30):
        yield from pipeline


def samples(found: Iterator[Batch[str]]) -> list[str]:
    return [sample for batch in found for sample in batch.samples]


def whole(keys: list[str] = KEYS) -> list[str]:
    return sorted(f"{key}/{one}" for key in keys for one in members(KEYS.index(key)))


@pytest.fixture(autouse=True)
def nothing_left(daemon: Daemon) -> Iterator[None]:
    """No lease and no plan outlives a pipeline."""
    yield
    if daemon.alive:
        until(lambda: not disk.leased(daemon.cache), 10, "the end of all leases")
        until(lambda: not daemon.status()["plans"], 10, "the end of all plans")


def test_each_sample_once_and_in_order(cache: ShardCache) -> None:
    """Whatever the number of threads, and whatever the size of a batch: smaller than a shard or larger."""
    for mix in (1, 3):
        first, second = (samples(batches(source(cache, mix=mix), threads)) for threads in (1, 8))
        large = list(batches(source(cache, mix=mix, batch_size=5 * MEMBERS)))
        assert sorted(first) == whole()
        assert first == second == samples(iter(large))
        assert [len(batch.samples) for batch in large] == [5 * MEMBERS, 4 * MEMBERS]


@pytest.mark.slow
def test_the_order_is_that_of_the_other_loaders(cache: ShardCache) -> None:
    for mix in (1, 2):
        there = list(Reading(ShardSampler(KEYS, seed=3), name, Reader(mix=mix)).samples(cache))
        assert samples(batches(source(cache, mix=mix))) == there


def test_epochs_follow_each_other(cache: ShardCache) -> None:
    """By themselves, in one pipeline that goes on and on too; or as they are told."""
    one, told = source(cache), source(cache)
    first, second = samples(batches(one)), samples(batches(one))
    assert first != second
    assert sorted(second) == whole()
    told.set_epoch(1)
    assert samples(batches(told)) == second
    again = source(cache)
    builder = PipelineBuilder().add_source(again, continuous=True).pipe(again.read, output_order="input")
    pipeline = builder.aggregate(Batches()).add_sink(2).build(num_threads=2)
    with pipeline.auto_stop(timeout=30):
        assert samples(iter(pipeline)) == first
        assert samples(iter(pipeline)) == second


@pytest.mark.parametrize("mix", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_state_goes_on_with_the_next_sample(cache: ShardCache, mix: int) -> None:
    """A batch's, wherever the source is by then; in the middle of shards, between them, and at the end of the epoch."""
    all_of_it = list(batches(source(cache, mix=mix)))
    then = samples(iter(all_of_it))
    for after in (1, 3, len(all_of_it) - 1, len(all_of_it)):
        loop = batches(source(cache, mix=mix))
        seen = list(islice(loop, after))
        loop.close()
        assert samples(iter(seen)) == then[: 5 * after]
        again = source(cache, mix=mix)
        again.load_state_dict(json.loads(json.dumps(seen[-1].state)))
        assert joined([again.state_dict()]) == seen[-1].state
        assert samples(batches(again)) == then[5 * after :]
        assert sorted(samples(batches(again))) == whole(), "the next epoch is whole"


def test_a_state_serves_another_mix_and_another_loader(cache: ShardCache) -> None:
    """The rest has each of its samples once."""
    seen = list(islice(batches(source(cache, mix=3)), 5))
    state = json.loads(json.dumps(seen[-1].state))
    other = source(cache, mix=2)
    other.load_state_dict(state)
    rest = samples(batches(other))
    assert sorted(samples(iter(seen)) + rest) == whole()
    readers = [Reader(number, 2) for number in range(2)]
    there = [resumed(state, ShardSampler(KEYS, seed=3), name, one).samples(cache) for one in readers]
    assert sorted(chain.from_iterable(there)) == sorted(rest)


@pytest.mark.slow
def test_a_cap_of_what_it_holds_is_enough() -> None:
    """Shards come, are read and make room, and none goes before its samples were read."""
    with Origin() as origin:
        for number, key in enumerate(KEYS):
            origin.put(key, data=packing.zip_bytes(members(number)))
        with Daemon({"s": origin.url}, max_shards=3) as daemon, ShardCache("s", socket=daemon.socket, wait=60) as cache:
            one = source(cache, mix=2, holds=3, batch_size=2 * MEMBERS)
            for _ in range(2):
                assert sorted(samples(batches(one))) == whole()


def test_a_state_that_does_not_fit_is_refused(cache: ShardCache) -> None:
    state = list(islice(batches(source(cache)), 2))[-1].state
    one = source(cache)
    one.set_epoch(3)
    late = one.state_dict()
    one.load_state_dict(late)
    with pytest.raises(ValueError, match="epoch 3, and set_epoch said 2: begin with 3"):
        one.set_epoch(2)
    other = source(cache, KEYS[:4])
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="9 keys"):
        other.state_dict()
    for how, words in (({"batch_size": 0}, "at least 1"), ({"mix": 3, "holds": 2}, "at least mix = 3")):
        with pytest.raises(ValueError, match=words):
            source(cache, **how)


def test_no_more_is_open_than_it_holds(daemon: Daemon, cache: ShardCache) -> None:
    """Parts wait in the pipeline with their shards leased, and the source waits for them, whatever the queues take."""
    most: list[int] = []
    one_looks = threading.Lock()  # a look holds each lock for a moment itself

    def slow(shard: Shard, member: str) -> str:
        with one_looks:
            most.append(len(disk.leased(daemon.cache)))
        return name(shard, member)

    found = samples(batches(source(cache, mix=2, holds=3, batch_size=30, decode=slow), 8))
    assert sorted(found) == whole()
    assert 2 <= max(most) <= 3


def test_one_plan_with_all_that_it_holds(cache: ShardCache) -> None:
    """In force while the epoch lasts, into the next one where there is one; gone when the loop breaks."""
    for epochs, length in ((1, len(KEYS)), (None, 2 * len(KEYS))):
        loop = batches(source(cache, mix=2, epochs=epochs))
        next(loop)
        (plan,) = cache.status()["plans"]
        assert plan["keys"] == length
        loop.close()
        until(lambda: not cache.status()["plans"], 5, "the plan's end")


def failing(shard: Shard, member: str) -> str:
    if shard.key == KEYS[4] and member == shard.members[7]:
        raise RuntimeError("no image at all")
    return name(shard, member)


def ends_with(found: Iterator[Batch[str]]) -> tuple[list[str], BaseException]:
    """What came before the pipeline failed, and the cause."""
    seen: list[str] = []
    with pytest.raises(PipelineFailure) as failure:
        seen.extend(sample for batch in found for sample in batch.samples)
    return seen, failure.value.exceptions[0]


def test_a_sample_that_cannot_be_made_ends_the_epoch(cache: ShardCache, caplog: pytest.LogCaptureFixture) -> None:
    """SPDL goes on without what failed, unless it is told otherwise: here nothing is lost in silence."""
    caplog.set_level(logging.CRITICAL)
    then = samples(batches(source(cache)))
    place = next(at for at, sample in enumerate(then) if sample == f"{KEYS[4]}/{list(members(4))[7]}")
    seen, cause = ends_with(batches(source(cache, decode=failing)))
    assert str(cause) == "no image at all"
    assert seen == then[: place // 5 * 5]


def test_parts_in_another_order_end_the_epoch(cache: ShardCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    one = source(cache, batch_size=MEMBERS)
    held: list[Any] = []

    async def swapped(part: Part[str]) -> Any:
        """The first two change places."""
        held.append(await one.read(part))
        return None if part.number == 0 else held.pop(-1)

    builder = PipelineBuilder().add_source(one).pipe(swapped, output_order="input")
    pipeline = builder.aggregate(Batches()).add_sink(2).build(num_threads=2)
    with pytest.raises(PipelineFailure) as failure, pipeline.auto_stop(timeout=30):
        assert list(pipeline) == []
    assert '`read` needs output_order="input"' in str(failure.value.exceptions[0])


def test_a_shard_that_is_missing_is_named(cache: ShardCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    _, cause = ends_with(batches(source(cache, ["no-such.zip"])))
    assert isinstance(cause, CacheError)
    assert "s/no-such.zip" in str(cause)


def test_a_break_ends_leases_of_parts_that_wait(daemon: Daemon, cache: ShardCache) -> None:
    """Those that no stage came to, too, and without a warning that a shard was never closed."""
    loop = batches(source(cache, mix=3, batch_size=2))
    next(loop)
    assert disk.leased(daemon.cache)
    loop.close()
    until(lambda: not disk.leased(daemon.cache), 10, "the end of all leases")


def test_a_daemon_that_is_away_is_said_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with ShardCache("s", socket="/nowhere/cachedaemon.sock", wait=0.5) as cache:
        _, cause = ends_with(batches(source(cache)))
    assert type(cause).__name__ == "DaemonUnavailable"
    assert "/nowhere/cachedaemon.sock" in str(cause)
