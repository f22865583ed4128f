"""The queue for room: order, refusals, cancellation; and a keeper that nothing ends and that is idle while nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon.entries import Entry, Flight, NotNow
from cachedaemon.errors import NoSpace, TooLarge
from cachedaemon.fetch import Impatient
from cachedaemon.ledger import Ledger
from cachedaemon.model import Caps, Disk, Need
from cachedaemon.room import Partial, Room
from tests.unit.test_ledger import MB, ROOMY, Kept, ask, caps, entry


class Rig:
    """A room with a ledger, on a disk whose shards are leased as the test says."""

    def __init__(self, limits: Caps) -> None:
        self.ledger = Ledger(limits)
        self.leased: set[str] = set()
        self.granted: list[str] = []
        self.evicted: list[str] = []
        self.tried = self.looks = 0
        self.disk: Callable[[], Disk] = lambda: ROOMY
        self.gate = asyncio.Event()
        self.gate.set()
        self.stops: dict[Flight, Callable[[], None]] = {}
        self.due: Callable[[Flight], bool] = lambda _: False
        self.room = Room(self.ledger, self._usage, self._evict, self.stops, lambda flight: self.due(flight))  # noqa: PLW0108 - set later
        self.tasks: list[asyncio.Task[None]] = []

    async def _usage(self) -> Disk:
        self.looks += 1
        await self.gate.wait()
        await asyncio.sleep(0)
        return self.disk()

    async def _evict(self, victims: tuple[Entry, ...], _: str) -> None:
        for one in victims:
            self.tried += 1
            await asyncio.sleep(0)
            if one.ref.key in self.leased:
                self.ledger.put_back(one, busy=True)
            else:
                self.evicted.append(one.ref.key)
                self.ledger.trashed(one)
                self.ledger.deleted(Need(one.blocks, one.inodes))

    def fill(self, count: int, *, leased: bool = False) -> None:
        for number in range(count):
            self.ledger.add(entry(f"old{number}", float(number)))
            if leased:
                self.leased.add(f"old{number}")

    def claim(self, flight: Flight, size: int = MB, *, holds_turn: bool = False) -> asyncio.Task[None]:
        async def wait() -> None:
            await self.room.reserve(flight, Need(size), holds_turn=holds_turn)
            self.granted.append(flight.ref.key)

        self.tasks.append(asyncio.ensure_future(wait()))
        return self.tasks[-1]

    def land(self, flight: Flight) -> None:
        self.ledger.land(flight)
        self.room.changed()


@contextlib.asynccontextmanager
async def running(limits: Caps) -> AsyncIterator[Rig]:
    rig = Rig(limits)
    keeper = asyncio.ensure_future(rig.room.keep())
    try:
        yield rig
        assert not keeper.done(), keeper.exception()
    finally:
        for task in [*rig.tasks, keeper]:
            task.cancel()
        await asyncio.gather(*rig.tasks, keeper, return_exceptions=True)


async def until(state: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not state():  # noqa: ASYNC110 - the states are many and say nothing of their change
            await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_demands_in_the_order_of_asking_whatever_their_size() -> None:
    async with running(caps(2, 4 * MB)) as rig:
        rig.fill(2, leased=True)
        flights = [ask(rig.ledger, key) for key in "abcd"]
        for flight, size in zip(reversed(flights), (1, 2, 1, 3), strict=True):
            rig.claim(flight, size * MB)
        await until(lambda: rig.room.full)
        rig.leased.clear()
        for flight in flights:
            await until(lambda f=flight: f.ref.key in rig.granted)
            rig.land(flight)
        assert rig.granted == list("abcd")


@pytest.mark.asyncio
async def test_demand_before_prefetch() -> None:
    async with running(caps(1)) as rig:
        rig.fill(1, leased=True)
        ahead, wanted = ask(rig.ledger, "ahead", job="j"), ask(rig.ledger, "wanted")
        rig.claim(ahead)
        rig.claim(wanted)
        await until(lambda: rig.room.full)
        rig.leased.clear()
        await until(lambda: rig.granted)
        rig.land(wanted)
        await until(lambda: len(rig.granted) == 2)
        assert rig.granted == ["wanted", "ahead"]


@pytest.mark.asyncio
async def test_why_the_first_waits_is_known_at_every_moment() -> None:
    """Whoever gives up while the keeper is looking must still be told how many are leased."""
    async with running(caps(3)) as rig:
        rig.fill(3, leased=True)
        flight = ask(rig.ledger, "a")
        rig.claim(flight)
        await until(lambda: rig.room.full)
        tried = rig.tried
        while rig.tried < tried + 9:  # three more rounds, looked at in every step of the loop
            assert rig.room.full == rig.room.blocks(flight) == NotNow(3, 0)
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_keeper_survives_a_claim_that_ends_while_it_looks() -> None:
    async with running(caps(1)) as rig:
        rig.gate.clear()
        gone, stays = ask(rig.ledger, "gone"), ask(rig.ledger, "stays")
        task = rig.claim(gone)
        await until(lambda: rig.looks)
        rig.claim(stays)
        task.cancel()
        await asyncio.wait([task])
        rig.land(gone)
        rig.gate.set()
        await until(lambda: rig.granted == ["stays"])
        assert rig.ledger.reserved == MB


@pytest.mark.asyncio
async def test_a_disk_that_does_not_answer_refuses_one_and_serves_the_next() -> None:
    async with running(caps(1)) as rig:

        def broken() -> Disk:
            raise NoSpace("the disk is gone")

        rig.disk = broken
        with pytest.raises(NoSpace, match="the disk is gone"):
            await rig.claim(first := ask(rig.ledger, "first"))
        rig.land(first)
        rig.disk = lambda: ROOMY
        await rig.claim(ask(rig.ledger, "second"))


@pytest.mark.asyncio
async def test_the_keeper_ends_when_it_is_cancelled_during_an_eviction() -> None:
    """An eviction swallows the cancellation, since its thread is awaited to its end: it must not be lost."""
    rig = Rig(caps(1))
    rig.fill(1, leased=True)
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def evict(victims: tuple[Entry, ...], _: str) -> None:
        began.set()
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await goes_on.wait()
        for one in victims:
            rig.ledger.put_back(one, busy=True)

    rig.room._evict = evict
    keeper = asyncio.ensure_future(rig.room.keep())
    task = rig.claim(ask(rig.ledger, "a"))
    await asyncio.wait_for(began.wait(), 20)
    keeper.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    done, _ = await asyncio.wait([keeper], timeout=20)
    assert done
    task.cancel()


@pytest.mark.asyncio
async def test_idle_while_nobody_waits() -> None:
    async with running(caps(2)) as rig:
        rig.fill(2, leased=True)
        task = rig.claim(ask(rig.ledger, "a"))
        await until(lambda: rig.room.full)
        task.cancel()
        await until(lambda: not rig.room.waiting)
        await asyncio.sleep(0.05)
        before = rig.tried, rig.looks
        await asyncio.sleep(0.5)  # five times as long as between two looks
        assert (rig.tried, rig.looks) == before


@pytest.mark.asyncio
async def test_no_busy_loop_while_somebody_waits() -> None:
    async with running(caps(3)) as rig:
        rig.fill(3, leased=True)
        rig.claim(ask(rig.ledger, "a"))
        await until(lambda: rig.room.full)
        before = rig.tried
        await asyncio.sleep(0.5)
        assert rig.tried - before <= 3 * 7


@pytest.mark.asyncio
async def test_a_lease_that_ends_is_noticed_while_something_is_being_deleted() -> None:
    async with running(caps(2, 4 * MB)) as rig:
        rig.fill(2, leased=True)
        rig.ledger.leftover(Need(2 * MB))
        rig.claim(ask(rig.ledger, "a"), 4 * MB)
        await until(lambda: rig.room.full == NotNow(2, 0))
        rig.leased.clear()
        await until(lambda: len(rig.evicted) == 2)
        rig.ledger.deleted(Need(2 * MB))
        rig.room.changed()
        await until(lambda: rig.granted)


@pytest.mark.asyncio
async def test_nobody_waits_for_what_cannot_be_deleted() -> None:
    """A folder in trash that a reader is still in, or that the disk refuses to delete, holds up nobody who can evict."""
    async with running(caps(2, 4 * MB)) as rig:
        rig.fill(2)
        rig.ledger.leftover(Need(2 * MB))
        rig.ledger.stuck(Need(2 * MB))
        rig.claim(ask(rig.ledger, "a"), 2 * MB)
        await until(lambda: rig.granted)
        assert rig.evicted == ["old0", "old1"]


@pytest.mark.asyncio
async def test_too_large_is_told_at_once_and_holds_nobody_up() -> None:
    async with running(caps(2, 2 * MB)) as rig:
        rig.fill(2, leased=True)
        big, small = ask(rig.ledger, "big"), ask(rig.ledger, "small")
        task = rig.claim(big, 3 * MB)
        rig.claim(small)
        with pytest.raises(TooLarge, match=r"s/big needs 3000000 bytes, cache\.max_bytes allows 2000000"):
            await task
        rig.leased.clear()
        await until(lambda: rig.granted == ["small"])


@pytest.mark.asyncio
async def test_others_filled_the_disk() -> None:
    async with running(Caps(2, 0, Kept(MB))) as rig:
        rig.disk = lambda: Disk(100 * MB, MB, 0, 0)
        with pytest.raises(NoSpace, match=r"1000000 bytes free, 1000000 of them are kept free \(cache\.min_free\)"):
            await rig.claim(ask(rig.ledger, "a"))


@pytest.mark.asyncio
async def test_a_prefetch_that_would_displace_its_own_ends_and_cannot_be_joined() -> None:
    async with running(caps(1)) as rig:
        await rig.claim(first := ask(rig.ledger, "first", job="j"))
        rig.ledger.commit(first, entry("first", 0.0))
        rig.room.changed()
        task = rig.claim(second := ask(rig.ledger, "second", job="j"))
        await until(lambda: second.ended)
        with pytest.raises(Partial):
            await task


@pytest.mark.asyncio
async def test_a_waiting_prefetch_leaves_its_turn_to_a_demand() -> None:
    async with running(caps(1)) as rig:
        rig.fill(1, leased=True)
        task = rig.claim(ask(rig.ledger, "ahead", job="j"), holds_turn=True)
        demand = rig.claim(ask(rig.ledger, "wanted"), holds_turn=True)
        await until(lambda: rig.room.full)
        assert not task.done()
        demand.cancel()
        rig.due = lambda flight: not flight.demand
        with pytest.raises(Impatient):
            await task


@pytest.mark.asyncio
async def test_whoever_waits_with_a_turn_that_is_due_to_another_gives_it_back_wherever_it_stands() -> None:
    async with running(caps(1)) as rig:
        rig.fill(1, leased=True)
        first = rig.claim(ask(rig.ledger, "first"))
        behind = [rig.claim(ask(rig.ledger, f"behind{n}"), holds_turn=True) for n in range(2)]
        await until(lambda: rig.room.full)
        rig.due = lambda _: True
        for task in behind:
            with pytest.raises(Impatient):
                await task
        assert not first.done()


@pytest.mark.asyncio
async def test_two_sources_get_half_each() -> None:
    async with running(caps(4)) as rig:
        mine = [ask(rig.ledger, f"a{n}", source="a") for n in range(6)]
        others = [ask(rig.ledger, f"b{n}", source="b") for n in range(6)]
        for flight in [*mine, *others]:
            rig.claim(flight)
        await until(lambda: len(rig.granted) == 4)
        assert rig.granted == ["a0", "a1", "b0", "b1"]
        for flight in [mine[0], others[0]]:
            rig.land(flight)
        await until(lambda: len(rig.granted) == 6)
        assert sorted(rig.granted[4:]) == ["a2", "b2"]


@pytest.mark.asyncio
async def test_a_demand_lets_no_prefetch_of_another_source_go_first() -> None:
    async with running(caps(2)) as rig:
        rig.fill(2, leased=True)
        wanted = [ask(rig.ledger, f"a{n}", source="a") for n in range(2)]
        for flight in [ask(rig.ledger, "ahead", source="b", job="j"), *wanted]:
            rig.claim(flight)
        await until(lambda: rig.room.full)
        rig.leased.clear()
        await until(lambda: len(rig.granted) == 2)
        assert rig.granted == ["a0", "a1"]


@pytest.mark.asyncio
async def test_growing_ones_oldest_first_and_the_youngest_is_stopped() -> None:
    async with running(caps(0, 4 * MB)) as rig:
        old, young = ask(rig.ledger, "old"), ask(rig.ledger, "young")
        stopped: list[str] = []
        for flight in (old, young):
            await rig.claim(flight, 2 * MB)
            flight.growing = True
        more = rig.claim(young, 3 * MB)

        def stop() -> None:
            stopped.append("young")
            more.cancel()
            young.give_back()
            rig.room.changed()

        rig.stops[young] = stop
        rig.stops[old] = lambda: stopped.append("old")
        await until(lambda: rig.room.full)
        assert stopped == []
        await rig.claim(old, 3 * MB)
        assert stopped == ["young"]


@pytest.mark.asyncio
async def test_the_surplus_goes_as_leases_end() -> None:
    async with running(caps(6)) as rig:
        rig.fill(6)
        rig.leased = {"old0", "old1", "old5"}
        rig.ledger.caps = caps(2)
        rig.room.changed()
        await until(lambda: sorted(rig.evicted) == ["old2", "old3", "old4"])
        rig.leased.discard("old5")
        await until(lambda: "old5" in rig.evicted)
        rig.leased.clear()
        await asyncio.sleep(0.3)
        assert len(rig.ledger) == 2


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 4)), min_size=1, max_size=25), st.data())
def test_nothing_is_lost_whatever_is_cancelled(steps: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    """Random claims, cancellations and landings: caps hold, demands come in order, and in the end nothing is reserved."""

    async def walk() -> None:
        async with running(caps(3, 6 * MB)) as rig:
            rig.fill(3)
            flights: dict[Flight, asyncio.Task[None]] = {}
            for number, (pauses, demand, size) in enumerate(steps):
                flight = ask(rig.ledger, str(number), job=None if demand else "j")
                flights[flight] = rig.claim(flight, size * MB)
                for _ in range(pauses):
                    await asyncio.sleep(0)
                _check(rig)
                if data.draw(st.booleans()):
                    end = data.draw(st.sampled_from(list(flights)))
                    task = flights.pop(end)
                    task.cancel()
                    await asyncio.wait([task])
                    rig.land(end)
            while flights:
                await until(lambda: any(task.done() for task in flights.values()))
                _check(rig)
                for flight in [flight for flight, task in flights.items() if task.done()]:
                    assert flights.pop(flight).exception() is None
                    rig.land(flight)
            assert rig.ledger.reserved == 0
            assert not rig.ledger.flights
            assert not rig.room.waiting

    asyncio.run(walk())


def _check(rig: Rig) -> None:
    ledger = rig.ledger
    assert len(ledger) + sum(flight.slot for flight in ledger.flights.values()) <= 3
    assert ledger.bytes + ledger.reserved <= 6 * MB


@pytest.mark.asyncio
async def test_a_look_at_the_queue_costs_the_same_among_hundreds() -> None:
    """Behind a claim that lets another source go first all of its source wait, unasked."""
    async with running(caps(4)) as rig:
        rig.fill(2, leased=True)
        for key in ("s1", "s2"):
            rig.claim(ask(rig.ledger, key))
        await until(lambda: len(rig.granted) == 2)
        for number in range(500):
            rig.claim(ask(rig.ledger, f"more{number}"))
        rig.claim(ask(rig.ledger, "other", source="t"))
        await until(lambda: rig.room.waiting == 501 and rig.room.full)
        before = rig.looks
        rig.room.changed()
        await until(lambda: rig.looks > before)
        await asyncio.sleep(0.3)  # three looks more at what is leased
        assert rig.looks - before <= 30
