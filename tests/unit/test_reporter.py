"""Uses are told in batches, all of them and each once, and telling never waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import reporter as module
from cachedaemon_client.reporter import BATCH, REPORT, Reporter
from tests.fakes.waiting import until
from tests.unit.scripted import Said, answer, scripted


class Hits:
    """What `open` does with a reporter, without a shard."""

    def __init__(self, folder: Path) -> None:
        self.reporter = Reporter("s", str(folder / "sock"))
        self.slowest = 0.0

    def hit(self, count: int, name: str = "k") -> None:
        for number in range(count):
            self.reporter.uses.append((f"{name}{number}", time.monotonic()))
            self.look()

    def look(self) -> None:
        now = time.monotonic()
        if now >= self.reporter.due[0] or len(self.reporter.uses) >= self.reporter.due[1]:
            self.reporter.flush()
            self.slowest = max(self.slowest, time.monotonic() - now)


@pytest.fixture
def hits(folder: Path) -> Iterator[Hits]:
    one = Hits(folder)
    yield one
    one.reporter._drop()


class Place:
    """What a reporter sees of a plan."""

    def __init__(self, name: str) -> None:
        self.id, self.position = name, 0


def names(count: int, name: str = "k") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def test_256_uses_are_told_at_once_and_fewer_wait(hits: Hits, folder: Path) -> None:
    with scripted(folder / "sock") as daemon:
        hits.hit(BATCH - 1)
        assert not daemon.heard
        hits.hit(1, "last")
        until(lambda: daemon.uses() == [*names(BATCH - 1), "last0"], 10)
        hits.hit(3, "rest")
        hits.reporter.close()
        assert daemon.uses()[BATCH:] == names(3, "rest")
        assert daemon.links == 1


def test_fewer_are_told_when_their_time_has_come(hits: Hits, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.2)
    hits.reporter._begin()
    with scripted(folder / "sock") as daemon:
        hits.hit(1)
        until(lambda: hits.look() or daemon.uses() == ["k0"], 10)
        assert daemon.heard[0].body["used"][0][1] == pytest.approx(0.2, abs=0.15), "the age, in seconds"


def test_all_are_told_however_many_come_at_once(hits: Hits, folder: Path) -> None:
    """More than a socket's buffer takes: the rest of a report goes out later, and nothing is told twice."""
    with scripted(folder / "sock") as daemon:
        for key in names(4 * REPORT + 7, "a key of some length " * 5):
            hits.reporter.uses.append((key, time.monotonic()))
        hits.reporter.close()
        assert daemon.uses() == names(4 * REPORT + 7, "a key of some length " * 5)
        assert max(len(said.body["used"]) for said in daemon.heard) == REPORT


