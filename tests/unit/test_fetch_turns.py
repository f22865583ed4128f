"""Turns, tries and pauses of transfers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon import fetch, turns
from cachedaemon.entries import Flight, Line
from cachedaemon.errors import (
    BadArchive,
    CacheDaemonError,
    Corrupt,
    Missing,
    NoSpace,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.fetch import Stops, pause, tries
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.turns import Allowance, Turn, Turns


def flight(order: int, *, source: str = "s", demand: bool = True) -> Flight:
    return Flight(Ref(source, f"{order}.bin"), order, demand)


class Ground:
    """Transfers that take a turn and keep it until they are told."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.running: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.ends: dict[int, asyncio.Future[None]] = {}

    async def _run(self, one: Flight) -> None:
        async with self.turns.turn(one):
            self.running.append(one.order)
            try:
                await self.ends[one.order]
            finally:
                self.running.remove(one.order)

    async def start(self, *flights: Flight) -> None:
        for one in flights:
            self.ends[one.order] = asyncio.get_running_loop().create_future()
            self.tasks[one.order] = asyncio.create_task(self._run(one))
        await self.settle()

    async def end(self, order: int, error: Exception | None = None) -> None:
        end = self.ends[order]
        end.set_exception(error) if error else end.set_result(None)
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
            with suppress(asyncio.CancelledError, CacheDaemonError):
                await task


@pytest.mark.asyncio
async def test_who_holds_room_goes_first() -> None:
    """A prefetch that got room while it had no turn must not wait for demands that wait for just that room."""
    ground = Ground(Turns(1, {"s": 1}, {}))
    holder = flight(9, demand=False)
    holder.slot = True
    await ground.start(flight(1), flight(2), holder, flight(3))
    await ground.end(1)
    assert ground.running == [9]
    await ground.close()


@pytest.mark.asyncio
async def test_demand_goes_before_prefetch_and_then_the_order_of_asking() -> None:
    ground = Ground(Turns(1, {"s": 1}, {}))
    raised = flight(2, demand=False)
    await ground.start(flight(1), raised, flight(3, demand=False), flight(5), flight(4))
    seen = []
    for number in (1, 4, 5):
        seen += ground.running
        if number == 4:
            raised.promote(2)  # somebody asks for what was only to be prefetched
        await ground.end(number)
    seen += ground.running
    await ground.end(2) if ground.running == [2] else None
    assert seen[0] == 1
    assert seen[1] == 4
    assert 3 not in seen, "a demand that was a prefetch goes before what still is one"
    await ground.close()


@pytest.mark.asyncio
async def test_limits_hold_per_source_and_over_all_and_none_blocks_another_source() -> None:
    ground = Ground(Turns(3, {"s": 2, "t": 2}, {}))
    await ground.start(*(flight(n) for n in range(4)), *(flight(n, source="t") for n in range(10, 14)))
    assert ground.running == [0, 1, 10], "two of s, and the third place goes to t"
    await ground.end(0)
    assert ground.running == [1, 10, 2]
    ground.turns.limit(6, {"s": 3, "t": 2}, {})
    await ground.settle()
    assert sorted(ground.running) == [1, 2, 3, 10, 11]
    await ground.close()


@pytest.mark.asyncio
async def test_a_cancelled_wait_takes_no_place_and_a_cancelled_transfer_gives_its_back() -> None:
    ground = Ground(Turns(1, {"s": 1}, {}))
    await ground.start(flight(1), flight(2), flight(3))
    ground.tasks[2].cancel()
    await ground.settle()
    ground.tasks[1].cancel()
    await ground.settle()
    assert ground.running == [3]
    await ground.close()
    await ground.start(flight(4))
    assert ground.running == [4]
    await ground.close()


@pytest.mark.asyncio
@given(plan=st.lists(st.tuples(st.sampled_from(["start", "end", "cancel", "both"]), st.integers(0, 5)), max_size=30))
async def test_no_place_is_ever_lost(plan: list[tuple[str, int]]) -> None:
    """Whatever is cancelled or ends, also both in one turn of the loop: all places can be had afterwards."""
    ground, number = Ground(Turns(2, {"s": 2}, {})), 0
    for what, which in plan:
        if what == "start":
            number += 1
            await ground.start(flight(number))
        elif ground.tasks:
            order = list(ground.tasks)[which % len(ground.tasks)]
            if what in ("end", "both") and not ground.ends[order].done():
                ground.ends[order].set_result(None)
            if what in ("cancel", "both"):
                list(ground.tasks.values())[(which + 1) % len(ground.tasks)].cancel()
            await ground.settle()
        assert len(ground.running) <= 2
    await ground.close()
    await ground.start(flight(1000), flight(1001))
    assert ground.running == [1000, 1001]
    await ground.close()


