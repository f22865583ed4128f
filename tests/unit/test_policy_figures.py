"""Why the policy is as it is: by replay, what the simpler ones cost that it was chosen over (docs/plans.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from cachedaemon import foresight
from cachedaemon.entries import Entry
from cachedaemon.foresight import Scene, Wanted
from cachedaemon.model import Ref
from cachedaemon.plans import Plan
from tests.unit import replay
from tests.unit.replay import Node, Trainer, fewest, shuffled

pytestmark = pytest.mark.slow
N = 100


def nearest_missing(plans: Sequence[Plan], scene: Scene, limit: int, _wanting: object = None) -> list[Wanted]:
    """Whatever is missing next, however much there is ahead already."""
    found: dict[Ref, Wanted] = {}
    for plan in plans:
        for index, key in plan.course.ahead():
            if len(found) >= limit:
                break
            if (ref := Ref(plan.source, key)) not in scene.here:
                found.setdefault(ref, Wanted(ref, plan.when(index), plan))
    return list(found.values())


def after_the_first_epoch(epochs: int, c: float, **how: object) -> tuple[float, float]:
    """Transfers over the least, and the part of its time that the trainer stood still; a transfer takes four uses."""

    class Watched(Node):
        first = (0.0, 0.0)

        def _use(self, trainer: Trainer, entry: Entry) -> None:
            super()._use(trainer, entry)
            if trainer.uses == N:
                self.first = (trainer.stood, self.now)

    keys, cap = shuffled(N, epochs), int(c * N)
    node = Watched(cap, **{"fetch": 4.0, **how})  # type: ignore[arg-type]
    trainer = node.add(keys)
    node.run()
    assert trainer.uses == len(keys)
    stood, took = trainer.stood - node.first[0], trainer.done_at - node.first[1]
    return (node.fetched - N) / (fewest(keys, cap) - N), stood / took


@pytest.mark.parametrize("c", [0.5, 0.8, 0.9])
def test_lru_hits_a_shuffled_epoch_as_arithmetic_says(c: float) -> None:
    """With room for a part c, c + (1-c) ln(1-c) of the uses: 1.7 times the least transfers where half fits, 3.3 where 0.9 does."""
    keys = shuffled(N, 12)
    node = Node(int(c * N), fetch=0.01, policy="lru")
    node.add(keys)
    node.run()
    misses = (node.fetched - N) / (11 * N)
    assert 1 - misses == pytest.approx(c + (1 - c) * math.log(1 - c), abs=0.03)
    assert misses / (1 - c) == pytest.approx(1 - math.log(1 - c), rel=0.1)


def test_what_min_drops_alone_lets_trainers_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towards the end of an epoch MIN has hardly a place to spare: what is needed at once is fetched all the same."""
    transfers, stood = after_the_first_epoch(8, 0.2)
    assert transfers <= 1.01
    assert stood < 0.02
    monkeypatch.setattr(foresight, "_urgent", lambda *_: [])
    transfers, stood = after_the_first_epoch(8, 0.2)
    assert transfers <= 1.01
    assert stood > 0.1


def test_what_is_urgent_alone_makes_little_of_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 7: a link of 0.6 of what is consumed, as two connections; the second half of an epoch wants more than that."""
    ahead = after_the_first_epoch(8, 0.5, fetch=2 / 0.6, width=2)
    monkeypatch.setattr(foresight, "_at_no_cost", lambda *_: [])
    urgent = after_the_first_epoch(8, 0.5, fetch=2 / 0.6, width=2)
    assert ahead[0] <= 1.01
    assert ahead[1] < 0.05
    assert urgent[1] > 0.1


@pytest.mark.parametrize("c", [0.5, 0.8, 0.9])
def test_what_is_missing_next_without_a_bound_costs_transfers(monkeypatch: pytest.MonkeyPatch, c: float) -> None:
    """Trainers are busy, and what is fetched too early has displaced what is used again: so the window is small."""
    monkeypatch.setattr(replay, "choose", nearest_missing)
    transfers, stood = after_the_first_epoch(8, c)
    assert transfers > 1.3
    assert stood < 0.05
