"""What is kept and fetched ahead, by replay: how near it comes to the offline optimum, and that no trainer stands still."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon.course import Course
from cachedaemon.foresight import Scene, choose
from cachedaemon.model import Ref
from cachedaemon.plans import DRIFT, IDLE_LEAST, Plan, Plans
from tests.unit.replay import Node, fewest, shuffled

N = 100


def merged(orders: list[list[str]], lag: float) -> list[str]:
    """All uses in the order of their time, where each consumer begins so much later than the one before."""
    uses = sorted(
        (number * lag + index, number, key) for number, one in enumerate(orders) for index, key in enumerate(one)
    )
    return [key for _, _, key in uses]


def test_the_fewest_transfers_are_known() -> None:
    """For a freshly shuffled epoch a part of the shards is kept: what the reference says is what arithmetic says."""
    for c in (0.5, 0.8, 0.9):
        assert fewest(shuffled(N, 8), int(c * N)) == pytest.approx(N + 7 * (1 - c) * N, abs=2)


@pytest.mark.parametrize("c", [0.5, 0.8, 0.9])
def test_one_job_alone(c: float) -> None:
    """A transfer takes four uses: hardly more than the least, where LRU needs 1.5 times as many or more."""
    keys, cap = shuffled(N, 8), int(c * N)
    least = fewest(keys, cap)
    counts = {}
    for policy in ("auto", "lru"):
        node = Node(cap, fetch=4.0, policy=policy)
        trainer = node.add(keys)
        node.run()
        counts[policy] = node.fetched
        assert trainer.uses == len(keys)
        if policy == "auto":
            assert trainer.stood / trainer.done_at < 0.05
    assert counts["auto"] - N <= 1.05 * (least - N) + 7, "a window of one shard costs one transfer an epoch"
    assert counts["lru"] > 1.5 * least


@pytest.mark.parametrize(("c", "lag"), [(0.2, 1), (0.5, 1), (0.5, 5)])
def test_ranks_that_follow_one_order(c: float, lag: int) -> None:
    """Eight of them, one behind the other: what one has fetched the others find."""
    orders, cap = [shuffled(N, 3)] * 8, int(c * N)
    node = Node(cap, fetch=2.0)
    for number, keys in enumerate(orders):
        node.add(keys, lag=number * lag)
    node.run()
    uses = sum(trainer.uses for trainer in node.trainers)
    optimum = uses - fewest(merged(orders, lag), cap)
    assert uses == 8 * 3 * N
    assert uses - node.fetched >= 0.95 * optimum


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.1, 0.2, 0.5])
def test_independent_jobs_share_a_cache(c: float) -> None:
    """Figure 4: eight jobs, each in an order of its own, over 1,000 shards; each has one shard open, which cannot go."""
    orders, cap = [shuffled(1000, 2, seed) for seed in range(8)], int(c * 1000)
    node = Node(cap, fetch=0.5, width=16, every=1.0)
    for number, keys in enumerate(orders):
        node.add(keys, lag=number / 8)
    node.run()
    uses = sum(trainer.uses for trainer in node.trainers)
    optimum = uses - fewest(merged(orders, 1 / 8), cap - len(orders))
    assert uses - node.fetched >= 0.95 * optimum


def test_paused_jobs_starve_nobody() -> None:
    """One runs beside seven that never move: once these are idle it has what it has alone."""
    keys, cap = shuffled(N, 6), N // 2
    alone = Node(cap, fetch=4.0)
    trainer = alone.add(keys)
    alone.run()
    node = Node(cap, fetch=4.0)
    for number in range(7):
        node.plans.put(Plan(f"paused{number}", "s", Course(shuffled(N, 6, 10 + number)), 1, -2 * IDLE_LEAST))
    node.plans.look(0.0)
    other = node.add(keys)
    node.run()
    assert node.fetched <= 1.05 * alone.fetched
    assert other.stood <= trainer.stood + 0.05 * trainer.done_at


ORDERS = st.lists(st.lists(st.integers(0, 14).map(str), min_size=1, max_size=40), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(ORDERS, st.integers(2, 12), st.integers(1, 6), st.randoms(use_true_random=False))
def test_ahead_nothing_goes_that_is_needed_sooner(
    orders: list[list[str]], cap: int, width: int, chance: random.Random
) -> None:
    """And the cap holds, every use is served, whatever the plans are."""

    class Watched(Node):
        def _make_room(self, ref: Ref, due: float | None) -> bool:
            before = dict(self.here)
            made = super()._make_room(ref, due)
            for gone in before.keys() - self.here.keys():
                assert not before[gone].leases
                if due is not None:
                    assert self.plans.next_use(gone) > due
                    assert before[gone].unread_of is None
            return made

    cap = max(cap, len(orders) + 1)
    node = Watched(cap, fetch=chance.choice([0.3, 2.0, 7.0]), width=width)
    for keys in orders:
        node.add(keys, step=chance.choice([0.5, 1.0, 3.0]), lag=chance.random())
    node.run()
    assert [trainer.uses for trainer in node.trainers] == [len(keys) for keys in orders]
    assert len(node.here) + len(node.flying) <= cap


@settings(max_examples=60, deadline=None)
@given(ORDERS, st.sets(st.integers(0, 14).map(str)), st.integers(1, 12))
def test_the_same_plans_and_shards_give_the_same_choice(orders: list[list[str]], here: set[str], cap: int) -> None:
    def chosen(shards: list[str]) -> list[tuple[Ref, float]]:
        plans = [Plan(str(number), "s", Course(keys), 1, 0.0) for number, keys in enumerate(orders)]
        scene = Scene({Ref("s", key) for key in shards}, cap, 2.0)
        return [(one.ref, one.due) for one in choose(plans, scene, 8)]

    first = chosen(sorted(here))
    assert first == chosen(sorted(here, reverse=True))
    assert all(ref.key not in here for ref, _ in first)
    assert len({ref for ref, _ in first}) == len(first) <= 8
    assert [due for _, due in first] == sorted(due for _, due in first)


def test_a_plan_that_stops_is_idle_and_moves_on() -> None:
    plans = Plans()
    plans.put(plan := Plan("a", "s", Course(list("abcdef")), 1, 0.0))
    for step in range(3):
        plans.move(plan, step + 1, 10.0 * (step + 1))
    assert plans.next_use(Ref("s", "e")) == pytest.approx(40.0)
    assert plans.look(30.0 + 10 * 10.0) == []
    assert plans.look(30.0 + 10 * 10.0 + 0.1) == [plan]
    assert plans.next_use(Ref("s", "e")) == math.inf
    plans.move(plan, 4, 200.0)
    assert plans.look(200.0) == [plan]
    assert not plan.idle


def test_uses_are_reckoned_anew_when_they_come_otherwise() -> None:
    plans = Plans()
    plans.put(plan := Plan("a", "s", Course([str(n) for n in range(100)]), 1, 0.0))
    plans.move(plan, 1, 1.0)
    reckoned, now = plans.reckoned, 1.0
    for step in range(2, 12):
        now += 1.0
        plans.move(plan, step, now)
    assert plans.reckoned == reckoned, "it keeps to its pace"
    for step in range(12, 12 + int(DRIFT) + 20):
        now += 3.0
        plans.move(plan, step, now)
    assert plans.reckoned > reckoned
    assert plan.when(plan.position + 10) == pytest.approx(now + 30.0, rel=0.3)