@pytest.mark.asyncio
async def test_an_origin_that_asks_for_a_pause_gets_it_from_all_and_other_sources_go_on() -> None:
    """C-15: no request before `Retry-After`, of whatever shard."""
    ground, loop = Ground(Turns(4, {"s": 1, "t": 1}, {})), asyncio.get_running_loop()
    await ground.start(flight(1), flight(2))
    began = loop.time()
    await ground.end(1, OriginUnavailable("busy", retry_after=0.4))
    await ground.start(flight(3, source="t"))
    assert ground.running == [3]
    async with asyncio.timeout(20):
        while 2 not in ground.running:  # noqa: ASYNC110 - it is the clock that is waited for
            await asyncio.sleep(0.005)
    assert loop.time() - began >= 0.39  # the clock of the loop has steps
    await ground.close()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_source_is_never_held_for_long_because_of_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_HOLD", 0.05)
    ground = Ground(Turns(4, {"s": 1}, {}))
    await ground.start(flight(1), flight(2))
    await ground.end(1, OriginUnavailable("busy", retry_after=300))
    async with asyncio.timeout(20):
        while 2 not in ground.running:  # noqa: ASYNC110 - it is the clock that is waited for
            await asyncio.sleep(0.005)
    await ground.close()


def test_an_overloaded_origin_is_given_half_and_then_one_more_a_round() -> None:
    allowance, seen = Allowance(8), []
    for began, now in ((0.0, 1.0), (0.0, 1.1), (0.9, 1.2), (1.05, 2.0)):
        allowance.was_too_much(began, now)
        seen.append(allowance.now)
    assert seen == [4, 4, 4, 2], "what was under way together counts once"
    for _ in range(2 + 3 + 4):
        allowance.went_well()
    assert allowance.now == 5
    for _ in range(100):
        allowance.went_well()
    assert allowance.now == 8
    for now in range(10, 20):
        allowance.was_too_much(now, now)
    assert allowance.now == 1


def test_a_new_limit_is_had_in_full_unless_the_origin_has_refused() -> None:
    allowance = Allowance(4)
    allowance.limit(8)
    assert allowance.now == 8
    allowance.was_too_much(0.0, 0.0)
    allowance.limit(16)
    assert allowance.now == 4
    allowance.limit(2)
    assert allowance.now == 2


@pytest.mark.asyncio
async def test_sixteen_failures_at_once_halve_once_and_the_rest_wait_their_turn() -> None:
    ground = Ground(Turns(16, {"s": 16}, {}))
    await ground.start(*(flight(n) for n in range(40)))
    for number in range(16):
        await ground.end(number, Overloaded("busy"))
    assert ground.turns.allowance("s").now == 8
    assert len(ground.running) == 8
    for number in list(ground.running):
        await ground.end(number)
    assert ground.turns.allowance("s").now == 9
    await ground.close()


@pytest.mark.asyncio
async def test_two_hundred_waiters_of_a_throttling_origin_are_all_served() -> None:
    """C-15: nobody asks before `Retry-After`, they come back one by one and few at once, and none is lost."""
    turns, loop = Turns(16, {"s": 8}, {}), asyncio.get_running_loop()
    asked, served, running, refused = list[float](), list[int](), 0, -1.0

    async def ask(one: Flight) -> None:
        nonlocal running, refused
        async for attempt in tries(one, 30, Metrics("test"), stops=Stops()):
            async with attempt, turns.turn(one):
                running += 1
                asked.append(loop.time())
                assert running <= 8
                assert not 0.05 < asked[-1] - refused < 0.195, "but for who was sent just before the refusal"
                await asyncio.sleep(0.002)
                running -= 1
                if len(asked) <= 12:
                    refused = loop.time()
                    raise Overloaded("slow down", retry_after=0.2)
                served.append(one.order)

    async with asyncio.timeout(60):
        await asyncio.gather(*(ask(flight(n)) for n in range(200)))
    assert sorted(served) == list(range(200))
    after_the_first_hold = sorted(asked[8:12])
    assert after_the_first_hold[-1] - after_the_first_hold[0] > 0.005, "not all in one instant"
    assert not any(turns._running.values())


# --- further places


