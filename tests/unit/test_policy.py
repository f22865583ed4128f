"""The order of eviction against a sorted list."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.entries import Place
from cachedaemon.policy import PATIENCE, Order


@dataclass(eq=False)
class Thing:
    """A shard, as far as the order knows it."""

    number: int
    used: float
    place: Place | None = None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("discard"), st.integers(0, 50)),
        st.tuples(st.just("touch"), st.integers(0, 50), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 5)),
        st.tuples(st.just("look"), st.integers(0, 60)),
    ),
    max_size=80,
)


@given(STEPS)
def test_goes_by_last_use_then_by_arrival(steps: list[tuple[str, int, int]]) -> None:
    order: Order[Thing] = Order()
    here: list[Thing] = []
    for number, (kind, value, *more) in enumerate(steps):
        if kind == "add":
            here.append(Thing(number, value))
            order.add(here[-1])
        elif kind == "discard" and here:
            order.discard(here.pop(value % len(here)))
        elif kind == "touch" and here:
            one = here[value % len(here)]
            one.used = max(one.used, more[0])
        elif kind == "evict":
            for one, _ in zip(order.first_to_go(), range(value), strict=False):
                assert one is min(here, key=lambda t: (t.used, t.number))
                order.discard(one)
                here.remove(one)
        else:  # look at the first few and leave them
            expected = sorted(here, key=lambda t: (t.used, t.number))[:value]
            assert [one for one, _ in zip(order.first_to_go(), range(value), strict=False)] == expected
    assert list(order.first_to_go()) == sorted(here, key=lambda t: (t.used, t.number))


def test_a_look_leaves_the_order_as_it_was() -> None:
    order: Order[Thing] = Order()
    things = [Thing(n, float(n % 3)) for n in range(30)]
    for one in things:
        order.add(one)
    first = list(order.first_to_go())
    assert first == list(order.first_to_go()) == sorted(things, key=lambda t: (t.used, t.number))


def test_a_turn_that_comes_nearer_is_told() -> None:
    """By the farthest next use; then by last use, which need not be told."""
    due = {1: 10.0, 2: 20.0, 3: 30.0, 4: 30.0}
    order: Order[Thing] = Order(lambda one: due[one.number])
    things = [Thing(number, 0.0) for number in due]
    for one in things:
        order.add(one)
    assert [one.number for one in order.first_to_go()] == [3, 4, 2, 1]
    due[1] = 40.0
    order.moved(things[0])
    things[2].used = 5.0
    assert [one.number for one in order.first_to_go()] == [1, 4, 3, 2]
    due[1] = 1.0
    assert [one.number for one in order.first_to_go()] == [4, 3, 2, 1]


def test_a_victim_is_found_soon_though_all_places_are_out_of_date() -> None:
    """Plans that come and are reckoned anew move thousands at once; whoever needs room does not wait until all are put right."""
    looked = [0]

    def next_use(one: Thing) -> float:
        looked[0] += 1
        return 1.0 if len(things) > 4 * PATIENCE else math.inf

    things: list[Thing] = []
    order: Order[Thing] = Order(next_use)
    for number in range(4 * PATIENCE + 1):
        order.add(one := Thing(number, float(number)))
        things.append(one)
    looked[0] = 0
    assert next(order.first_to_go()).number == PATIENCE
    assert looked[0] <= PATIENCE
    assert {one.number for one in order.first_to_go()} == set(range(len(things)))


def test_each_is_met_once_though_turns_come_nearer_untold() -> None:
    """Whoever walks passes some over and goes on: one whose turn came nearer must not lead back to them."""
    due = dict.fromkeys(range(40), 10.0)
    order: Order[Thing] = Order(lambda one: due[one.number])
    for number in due:
        order.add(Thing(number, float(number)))
    due |= {number: 50.0 + number for number in due if number % 3 == 0}
    met = [one.number for one in order.first_to_go()]
    assert sorted(met) == sorted(due)


def test_what_has_left_does_not_gather() -> None:
    """Shards that come and go by name, never under pressure, leave no place behind."""
    order: Order[Thing] = Order()
    stays = Thing(-1, 0.0)
    order.add(stays)
    for number in range(10_000):
        one = Thing(number, float(number))
        order.add(one)
        order.discard(one)
    assert len(order._sorted) == 1
    assert list(order.first_to_go()) == [stays]


def test_comes_again_after_it_left() -> None:
    order: Order[Thing] = Order()
    one, other = Thing(1, 1.0), Thing(2, 2.0)
    order.add(one)
    order.add(other)
    order.discard(one)
    one.used = 3.0
    order.add(one)
    assert list(order.first_to_go()) == [other, one]
