"""Turns, tries and pauses of transfers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon import fetch, turns
from cachedaemon.entries import Flight, Line
from cachedaemon.errors import BadArchive, CacheDaemonError, Corrupt, Missing, NoSpace, OriginRefused, OriginUnavailable
from cachedaemon.fetch import Stops, pause, tries
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.turns import Turns


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
    assert loop.time() - began >= 0.4
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