@pytest.mark.asyncio
async def test_a_spare_place_is_one_that_nobody_waits_for_and_is_given_back_for_who_comes() -> None:
    ground = Ground(Turns(4, {"s": 3, "t": 4}, {}))
    async with ground.turns.turn(flight(1)) as turn:
        spares = [turn.spare() for _ in range(3)]
        assert [one is not None for one in spares] == [True, True, False], "as many as the source has"
        first, second, _ = spares
        assert first is not None
        assert second is not None
        await ground.start(flight(2, source="t"))
        assert not first.is_wanted(), "there was room for it"
        await ground.start(flight(3, source="t"))
        assert first.is_wanted(), "over all sources there is none left"
        first.leave()
        first.leave()
        await ground.settle()
        assert ground.running == [2, 3]
        assert not second.is_wanted()
        ground.turns.allowance("s").was_too_much(0.0, 1.0)
        assert second.is_wanted(), "the origin has asked for less"
        second.leave()
        assert turn.spare() is None
    await ground.close()
    assert not any(ground.turns._running.values())


@pytest.mark.asyncio
async def test_a_turn_tells_whether_the_bandwidth_holds_it_up() -> None:
    turns = Turns(4, {"s": 4}, {"s": 1000})
    async with turns.turn(flight(1)) as turn:
        await turn.take(10_000_000)
        assert not turn.is_paced()
        waiting = asyncio.create_task(turn.take(1))
        await Ground.settle()
        assert turn.is_paced()
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.asyncio
async def test_no_spare_place_of_a_source_that_is_held() -> None:
    turns = Turns(4, {"s": 4}, {})
    async with turns.turn(flight(1)) as turn:
        turn.heed(OriginUnavailable("busy", retry_after=60))
        assert turn.spare() is None


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["asleep", "waiting", "back"])
async def test_a_rest_that_is_cancelled_gives_back_what_it_has(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "KEPT", 0.0)
    ground = Ground(Turns(1, {"s": 1}, {}))

    async def rest(seconds: float) -> None:
        async with ground.turns.turn(flight(1)) as turn:
            await turn.rest(seconds)
            await asyncio.Event().wait()

    task = asyncio.create_task(rest(60 if when == "asleep" else 0.001))
    await asyncio.sleep(0)  # it has its turn, and the next one waits for it already, however late this loop is
    await ground.start(flight(2))
    assert ground.running == [2]
    if when != "asleep":
        async with asyncio.timeout(20):
            while not len(ground.turns._waiting):  # noqa: ASYNC110 - it is the clock that is waited for
                await asyncio.sleep(0.001)
    if when == "back":
        await ground.end(2)
    task.cancel()
    await asyncio.wait([task])
    await ground.close()
    assert not any(ground.turns._running.values())
    assert not len(ground.turns._waiting)


@pytest.mark.asyncio
@given(
    plan=st.lists(
        st.tuples(st.sampled_from(["start", "end", "cancel", "spare", "leave"]), st.integers(0, 5)), max_size=30
    )
)
async def test_the_caps_hold_with_spare_places_too(plan: list[tuple[str, int]]) -> None:
    ground, number, spares = (
        Ground(
            Turns(3, {"s": 2, "t": 2}, {}),
        ),
        0,
        list[Turn](),
    )
    owner = Turn(ground.turns, flight(999), ground.turns._paces.part("s"))
    for what, which in plan:
        if what == "start":
            number += 1
            await ground.start(flight(number, source="st"[which % 2]))
        elif what == "spare" and (spare := owner.spare()) is not None:
            assert not len(ground.turns._waiting) or ground.turns._waiting.first(ground.turns._has_no_place) is None
            spares.append(spare)
        elif what == "leave" and spares:
            spares.pop(which % len(spares)).leave()
        elif what in ("end", "cancel") and ground.tasks:
            order = list(ground.tasks)[which % len(ground.tasks)]
            if what == "cancel":
                ground.tasks[order].cancel()
            elif not ground.ends[order].done():
                ground.ends[order].set_result(None)
        await ground.settle()
        running = ground.turns._running
        assert sum(running.values()) == len(ground.running) + len(spares) <= 3
        assert running.get("s", 0) <= 2
        assert running.get("t", 0) <= 2
    for spare in spares:
        spare.leave()
    await ground.close()
    assert not any(ground.turns._running.values())


async def _try(failures: list[BaseException | None], retries: int) -> tuple[int, Flight]:
    """Tries that end so one after the other; how many there were."""
    one, count, stops = flight(1), 0, Stops()
    iterator = iter(failures)
    async for attempt in tries(one, retries, Metrics("test"), stops=stops):
        async with attempt:
            count += 1
            if (failure := next(iterator)) is not None:
                raise failure
    assert not stops
    return count, one


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FIRST_PAUSE", 0.0)


