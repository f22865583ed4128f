"""Plans' lives by a clock that the test holds."""

from __future__ import annotations

import math

import pytest

from cachedaemon.course import Course
from cachedaemon.model import Ref
from cachedaemon.plans import AT_ONCE, FEW, SILENCE, Plan, Plans, is_plan_id


def plan(name: str, *, heard: float = 0.0, keys: int = 5, holds: int = 1, user: int = 0) -> Plan:
    return Plan(name, "s", Course([str(number) for number in range(keys)]), holds, heard, user)


def test_the_loss_of_a_lock_that_was_held_ends_a_plan() -> None:
    plans = Plans()
    plans.put(plan("a"))
    assert plans.ended({"a"}, 1.0) == []
    assert plans.ended(set(), 2.0) == ["a"]
    assert len(plans) == 1, "until its file has gone"


def test_never_locked_it_lives_ten_minutes_after_its_last_word() -> None:
    plans = Plans()
    plans.put(one := plan("a", heard=100.0))
    assert plans.ended(set(), 100.0 + SILENCE) == []
    assert plans.move(one, 3, 400.0) == [Ref("s", "0"), Ref("s", "1"), Ref("s", "2")]
    assert plans.ended(set(), 400.0 + SILENCE) == []
    assert plans.ended(set(), 400.0 + SILENCE + 0.001) == ["a"]
    assert SILENCE == 600.0


def test_a_held_plan_may_be_silent_for_ever() -> None:
    plans = Plans()
    plans.put(plan("a"))
    for now in (0.0, 1e6, 2e6):
        assert plans.ended({"a"}, now) == []


def test_the_same_id_replaces_the_keys_and_stays_held() -> None:
    plans = Plans()
    assert plans.put(plan("a")) is None
    plans.ended({"a"}, 1.0)
    assert plans.put(plan("a", keys=9, heard=2.0)) is not None
    assert len(plans) == 1
    found = plans.get("a")
    assert found is not None
    assert found.keys == 9
    assert plans.ended(set(), 3.0) == ["a"]


def test_a_place_stays_within_the_keys() -> None:
    plans = Plans()
    plans.put(one := plan("a", keys=5))
    for said, place in ((3, 3), (None, 3), (99, 5), (-1, 0)):
        plans.move(one, said, 1.0)
        assert one.position == place
    assert one.heard == 1.0


def test_deleted_once() -> None:
    plans = Plans()
    plans.put(plan("a"))
    assert plans.end("a")
    assert not plans.end("a")
    assert plans.ended({"a"}, 1.0) == []


def test_what_all_hold_at_once() -> None:
    plans = Plans()
    plans.put(plan("a", holds=2))
    plans.put(plan("b", holds=9, keys=3))
    assert plans.held_at_once() == 5
    assert [one.id for one in plans] == ["a", "b"]


def test_consumers_that_follow_the_same_order_hold_the_same_shards() -> None:
    """Workers of a rank walk together: they hold what two of them hold, not as many as there are workers."""
    plans = Plans()
    for number in range(12):
        plans.put(plan(str(number), holds=2))
    assert plans.held_at_once() == 4
    plans.put(plan("of another user", holds=2, user=7))
    plans.put(plan("in another order", holds=2, keys=4))
    assert plans.held_at_once() == 8


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "0" * 64])
def test_ids(name: str) -> None:
    assert is_plan_id(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a/b", "..", "a\n", "ä", "0" * 65])
def test_no_ids(name: str) -> None:
    assert not is_plan_id(name)


def test_the_index_of_many_plans_comes_up_to_date_in_small_steps() -> None:
    """What is not in it yet is asked for every shard, what has ended wants nothing; in the end it names who wants a shard."""
    plans = Plans()
    many = [plan(str(number), keys=AT_ONCE + 1) for number in range(FEW + 1)]
    for one in many:
        plans.put(one)
    ref, other = Ref("s", "0"), Ref("s", "none")
    assert set(plans.wanting(other)) == set(many)
    assert plans.end("3") is many[3]
    plans.put(again := plan("5", keys=3))
    steps = sum(1 for _ in plans.index())
    assert steps >= FEW, "a plan of more keys than that takes more than one"
    wanted = [one for one in many if one.id not in {"3", "5"}] + [again]
    assert sorted(plans.wanting(ref), key=id) == sorted(wanted, key=id)
    assert plans.wanting(other) == ()
    for one in wanted:
        plans.end(one.id)
    assert plans.next_use(ref) == math.inf
    assert all(step is None for step in plans.index())
    assert plans.wanting(ref) == ()
