"""What the page and `top` show of a node, by itself: true, and of bounded size whatever the cache holds."""

from __future__ import annotations

import json
from typing import Any

from cachedaemon.course import Course
from cachedaemon.errors import OriginUnavailable
from cachedaemon.ledger import Ledger
from cachedaemon.model import Need, Ref
from cachedaemon.plans import Plan, Plans
from cachedaemon.server import glance
from cachedaemon.server.history import KEPT, STEP, History, Totals
from tests.unit.test_ledger import caps, entry, filled


def planned(*keys: str, gap: float = 1.0) -> Plans:
    plans = Plans()
    plan = Plan("p", "s", Course(list(keys)), 1, 0.0)
    plan.clock = (0.0, 0, gap)
    plans.put(plan)
    return plans


def cells(ledger: Ledger, plans: Plans, leased: set[Ref], *, part: int = 7) -> dict[str, Any]:
    """The map, looked at a few shards at a time."""
    survey = glance.Survey(list(ledger.entries()), glance.soon(plans), {plan.tag for plan in plans})
    for start in range(0, len(survey.entries), part):
        survey.take(start, start + part, 0.0, set())
    looked = {one.ref for one in survey.to_look_at()}
    return survey.cells(leased & looked)


def test_every_state_on_the_map() -> None:
    ledger = filled(5, caps(9))
    entries = list(ledger.entries())
    entries[1].unread_of = "plan p"
    entries[2].suspect = True
    plans = planned("old1", "old3", "old4")
    said = cells(ledger, plans, {Ref("s", "old4"), Ref("s", "old2")})
    assert said["each"] == 1
    assert [row[:3] for row in said["shards"]] == [
        ["s", "old0", "r"],
        ["s", "old1", "u"],
        ["s", "old2", "x"],
        ["s", "old3", "s"],
        ["s", "old4", "l"],
    ]


def test_what_a_prefetch_job_brought_is_not_ahead_of_any_plan() -> None:
    ledger = filled(1, caps(9))
    next(ledger.entries()).unread_of = "job 1"
    assert cells(ledger, Plans(), set())["shards"][0][2] == "r"


def test_a_large_cache_is_groups_that_count_every_shard_once() -> None:
    ledger = filled(2000, caps(2000))
    entries = list(ledger.entries())
    for one in entries[:10]:
        one.unread_of = "plan p"
    said = cells(ledger, planned("old1999", "old1998"), {Ref("s", "old1997")}, part=300)
    groups = said["groups"]
    assert said["each"] == 5
    assert len(groups) == glance.GROUPS
    assert [sum(column) for column in zip(*groups, strict=True)] == [2000, 1, 10, 2, 0]
    assert groups[0] == [5, 0, 5, 0, 0]
    assert groups[-1] == [5, 1, 0, 2, 0]


def test_leases_are_looked_at_of_few_and_these_were_used_last() -> None:
    ledger = filled(5000, caps(5000))
    survey = glance.Survey(list(ledger.entries()), {}, set())
    held = {Ref("s", "old7")}
    survey.take(0, 5000, 1000.0, held)
    looked = [one.ref.key for one in survey.to_look_at()]
    assert len(looked) == glance.LOOKED_AT
    assert looked[0] == "old4999"
    few = glance.Survey(list(ledger.entries()), {}, set())
    few.take(0, 5000, 4990.0, held)
    assert {one.ref for one in few.to_look_at()} == held | {Ref("s", f"old{number}") for number in range(4990, 5000)}


def test_a_long_key_loses_its_middle() -> None:
    key = "a" * 3000 + "/end.zip"
    assert len(glance.short(key)) == glance.LONGEST
    assert glance.short(key).endswith("/end.zip")
    assert glance.short("b" * glance.LONGEST) == "b" * glance.LONGEST