def test_hits_from_many_threads_are_all_told(hits: Hits, folder: Path) -> None:
    with scripted(folder / "sock") as daemon:
        threads = [threading.Thread(target=hits.hit, args=(3000, f"{number}.")) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hits.reporter.close()
        assert all(age >= 0 for said in daemon.heard for _, age in said.body["used"])
        assert sorted(daemon.uses()) == sorted(key for number in range(4) for key in names(3000, f"{number}."))


def test_a_silent_daemon_waits_for_nobody_and_hears_the_last_256(
    hits: Hits, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears the report that it had when it fell silent, and the last 256 uses after that."""
    monkeypatch.setattr(module, "DELAY", 0.3)
    hits.reporter._begin()
    going_on = threading.Event()

    def answering(_: Said) -> bytes:
        going_on.wait(30)
        return answer(204)

    with scripted(folder / "sock", answering) as daemon:
        hits.hit(BATCH, "first")
        until(lambda: daemon.heard, 10)
        began = time.monotonic()
        while time.monotonic() - began < 1:
            hits.hit(1000, "many")
        assert hits.slowest < 0.2, "no hit waited"
        until(lambda: hits.look() or len(hits.reporter.uses) == BATCH, 10)
        going_on.set()
        hits.hit(2, "last")
        until(lambda: hits.look() or "last1" in daemon.uses(), 10)
        assert daemon.uses()[:BATCH] == names(BATCH, "first")
        assert daemon.uses()[BATCH:][-3:] == ["many999", "last0", "last1"]
        assert len(daemon.uses()) == 2 * BATCH + 2


def test_no_daemon_costs_a_hit_nothing_but_a_look_each_delay(hits: Hits, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(hits.reporter, "_send", lambda now, send=hits.reporter._send: (tried.append(now), send(now)))
    hits.hit(20 * BATCH)
    assert len(tried) <= 2
    began = time.monotonic()
    hits.reporter.close()
    assert time.monotonic() - began < 5


def test_what_a_lost_connection_took_is_told_again(hits: Hits, folder: Path) -> None:
    with scripted(folder / "sock", lambda _: None) as daemon:
        hits.hit(BATCH)
        until(lambda: daemon.heard, 10)
    with scripted(folder / "sock") as daemon:
        hits.reporter._again = 0.0
        until(lambda: hits.reporter.flush() or daemon.uses(), 10)
        assert daemon.uses() == names(BATCH)


def test_a_plan_s_place_is_told_when_it_has_moved(hits: Hits, folder: Path) -> None:
    """At most 20 times a second, the last place always, and of each plan."""
    plans: list[Any] = [Place("a"), Place("b")]
    with scripted(folder / "sock") as daemon:
        for plan in plans:
            hits.reporter.follow(plan)
        began = time.monotonic()
        while time.monotonic() - began < 1:
            for plan in plans:
                plan.position += 1
            hits.look()
        hits.reporter.close()
        told = {name: [s.body["position"] for s in daemon.heard if s.body.get("plan") == name] for name in "ab"}
        assert len(daemon.heard) <= 20 * (time.monotonic() - began) + 4
        for plan in plans:
            assert told[plan.id] == sorted(set(told[plan.id])), "no place twice"
            assert told[plan.id][-1] == plan.position
            assert len(told[plan.id]) >= 3
        hits.reporter.forget(plans[0])
        plans[0].position += 1
        assert hits.reporter._moved() is None


def test_a_plan_that_ends_while_its_place_is_told(hits: Hits, folder: Path) -> None:
    """Another thread, or the garbage collector, may end it at any line of a hit."""

    class Ending(Place):
        @property
        def position(self) -> int:
            self.looks += 1
            if self.looks == 2:  # in the report itself
                hits.reporter.forget(self)
            return self.place

        @position.setter
        def position(self, place: int) -> None:
            self.place, self.looks = place, 0

    plan: Any = Ending("a")
    with scripted(folder / "sock"):
        hits.reporter.follow(plan)
        plan.position = 1
        hits.reporter.flush()
        assert plan.looks >= 2
        plan.position = 2
        assert hits.reporter._moved() is None, "it has ended"
        hits.reporter.close()


def test_a_use_after_the_report_s_own_time_has_no_negative_age(hits: Hits, folder: Path) -> None:
    """Another thread's, between the look at the clock and at the uses."""
    with scripted(folder / "sock") as daemon:
        hits.reporter.uses.append(("k", time.monotonic() + 1))
        hits.reporter.close()
        assert daemon.heard[0].body["used"] == [["k", 0.0]]


def test_the_generation_of_the_last_answer(hits: Hits, folder: Path) -> None:
    with scripted(folder / "sock", lambda _: answer(404, {"error": {"code": "not_found"}}, "g2")):
        hits.hit(1)
        hits.reporter.close()
    assert hits.reporter.generation == "g2"


def test_the_last_word_takes_a_second_at_the_most(hits: Hits, folder: Path) -> None:
    quiet = threading.Event()
    with scripted(folder / "sock", lambda _: (quiet.wait(30), None)[1]) as daemon:
        hits.hit(10)
        began = time.monotonic()
        hits.reporter.close()
        assert time.monotonic() - began < 5
        until(lambda: daemon.uses() == names(10), 10)
        quiet.set()
