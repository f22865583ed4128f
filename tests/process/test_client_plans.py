"""Plans from the client: in force at once, told as they move, made again for another daemon, gone with their owner."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cachedaemon_client import PlanWarning, ShardCache, aio, errors
from tests.fakes import content, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SIZE = 3000
KEYS = [f"shard-{number}.bin" for number in range(8)]


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for key in KEYS:
            one.put(key, SIZE)
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=4) as one:
        yield one


@pytest.fixture
def cache(daemon: Daemon) -> Iterator[ShardCache]:
    with ShardCache("s", socket=daemon.socket, wait=40) as one:
        yield one
    until(lambda: not daemon.status()["plans"], 20, "the end of all plans")


def plans(daemon: Daemon) -> dict[str, Any]:
    return {plan["id"]: plan for plan in daemon.status()["plans"]}


def test_a_plan_is_in_force_until_its_block_ends(daemon: Daemon, cache: ShardCache) -> None:
    with cache.plan(iter(KEYS), holds=2) as plan:
        assert len(plan) == len(KEYS)
        assert plans(daemon)[plan.id]["keys"] == len(KEYS)
    until(lambda: not plans(daemon), 20)
    plan.close()


def test_iterating_yields_in_order_and_closes_behind(cache: ShardCache) -> None:
    """Three are open at once, never more."""
    with cache.plan(KEYS, holds=3) as plan:
        out = []
        for number, shard in enumerate(plan):
            out.append(shard)
            assert shard.key == KEYS[number]
            assert content.matches(shard.path, shard.key, SIZE)
            assert [one.closed for one in out] == [True] * (number - 2) + [False] * min(3, number + 1)
        assert len(out) == len(KEYS)
    assert all(shard.closed for shard in out)


def test_an_iteration_that_is_left_goes_on_at_its_place(cache: ShardCache) -> None:
    with cache.plan(KEYS) as plan:
        for shard in plan:
            if shard.key == KEYS[2]:
                break
        assert [shard.key for shard in plan] == KEYS[3:]
        assert list(plan) == []


def test_opening_the_next_key_moves_every_plan_s_place(daemon: Daemon, cache: ShardCache) -> None:
    """Of those that live; another key moves none. The daemon hears of it without a call of its own."""
    with cache.plan(KEYS[:3]) as one, cache.plan([KEYS[0], KEYS[2]]) as other:
        cache.open(KEYS[5]).close()
        assert (one.position, other.position) == (0, 0)
        cache.open(KEYS[0]).close()
        assert (one.position, other.position) == (1, 1)
        cache.open(KEYS[1]).close()
        assert (one.position, other.position) == (2, 1)

        def told() -> bool:
            cache.open(KEYS[1]).close()  # hits of a key that is not ahead
            known = plans(daemon)
            return (known[one.id]["position"], known[other.id]["position"]) == (2, 1)

        until(told, 20)


def test_a_plan_that_has_ended_still_iterates(cache: ShardCache) -> None:
    plan = cache.plan(KEYS[:3])
    plan.close()
    assert [shard.key for shard in plan] == KEYS[:3]


def test_what_cannot_be_a_plan(cache: ShardCache) -> None:
    with pytest.raises(errors.BadRequest, match="at least 1"):
        cache.plan(KEYS, holds=0)
    with pytest.raises(errors.BadRequest):
        cache.plan(["a", ""])
    with cache.plan([]) as plan:
        assert list(plan) == []


def test_consumers_that_hold_more_than_fits_are_warned(cache: ShardCache) -> None:
    """Four shards fit, and orders that differ hold different ones: it is in force all the same, and its consumer hears of it once."""
    with cache.plan(KEYS, holds=2) as fits:
        assert fits.warning is None
        with pytest.warns(PlanWarning, match="hold 5 shards at once and there is room for 4") as heard:
            plan = cache.plan(KEYS[::-1], holds=3)
        assert [one.filename for one in heard] == [__file__]
        assert plan.warning in str(heard[0].message)
        plan.renew()
    with plan:
        assert [shard.key for shard in plan] == KEYS[::-1]


async def _plan_for_asyncio(daemon: Daemon) -> None:
    async with aio.ShardCache("s", socket=daemon.socket) as cache:
        with pytest.warns(PlanWarning, match="hold 5 shards at once and there is room for 4"):
            plan = await cache.plan(KEYS, holds=5)
        await plan.close()


def test_a_consumer_on_asyncio_is_warned_too(daemon: Daemon, cache: ShardCache) -> None:
    with cache:
        asyncio.run(_plan_for_asyncio(daemon))


def test_a_shard_that_fails_leaves_the_place(cache: ShardCache) -> None:
    with cache.plan([KEYS[0], "none.bin", KEYS[1]]) as plan:
        seen = iter(plan)
        held = next(seen)
        with pytest.raises(errors.ShardMissing):
            next(seen)
        assert held.closed
        assert plan.position == 1


def test_a_killed_owner_s_plan_is_gone_in_time(daemon: Daemon, cache: ShardCache) -> None:
    snippet = "plan = ShardCache('s').plan(ARG); say(plan.id); hear()"
    with readers.Reader(daemon, snippet, KEYS) as reader, cache.plan(KEYS[:2]) as own:
        theirs = reader.line()
        assert set(plans(daemon)) == {own.id, theirs}
        time.sleep(3)  # the daemon looks once a second whether a plan is held; what it saw, nobody can ask
        reader.freeze()
        reader.kill9()
        until(lambda: set(plans(daemon)) == {own.id}, 20)


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
def test_plans_are_made_again_for_the_next_daemon(daemon: Daemon, cache: ShardCache, how: str) -> None:
    """By a trainer that only hits, too; and an iteration goes on meanwhile."""
    with cache.plan(KEYS[:3], holds=2) as plan, cache.plan(KEYS) as other:
        going_on = iter(plan)
        next(going_on)
        daemon.kill9() if how == "kill -9" else daemon.stop()
        starting = threading.Thread(target=daemon.start)
        starting.start()
        assert [shard.key for shard in going_on] == KEYS[1:3]
        starting.join()

        def made_again() -> bool:
            cache.open(KEYS[2]).close()
            known = plans(daemon)
            return (
                set(known) == {plan.id, other.id}
                and known[plan.id]["position"] == 3
                and known[other.id]["position"] == 3
            )

        until(made_again, 40)
        assert other.position == 3


def test_a_hit_under_a_plan_does_not_wait_for_a_daemon_that_is_stopped(daemon: Daemon, cache: ShardCache) -> None:
    daemon.path("s", KEYS[0])
    with cache.plan([KEYS[0]] * 500) as plan:
        cache.open(KEYS[0]).close()
        daemon.freeze()
        for _ in range(400):
            with cache.open(KEYS[0]) as shard:
                assert shard.hit
        assert plan.position == 401
        daemon.thaw()