def test_whatever_there_is_the_snapshot_is_small() -> None:
    """Longest keys, fifty plans, two thousand transfers."""
    ledger, plans = Ledger(caps(600)), Plans()
    for number in range(600):
        ledger.add(entry(f"{number}" + "é" * 2000, float(number)))
    for number in range(50):
        plans.put(Plan(f"p{number}", "s", Course([f"{n}" + "k" * 4000 for n in range(600, 700)]), 1, 0.0))
    for number in range(2000):
        ledger.join(Ref("s", f"new{number}" + "n" * 4000))
    parts = [
        cells(ledger, plans, set()),
        glance.transfers(ledger.flights),
        glance.courses(plans, ledger),
        glance.to_come(glance.soon(plans), ledger, 0.0),
    ]
    assert sum(len(json.dumps(part)) for part in parts) < 1_000_000
    assert [len(part) for part in parts[1:]] == [glance.LISTED] * 3


def test_transfers_say_who_waits_and_how_far_they_are() -> None:
    ledger = Ledger(caps(9))
    ahead, _ = ledger.join(Ref("s", "ahead"), job="plan p", ahead=True)
    ahead.size, ahead.arrived, ahead.slot = 100, 40, True
    wanted, _ = ledger.join(Ref("s", "wanted"), job="job 1")
    ledger.join(Ref("s", "wanted"))
    ledger.join(Ref("s", "wanted"))
    wanted.cause = OriginUnavailable("https://user:secret@host/x?sig=1 is down")
    ledger.join(Ref("s", "brought"), job="job 1")
    first, *others = glance.transfers(ledger.flights)
    assert first == {
        "source": "s",
        "key": "wanted",
        "bytes": 0,
        "size": None,
        "for": "reader",
        "waiters": 2,
        "room": False,
        "state": "failing: origin_unavailable",
    }
    assert [(one["key"], one["for"], one["bytes"], one["waiters"]) for one in others] == [
        ("ahead", "plan", 40, 0),
        ("brought", "prefetch", 0, 0),
    ]
    assert ahead.room == Need(0, 0)


def test_plans_say_how_many_of_their_next_uses_are_here() -> None:
    ledger = filled(3, caps(9))
    said = glance.courses(planned("old0", "old2", "gone", "old1"), ledger)
    assert (said[0]["ready"], said[0]["position"], said[0]["keys"]) == (2, 0, 4)


def test_what_is_wanted_next_and_not_here() -> None:
    ledger = filled(2, caps(9))
    ledger.join(Ref("s", "coming"))
    plans = planned("far", "old0", "coming", "near", gap=2.0)
    said = glance.to_come(glance.soon(plans), ledger, 3.0)
    assert [(one["key"], one["in"]) for one in said] == [("far", 0.0), ("near", 3.0)]


# ---- history


def moment(at: float, asked: float = 0, hits: float = 0, received: float = 0, failures: float = 0) -> Totals:
    return Totals(at, asked, hits, (asked - hits, asked - hits), {"s": received}, {"s": failures}, 3, None)


def test_a_point_is_the_difference_of_two_moments() -> None:
    history = History()
    history.add(moment(100.0, 10, 5, 1000))
    assert history.points() == []
    history.add(moment(102.0, 14, 8, 5000))
    assert history.points() == [
        {"at": 102.0, "seconds": 2.0, "asked": 4, "hits": 3, "bytes": 4000, "waiters": 3, "regret": None}
    ]
    assert history.points(since=102.0) == []


def test_history_is_short_and_begins_anew_when_the_clock_is_set_back() -> None:
    history = History()
    for number in range(1000):
        history.add(moment(number * STEP))
    assert len(history.points()) == KEPT
    history.add(moment(5.0))
    history.add(moment(7.0, 1))
    assert [point["at"] for point in history.points()] == [7.0]


def test_rates_and_failures_of_a_source_are_of_late() -> None:
    history = History()
    for number in range(100):
        history.add(
            moment(number * 2.0, received=number * 2000.0, failures=float(number < 90) * number + 89.0 * (number >= 90))
        )
    assert history.rate("s") == 1000.0
    assert history.rate("unknown") == 0.0
    assert history.failures("s") == 20
    assert history.mean_wait() is None