@pytest.mark.asyncio
async def test_what_may_pass_is_tried_again_and_then_told(no_pause: None) -> None:
    bad = OriginUnavailable("away")
    assert (await _try([bad, Corrupt("odd"), NoSpace("full"), None], 3))[0] == 4
    with pytest.raises(OriginUnavailable, match="the last"):
        await _try([bad, bad, OriginUnavailable("the last")], 2)
    with pytest.raises(OriginUnavailable):
        await _try([bad, None], 0)


@pytest.mark.asyncio
async def test_to_be_told_when_to_come_back_is_a_quarter_of_a_failure(no_pause: None) -> None:
    """C-15: those who wait for a throttling origin are few at once, so that one of them may be refused often."""
    later = Overloaded("busy", retry_after=0.001)
    assert (await _try([*[later] * 8, None], 2))[0] == 9
    with pytest.raises(Overloaded):
        await _try([later] * 9, 2)
    with pytest.raises(Overloaded):
        await _try([later], 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("final", [Missing("x"), OriginRefused("x"), BadArchive("x", reason="corrupt")])
async def test_what_is_certain_is_not_tried_again(final: CacheDaemonError) -> None:
    with pytest.raises(type(final)):
        await _try([final, None], 5)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_pauses_grow_are_spread_and_honour_the_origin() -> None:
    for failed, most in ((0, 0.2), (1, 0.4), (3, 1.6), (9, 10.0), (10_000, 10.0)):
        drawn = [pause(failed, OriginUnavailable("x")) for _ in range(200)]
        assert 0 <= min(drawn) < most / 2 < max(drawn) <= most
    drawn = [pause(0, OriginUnavailable("x", retry_after=3)) for _ in range(200)]
    assert 3 <= min(drawn) < 3.5
    assert 4 < max(drawn) <= 4.5, "spread, not in lockstep at the end of the pause"
    assert all(300 <= pause(0, OriginUnavailable("x", retry_after=300)) <= 310 for _ in range(50))


@pytest.mark.asyncio
async def test_a_wait_costs_the_same_among_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step looks at all who wait: counted are looks at a rank, which no load changes."""
    looks = 0

    def counted(one: Flight) -> tuple[bool, bool, int]:
        nonlocal looks
        looks += 1
        return (not one.slot, not one.demand, one.order)

    monkeypatch.setattr(Flight, "rank", property(counted))
    ground = Ground(Turns(1, {"s": 1}, {}))
    await ground.start(*(flight(n) for n in range(2000)))
    for number in range(20):
        await ground.end(number)
    assert ground.running == [20]
    assert looks <= 2000 + 100
    await ground.close()


@given(steps=st.lists(st.tuples(st.sampled_from("adpr"), st.integers(0, 9), st.sampled_from("st")), max_size=40))
def test_a_line_keeps_its_order_whatever_comes_goes_and_rises(steps: list[tuple[str, int, str]]) -> None:
    line, here = Line(), list[Flight]()
    for order, (what, which, source) in enumerate(steps):
        if what in "ad":
            here.append(flight(order, source=source, demand=what == "d"))
            here[-1].slot = which == 0
            line.add(here[-1])
        elif here and what == "p":
            here[which % len(here)].promote(order)
        elif here:
            line.remove(here.pop(which % len(here)))
        assert line.has_demand() == any(one.demand for one in here)
        assert line.has_demand(but="s") == any(one.demand for one in here if one.ref.source != "s")
        assert line.has_others("t") == any(one.ref.source != "t" for one in here)
    seen = []
    while (one := line.first(lambda _: False)) is not None:
        line.remove(one)
        seen.append(one)
    assert seen == sorted(here, key=lambda one: one.rank)


@pytest.mark.asyncio
async def test_a_place_is_due_to_who_has_room_and_to_a_demand_before_a_prefetch() -> None:
    ground = Ground(Turns(2, {"s": 1, "t": 1}, {}))
    mine = {demand: flight(9, demand=demand) for demand in (True, False)}

    def due() -> list[bool]:
        return [ground.turns.is_due_to_another(mine[demand]) for demand in (True, False)]

    with_room = {demand: flight(5 + demand, demand=demand) for demand in (True, False)}
    for one in with_room.values():
        one.slot = True
    try:
        await ground.start(flight(1), flight(2, source="t"), flight(3, demand=False))
        assert due() == [False, False]
        await ground.start(flight(4, source="t"))
        assert due() == [False, False], "a place of this source would not help it"
        await ground.start(flight(7))
        assert due() == [False, True]
        await ground.start(with_room[False])
        assert due() == [False, True], "a demand has the prefetch stopped that has its room"
        await ground.start(with_room[True])
        assert due() == [True, True]
    finally:
        await ground.close()
