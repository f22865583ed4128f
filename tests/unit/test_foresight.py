"""What is kept and fetched ahead, by replay: how near it comes to the offline optimum, and that no trainer stands still."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon.course import Course
from cachedaemon.entries import Entry, Flight
from cachedaemon.foresight import Scene, choose
from cachedaemon.model import Ref
from cachedaemon.plans import DRIFT, IDLE_LEAST, Plan, Plans
from tests.unit.replay import Node, Trainer, fewest, shuffled

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
    """A transfer takes four uses: hardly more than the least after the first epoch, where LRU needs 1.5 times as many or more."""
    keys, cap = shuffled(N, 4), int(c * N)
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
    assert counts["auto"] - N <= 1.05 * (least - N)
    assert counts["lru"] - N > 1.5 * (least - N)


@pytest.mark.parametrize(("c", "lag"), [(0.2, 1), (0.5, 5)])
def test_ranks_that_follow_one_order(c: float, lag: int) -> None:
    """Eight of them, one so many uses behind the other: what one has fetched the others find, and the last loses nothing."""
    orders, cap = [shuffled(N, 3)] * 8, int(c * N)
    node = Node(cap, fetch=0.5)
    for number, keys in enumerate(orders):
        node.add(keys, step=0.25, lag=0.25 * number * lag)
    node.run()
    uses = sum(trainer.uses for trainer in node.trainers)
    optimum = uses - fewest(merged(orders, lag), cap)
    assert uses == 8 * 3 * N
    assert uses - node.fetched >= 0.95 * optimum
    assert max(trainer.stood for trainer in node.trainers) < 0.05 * node.now


@pytest.mark.parametrize(("c", "fetch"), [(0.05, 0.5), (0.1, 2.0), (0.2, 4.0)])
def test_one_node_of_eight(c: float, fetch: float) -> None:
    """Another eighth of the shards each epoch: what comes again comes late, and LRU has hardly any of it."""
    keys = [key for epoch in range(16) for key in random.Random(epoch).sample([str(n) for n in range(400)], 50)]
    cap = int(c * 400)
    node, other = Node(cap, fetch), Node(cap, fetch, policy="lru")
    trainer, _ = node.add(keys), other.add(keys)
    node.run()
    other.run()
    optimum = len(keys) - fewest(keys, cap)
    assert len(keys) - node.fetched >= 0.95 * optimum
    assert len(keys) - other.fetched < 0.8 * optimum
    assert trainer.stood < 0.02 * trainer.done_at


@pytest.mark.parametrize("cap", [20, 40, 100])
def test_one_job_alone_has_nearly_all_hits_there_can_be(cap: int) -> None:
    """Where few fit, too: places for what is under way are there while MIN needs them for nothing."""
    keys = shuffled(200, 3)
    node = Node(cap, fetch=4.0)
    trainer = node.add(keys)
    node.run()
    assert len(keys) - node.fetched >= 0.95 * (len(keys) - fewest(keys, cap))
    assert trainer.stood < 0.02 * trainer.done_at


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
    optimum = uses - fewest(merged(orders, 1 / 8), cap)
    assert uses - node.fetched >= 0.95 * optimum


def beside(stops: int) -> tuple[Node, Trainer]:
    """A node of 40 shards on which one trainer runs, and seven more that stop before so many uses."""
    node = Node(40, fetch=4.0)
    for number in range(7):
        node.add(shuffled(60, 8, 10 + number), stops=stops)
    return node, node.add(shuffled(60, 8))


@pytest.mark.parametrize("stops", [0, 3])
def test_paused_jobs_starve_nobody(stops: int) -> None:
    """One runs beside seven that never begin, or stop with a shard open: it has what it has alone with the rest of the cap."""
    alone = Node(40 - 7 * bool(stops), fetch=4.0)
    trainer = alone.add(shuffled(60, 8))
    alone.run()
    node, other = beside(stops)
    node.run(until=IDLE_LEAST + 3.0)
    first, stood, used = node.fetched, other.stood, other.uses
    node.run()
    assert other.uses == trainer.uses
    assert node.fetched - first <= 1.05 * alone.fetched * (1 - used / trainer.uses) + 5
    assert other.stood - stood <= trainer.stood + 0.05 * trainer.done_at


def test_a_killed_job_leaves_all_its_room() -> None:
    node, trainer = beside(3)
    node.run(until=10.0)
    for other in node.trainers[:7]:
        node.kill(other)
    first, stood, used = node.fetched, trainer.stood, trainer.uses
    keys = list(trainer.plan.course.keys[used:])
    node.run()
    assert node.fetched - first <= 1.05 * fewest(keys, 40) + 8
    assert trainer.stood - stood <= 0.05 * trainer.done_at


@pytest.mark.parametrize("later", [False, True])
def test_two_users_share_the_room(later: bool) -> None:  # noqa: FBT001 - a case
    """Neither has more unread shards protected than half of the cap, be it that one was alone before; both get on."""

    class Watched(Node):
        def _ahead(self) -> None:
            before = self.looked
            super()._ahead()
            if (
                self.looked > before
                and len({plan.user for plan in self.plans.running() if plan.position < plan.keys}) > 1
            ):
                assert max(self.unread(user) for user in (1, 2)) <= 10

    node = Watched(20, fetch=0.5)
    one = node.add([f"a{number}" for number in range(200)], step=20.0, user=1, stops=3)
    if later:
        node.run(until=10.0)
        assert node.unread(1) > 10
    other = node.add([f"b{number}" for number in range(200)], user=2)
    node.run()
    assert (one.uses, other.uses) == (3, 200)
    assert other.stood < 0.05 * 200


def test_a_quick_user_leaves_another_its_part_of_what_is_urgent() -> None:
    """One uses ten shards a second and one a single one, and a transfer takes four seconds: both are fetched for in time."""
    quick = Plan("quick", "s", Course([f"a{number}" for number in range(1000)], 100), 1, 0.0, user=1)
    slow = Plan("slow", "s", Course([f"b{number}" for number in range(1000)], 100), 1, 0.0, user=2)
    quick.clock, slow.clock = (0.0, 100, 0.1), (0.0, 100, 1.0)
    unread = {Ref("s", f"a{number}"): quick.tag for number in range(100, 105)}
    later = {Ref("s", f"b{number}") for number in range(500, 515)}
    chosen = choose([quick, slow], Scene({*unread, *later}, 20, 4.0, unread), 32)
    assert [one.ref.key for one in chosen if one.plan is slow][:5] == [f"b{number}" for number in range(100, 105)]
    alone = choose([quick], Scene({*unread, *later}, 20, 4.0, unread), 32)
    assert len(alone) >= 5, "what others leave is had"


def test_what_stops_has_nothing_fetched() -> None:
    node = Node(20, fetch=0.5)
    node.add(shuffled(60, 2), stops=10)
    node.run(until=11.0)
    fetched, before = node.fetched, node.here
    node.add(["0"], lag=600.0)
    node.run(until=500.0)
    assert (node.fetched, node.here) == (fetched, before)


def recorded(seed: int) -> list[tuple[str, str, str]]:
    """What a node decides when trainers come, stop and are killed."""
    chance = random.Random(seed)
    node = Node(12, fetch=chance.choice([0.5, 3.0]), width=4)
    for user in range(3):
        node.add(shuffled(30, 2, user), step=chance.choice([0.5, 1.0]), lag=chance.random(), user=user % 2)
    node.run(until=12.0)
    node.kill(node.trainers[1])
    node.add(shuffled(30, 1, 7), lag=0.5, stops=20)
    node.run()
    return node.decided


def test_the_same_events_give_the_same_choices() -> None:
    """In another process too, whose strings have other hashes: nothing goes by the order of a set."""
    program = "from tests.unit.test_foresight import recorded; import json; print(json.dumps(recorded(3)))"
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert [tuple(one) for one in json.loads(said[0])] == recorded(3)


def test_many_plans_and_keys_are_looked_at_in_few_steps() -> None:
    """1,000 plans of 100 keys each: what a choice walks through grows with what it chooses, and its limit holds."""
    plans = Plans()
    keys = [str(number) for number in range(20_000)]
    for number in range(1000):
        chance = random.Random(number)
        plans.put(Plan(str(number), "s", Course(chance.sample(keys, 100)), 1, 0.0))
    assert all(step is None for step in plans.index())
    asked: list[Ref] = []

    def wanting(ref: Ref) -> Sequence[Plan]:
        asked.append(ref)
        found = plans.wanting(ref)
        assert len(found) < 50, "those that may want it, and not all"
        return found

    here = {Ref("s", key) for key in keys[:500]}
    chosen = choose(plans.running(), Scene(here, 500, 1.0), 16, wanting)
    assert len(chosen) == 16
    assert len(asked) < 3 * (500 + 1000), "once for what is here, and for each step of the game"


ORDERS = st.lists(st.lists(st.integers(0, 14).map(str), min_size=1, max_size=40), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(ORDERS, st.integers(2, 12), st.integers(1, 6), st.randoms(use_true_random=False))
def test_ahead_nothing_goes_that_is_needed_sooner(
    orders: list[list[str]], cap: int, width: int, chance: random.Random
) -> None:
    """And the cap holds, every use is served, whatever the plans are."""

    class Watched(Node):
        def _evict(self, victim: Entry, flight: Flight) -> None:
            if not flight.demand:
                assert self.plans.next_use(victim.ref) > self.plans.next_use(flight.ref)
                assert victim.unread_of not in self.ledger.protected
            super()._evict(victim, flight)

    cap = max(cap, len(orders) + 1)
    node = Watched(cap, fetch=chance.choice([0.3, 2.0, 7.0]), width=width)
    for keys in orders:
        node.add(keys, step=chance.choice([0.5, 1.0, 3.0]), lag=chance.random())
    node.run()
    assert [trainer.uses for trainer in node.trainers] == [len(keys) for keys in orders]
    assert len(node.here) <= cap


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


def test_time_before_the_first_use_and_in_a_pause_is_no_gap() -> None:
    """A trainer that takes half a minute to begin, or stops for an hour, does not use its shards so slowly."""
    plans = Plans()
    plans.put(plan := Plan("a", "s", Course([str(n) for n in range(100)]), 1, 0.0))
    now = 25.0
    for step in range(1, 10):
        plans.move(plan, step, now)
        now += 1.0
    assert plan.gap == pytest.approx(1.0)
    assert plan.when(20) == pytest.approx(now + 10.0, abs=3.0)
    now += 3600.0
    assert plans.look(now) == [plan]
    plans.move(plan, 10, now)
    assert plans.look(now) == [plan]
    plans.move(plan, 11, now + 1.0)
    assert plan.gap == pytest.approx(1.0)
    assert plan.when(21) == pytest.approx(now + 11.0)


def test_uses_are_reckoned_anew_when_they_come_otherwise() -> None:
    plans = Plans()
    plans.put(plan := Plan("a", "s", Course([str(n) for n in range(100)]), 1, 0.0))
    plans.move(plan, 1, 1.0)
    plans.move(plan, 2, 2.0)
    reckoned, now = plans.reckoned, 2.0
    for step in range(3, 12):
        now += 1.0
        plans.move(plan, step, now)
    assert plans.reckoned == reckoned, "it keeps to its pace"
    for step in range(12, 12 + int(DRIFT) + 20):
        now += 3.0
        plans.move(plan, step, now)
    assert plans.reckoned > reckoned
    assert plan.when(plan.position + 10) == pytest.approx(now + 30.0, rel=0.3)
