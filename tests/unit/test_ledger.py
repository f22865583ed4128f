"""The index against a naive model, step by step; and its verdicts one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cachedaemon.entries import DiskFull, Displaces, Entry, Evict, Flight, Granted, Never, NotNow, Yield
from cachedaemon.ledger import Ledger
from cachedaemon.model import Caps, Disk, Need, Ref, Stamp

MB = 1_000_000
ROOMY = Disk(1000 * MB, 1000 * MB, 0, 0)


@dataclass(frozen=True)
class Kept:
    """Bytes and inodes left to others."""

    bytes: int = 0
    inodes: int = 0

    def of(self, total_bytes: int) -> int:
        return min(self.bytes, total_bytes)

    def of_inodes(self, total_inodes: int, total_bytes: int) -> int:
        return self.inodes


def caps(shards: int = 0, size: int = 0, kept: int = 0, inodes: int = 0) -> Caps:
    return Caps(shards, size, Kept(kept, inodes))


def entry(key: str, used: float, size: int = MB, source: str = "s") -> Entry:
    return Entry(Ref(source, key), key, Stamp(1, hash(key) & 0xFFFF, size, 0), size, size, 3, used)


def filled(count: int, limits: Caps, size: int = MB) -> Ledger:
    ledger = Ledger(limits)
    for number in range(count):
        ledger.add(entry(f"old{number}", float(number), size))
    return ledger


def ask(ledger: Ledger, key: str, *, job: str | None = None, source: str = "s") -> Flight:
    return ledger.join(Ref(source, key), job=job)[0]


def keys(verdict: object) -> list[str]:
    assert isinstance(verdict, Evict), verdict
    return [one.ref.key for one in verdict.victims]


# ---- verdicts


def test_takes_the_least_recently_used() -> None:
    ledger = filled(3, caps(3))
    ledger.touch(next(e for e in ledger.entries() if e.ref.key == "old0"), 99.0)
    verdict = ledger.reserve(ask(ledger, "new"), Need(MB), ROOMY)
    assert keys(verdict) == ["old1"]


def test_a_demand_waits_where_a_prefetch_would_displace_its_own() -> None:
    """What is here is fetched ahead and asked for, or an earlier version that a reader holds: all of it may go later."""
    ledger = filled(2, caps(size=2 * MB))
    asked, held = ledger.entries()
    ledger.announce(asked, 1.0, "plan p")
    ledger.protected = {"plan p"}
    ask(ledger, asked.ref.key)
    ledger.supersede(held)
    assert keys(ledger.reserve(ask(ledger, "a"), Need(MB), ROOMY)) == [held.ref.key]
    ledger.put_back(held, busy=True)
    assert ledger.reserve(ask(ledger, "new"), Need(2 * MB), ROOMY) == NotNow(1, 0)


def test_turns_that_came_nearer_untold_take_no_shard_twice() -> None:
    """A plan has ended, and the order was not told yet: what only that one wanted goes first, the unread ones last."""
    due = {"u": 9.0, "v": 1.0, "x": 5.0}
    ledger = Ledger(caps(size=3 * MB), lambda ref: due.get(ref.key, math.inf))
    for number, key in enumerate("uvx"):
        ledger.add(entry(key, float(number)))
    u, v, _ = ledger.entries()
    for unread in (u, v):
        ledger.announce(unread, unread.used, "plan p")
    ledger.protected = {"plan p"}
    del due["x"]
    verdict = ledger.reserve(ask(ledger, "large"), Need(3 * MB), ROOMY)
    assert sorted(keys(verdict)) == ["u", "v", "x"]
    assert len(ledger) == 3


def test_a_shard_that_is_asked_for_stays_unless_another_version_replaces_it() -> None:
    ledger = filled(1, caps(1))
    asker, new = ask(ledger, "old0"), ask(ledger, "new")
    assert ledger.reserve(new, Need(MB), ROOMY) == NotNow(0, 0)
    asker.replaces = True
    assert keys(ledger.reserve(new, Need(MB), ROOMY)) == ["old0"]


def test_what_nobody_has_read_yet_counts_as_just_used() -> None:
    ledger = filled(2, caps(3))
    flight = ask(ledger, "fresh", job="j")
    assert ledger.reserve(flight, Need(MB), ROOMY) == Granted()
    ledger.commit(flight, entry("fresh", 50.0))
    assert keys(ledger.reserve(ask(ledger, "new"), Need(MB), ROOMY)) == ["old0"]


def test_trash_gives_its_shard_at_the_rename_and_its_bytes_after_the_deletion() -> None:
    ledger = filled(2, caps(2, 2 * MB))
    flight = ask(ledger, "new")
    verdict = ledger.reserve(flight, Need(MB), ROOMY)
    assert isinstance(verdict, Evict)
    assert len(ledger) == 2
    assert ledger.per_source == {"s": [2, 2 * MB]}
    ledger.trashed(verdict.victims[0])
    assert len(ledger) == 1
    assert ledger.per_source == {"s": [1, MB]}
    assert ledger.bytes == 2 * MB
    assert ledger.reserve(flight, Need(MB), ROOMY) == Evict(())
    ledger.deleted(Need(MB, 3))
    assert ledger.reserve(flight, Need(MB), ROOMY) == Granted()


def test_busy_victims_come_back_and_are_named_in_the_count() -> None:
    ledger = filled(2, caps(2))
    flight = ask(ledger, "new")
    for left in (1, 0):
        verdict = ledger.reserve(flight, Need(MB), ROOMY)
        assert isinstance(verdict, Evict)
        ledger.put_back(verdict.victims[0], busy=True)
        assert ledger.leased == 2 - left
    assert ledger.reserve(flight, Need(MB), ROOMY) == NotNow(2, 0)
    assert len(ledger) == 2
    ledger.recheck()
    assert keys(ledger.reserve(flight, Need(MB), ROOMY)) == ["old0"]


def test_never_names_wanted_and_allowed() -> None:
    ledger = filled(1, caps(3, 5 * MB, kept=100 * MB))
    assert ledger.reserve(ask(ledger, "a"), Need(6 * MB), ROOMY) == Never(6 * MB, "cache.max_bytes", 5 * MB)
    ledger.caps = caps(3, kept=100 * MB)
    verdict = ledger.reserve(ask(ledger, "b"), Need(901 * MB), ROOMY)
    assert verdict == Never(901 * MB, "the file system less cache.min_free", 900 * MB)


def test_not_now_is_no_never() -> None:
    """A shard of exactly the cap fits, once everything else has gone."""
    ledger = filled(2, caps(0, 2 * MB))
    assert keys(ledger.reserve(ask(ledger, "big"), Need(2 * MB), ROOMY)) == ["old0", "old1"]


def test_a_prefetch_displaces_nothing_that_its_job_brought() -> None:
    ledger = Ledger(caps(2))
    for number in range(2):
        flight = ask(ledger, f"p{number}", job="j")
        assert ledger.reserve(flight, Need(MB), ROOMY) == Granted()
        ledger.commit(flight, entry(f"p{number}", float(number)))
    assert ledger.reserve(ask(ledger, "p2", job="j"), Need(MB), ROOMY) == Displaces()
    assert keys(ledger.reserve(ask(ledger, "demand"), Need(MB), ROOMY)) == ["p0"]


def test_a_prefetch_waits_while_others_may_still_go() -> None:
    """A reader's lease and another's transfer end one day; what the job brought itself would then be left alone."""
    ledger = Ledger(caps(3))
    ledger.add(read := entry("read", 0.0))
    for key, job in (("p0", "j"), ("flying", None)):
        flight = ask(ledger, key, job=job)
        assert ledger.reserve(flight, Need(MB), ROOMY) == Granted()
        if job:
            ledger.commit(flight, entry(key, 1.0))
    waiting = ask(ledger, "p1", job="j")
    assert keys(ledger.reserve(waiting, Need(MB), ROOMY)) == ["read"]
    ledger.put_back(read, busy=True)
    assert ledger.reserve(waiting, Need(MB), ROOMY) == NotNow(1, 1)
    ledger.take_out(read)
    ledger.vanished(read)
    assert ledger.reserve(waiting, Need(MB), ROOMY) == Granted()
    assert ledger.reserve(ask(ledger, "p2", job="j"), Need(MB), ROOMY) == NotNow(0, 2)
    ledger.land(flight)
    assert ledger.reserve(last := ask(ledger, "p2", job="j"), Need(MB), ROOMY) == Granted()
    assert ledger.reserve(ask(ledger, "p3", job="j"), Need(MB), ROOMY) == Displaces()
    assert last.slot


def test_a_prefetch_that_leases_leave_too_little_for_is_over_at_once() -> None:
    ledger = Ledger(caps(0, 4 * MB))
    ledger.add(read := entry("read", 0.0))
    flight = ask(ledger, "p0", job="j")
    assert ledger.reserve(flight, Need(3 * MB), ROOMY) == Granted()
    ledger.commit(flight, entry("p0", 1.0, size=3 * MB))
    ledger.take_out(read)
    ledger.put_back(read, busy=True)
    assert ledger.reserve(ask(ledger, "p1", job="j"), Need(MB), ROOMY) == NotNow(1, 0)
    assert ledger.reserve(ask(ledger, "p2", job="j"), Need(2 * MB), ROOMY) == Displaces()


def test_a_prefetch_may_displace_what_was_read() -> None:
    ledger = Ledger(caps(1))
    flight = ask(ledger, "p0", job="j")
    ledger.reserve(flight, Need(MB), ROOMY)
    ledger.commit(flight, brought := entry("p0", 0.0))
    ledger.touch(brought, 1.0)
    assert keys(ledger.reserve(ask(ledger, "p1", job="j"), Need(MB), ROOMY)) == ["p0"]


def test_a_prefetch_takes_all_or_nothing() -> None:
    """What does not suffice stays: a prefetch that must wait has evicted nothing."""
    ledger = filled(2, caps(0, 3 * MB))
    other = ask(ledger, "flying")
    assert ledger.reserve(other, Need(MB), ROOMY) == Granted()
    assert ledger.reserve(ask(ledger, "p", job="j"), Need(3 * MB), ROOMY) == NotNow(0, 1)
    assert len(ledger) == 2


def test_a_demand_that_joins_a_prefetch_makes_it_one_in_its_own_place() -> None:
    ledger = Ledger(caps(5))
    flight = ask(ledger, "a", job="j")
    first = ask(ledger, "b")
    assert flight.rank > first.rank
    again, new = ledger.join(Ref("s", "a"))
    assert (again, new, flight.demand) == (flight, False, True)
    assert flight.rank > first.rank
    assert flight.rank < ask(ledger, "c").rank


def test_half_of_the_cap_while_another_source_waits() -> None:
    ledger = Ledger(caps(4))
    for key in ("a", "b"):
        assert ledger.reserve(ask(ledger, key), Need(MB), ROOMY, rivals=True) == Granted()
    third = ask(ledger, "c")
    assert ledger.reserve(third, Need(MB), ROOMY, rivals=True) == Yield()
    assert ledger.reserve(third, Need(MB), ROOMY) == Granted()


def test_half_of_the_bytes_while_another_source_waits() -> None:
    ledger = Ledger(caps(0, 10 * MB))
    assert ledger.reserve(ask(ledger, "a"), Need(4 * MB), ROOMY, rivals=True) == Granted()
    assert ledger.reserve(ask(ledger, "b"), Need(2 * MB), ROOMY, rivals=True) == Yield()
    assert ledger.reserve(ask(ledger, "c"), Need(1 * MB), ROOMY, rivals=True) == Granted()


def test_a_single_transfer_may_take_more_than_half() -> None:
    ledger = Ledger(caps(0, 10 * MB))
    assert ledger.reserve(ask(ledger, "a"), Need(9 * MB), ROOMY, rivals=True) == Granted()


def growing(ledger: Ledger, key: str, size: int, source: str = "s") -> Flight:
    flight = ask(ledger, key, source=source)
    assert ledger.reserve(flight, Need(size), ROOMY) == Granted()
    flight.growing = True
    return flight


def test_the_youngest_that_grows_is_stopped_for_the_oldest() -> None:
    ledger = Ledger(caps(0, 10 * MB))
    old, middle, young = (growing(ledger, key, 3 * MB) for key in "abc")
    assert isinstance(ledger.reserve(old, Need(5 * MB), ROOMY), NotNow)
    assert ledger.to_stop(old) is young
    assert ledger.to_stop(young) is None
    young.give_back()
    assert ledger.reserve(old, Need(5 * MB), ROOMY) == Granted()
    assert ledger.to_stop(old) is middle


def test_a_source_with_over_half_gives_way() -> None:
    ledger = Ledger(caps(4))
    flights = [growing(ledger, key, MB) for key in "abcd"]
    for flight in flights:
        flight.growing = False
    other = ask(ledger, "x", source="t")
    assert isinstance(ledger.reserve(other, Need(MB), ROOMY), NotNow)
    assert ledger.to_stop(other) is flights[-1]


def test_a_prefetch_stops_no_demand() -> None:
    ledger = Ledger(caps(4))
    for key in "abcd":
        growing(ledger, key, MB).growing = False
    other = ask(ledger, "x", source="t", job="j")
    assert ledger.to_stop(other) is None


def test_min_free_counts_what_transfers_have_still_to_write() -> None:
    disk = Disk(100 * MB, 20 * MB, 0, 0)
    ledger = Ledger(caps(10, kept=10 * MB))
    first = ask(ledger, "a")
    assert ledger.reserve(first, Need(6 * MB), disk) == Granted()
    second = ask(ledger, "b")
    assert isinstance(ledger.reserve(second, Need(5 * MB), disk), NotNow)
    first.written = 2 * MB
    assert ledger.reserve(second, Need(5 * MB), Disk(100 * MB, 18 * MB, 0, 0)) == NotNow(0, 1)
    assert ledger.reserve(second, Need(4 * MB), Disk(100 * MB, 18 * MB, 0, 0)) == Granted()


def test_inodes_that_are_made_already_count_once() -> None:
    """What an unpacking transfer has made is on the disk: it is not to be made a second time."""
    disk = Disk(100 * MB, 50 * MB, 1000, 500)
    ledger = Ledger(caps(10, inodes=100))
    first = ask(ledger, "a")
    assert ledger.reserve(first, Need(MB, 300), disk) == Granted()
    first.made = 300
    disk = disk._replace(free_inodes=200)
    assert ledger.reserve(first, Need(MB, 400), disk) == Granted()
    assert ledger.reserve(ask(ledger, "b"), Need(MB, 1), disk) == NotNow(0, 1)
    first.give_back()
    assert ledger.reserve(ask(ledger, "b"), Need(MB, 100), disk) == Granted()


def test_others_have_filled_the_disk() -> None:
    disk = Disk(100 * MB, 5 * MB, 0, 0)
    ledger = filled(2, caps(10, kept=10 * MB))
    verdict = ledger.reserve(ask(ledger, "a"), Need(50 * MB), disk)
    assert verdict == DiskFull(55 * MB, 0, 5 * MB, 10 * MB)


def test_inodes_run_out() -> None:
    disk = Disk(100 * MB, 50 * MB, 100, 4)
    ledger = Ledger(caps(10, inodes=2))
    assert ledger.reserve(ask(ledger, "a"), Need(MB, 3), disk) == DiskFull(0, 1, 50 * MB, 0)
    assert ledger.reserve(ask(ledger, "b"), Need(MB, 3), disk._replace(inodes=0)) == Granted()


def test_surplus_goes_oldest_first_and_in_parts() -> None:
    ledger = filled(10, caps(10))
    ledger.caps = caps(4)
    assert [e.ref.key for e in ledger.surplus(4)] == ["old0", "old1", "old2", "old3"]
    assert [e.ref.key for e in ledger.surplus(4)] == ["old4", "old5"]
    assert ledger.surplus(4) == ()


def test_pages_go_by_source_and_key() -> None:
    ledger = Ledger(caps(9))
    for source, key in (("b", "2"), ("a", "1"), ("a", "10"), ("b", "1")):
        ledger.add(entry(key, 0.0, source=source))
    found = [tuple(e.ref) for e in ledger.page(None, "", None, 9)]
    assert found == [("a", "1"), ("a", "10"), ("b", "1"), ("b", "2")]
    assert [tuple(e.ref) for e in ledger.page(None, "", Ref("a", "10"), 1)] == [("b", "1")]
    assert [tuple(e.ref) for e in ledger.page("a", "10", None, 9)] == [("a", "10")]
    assert [tuple(e.ref) for e in ledger.page(None, "1", None, 9)] == [("a", "1"), ("a", "10"), ("b", "1")]


class _Unread(dict[Ref, Flight]):
    """Of which nobody looks at all."""

    def values(self) -> NoReturn:
        raise AssertionError("all flights were looked at")

    __iter__ = items = values  # type: ignore[assignment]


def test_flights_that_only_wait_cost_a_reservation_nothing() -> None:
    """Thousands may wait for a turn, and a few hold room."""
    ledger = Ledger(caps(2, 4 * MB))
    ledger.flights = _Unread()
    first, second, third = (ask(ledger, key) for key in "abc")
    assert ledger.reserve(first, Need(MB), ROOMY) == Granted()
    assert ledger.reserve(second, Need(2 * MB), ROOMY, rivals=True) == Yield()
    assert ledger.reserve(second, Need(2 * MB), ROOMY) == Granted()
    assert ledger.reserve(third, Need(MB), ROOMY) == NotNow(0, 2)
    assert ledger.to_stop(third) is None
    assert ledger.surplus(1) == ()
    assert not ledger.is_over()
    second.give_back()
    assert ledger.reserved == MB
    assert ledger.reserve(third, Need(3 * MB), ROOMY) == Granted()
    ledger.land(first)
    assert ledger.reserved == 3 * MB


def test_the_folder_was_removed() -> None:
    ledger = filled(3, caps(3))
    verdict = ledger.reserve(ask(ledger, "new"), Need(MB), ROOMY)
    assert isinstance(verdict, Evict)
    assert len(list(ledger.clear())) == 2
    ledger.put_back(verdict.victims[0])
    assert (len(ledger), ledger.bytes) == (0, 0)


def test_a_version_that_comes_back_after_its_successor_is_past() -> None:
    """It was to go, a reader held it, and meanwhile the next one was published."""
    ledger = filled(2, caps(4))
    old = ledger.get(Ref("s", "old0"))
    assert old is not None
    ledger.take_out(old)
    flight = ask(ledger, "old0")
    assert isinstance(ledger.reserve(flight, Need(MB), ROOMY), Granted)
    ledger.commit(flight, new := entry("old0", 9.0))
    ledger.put_back(old, busy=True)
    assert ledger.get(Ref("s", "old0")) is new
    assert ledger.past() == [old]
    assert len(ledger) == 3


# ---- random steps


class Walk(RuleBasedStateMachine):
    """Random asking, reserving, landing, eviction with every outcome, changing caps; the model counts by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(caps(4, 12 * MB))
        self.ready: list[Entry] = []
        self.busy: set[Entry] = set()
        self.trash: list[Entry] = []
        self.flights: list[Flight] = []
        self.clock = 0.0

    def _tick(self) -> float:
        self.clock += 1.0
        return self.clock

    # what the caps are held against

    def _shards(self) -> int:
        return len(self.ready) + sum(flight.slot for flight in self.flights)

    def _bytes(self) -> int:
        held = sum(flight.room.bytes for flight in self.flights)
        return sum(one.blocks for one in [*self.ready, *self.trash]) + held

    def _goes(self, one: Entry, outcome: str) -> None:
        self.ready.remove(one)
        if outcome == "evicted":
            self.ledger.trashed(one)
            self.trash.append(one)
        elif outcome == "gone":
            self.ledger.vanished(one)
        else:
            self.ledger.put_back(one, busy=True)
            self.ready.append(one)
            self.busy.add(one)

    def _evict(self, victims: tuple[Entry, ...], flight: Flight | None, data: st.DataObject) -> None:
        """What was chosen is the first of all that could go, in the order of last use."""
        own = flight.job if flight is not None and not flight.demand else None
        can = [e for e in self.ready if e not in self.busy and not self._pinned(e, flight)]
        can = [e for e in can if own is None or e.unread_of != own or (flight is not None and e.ref == flight.ref)]
        can.sort(key=lambda e: e.used)
        assert [e.used for e in victims] == [e.used for e in can[: len(victims)]]
        assert not self.busy & set(victims)
        for one in victims:
            self._goes(one, data.draw(st.sampled_from(["evicted", "evicted", "busy", "gone"])))

    def _pinned(self, one: Entry, flight: Flight | None) -> bool:
        """Whether the origin is being asked about it for others than this flight."""
        mine = flight is not None and one.ref == flight.ref
        return not mine and not one.past and one.ref in {other.ref for other in self.flights}

    def _latest(self, ref: Ref) -> Entry | None:
        return next((one for one in self.ready if one.ref == ref and not one.past), None)

    @rule(key=st.integers(0, 9), job=st.sampled_from([None, None, "j", "k"]), source=st.sampled_from("ab"))
    def join(self, key: int, job: str | None, source: str) -> None:
        """What is here may be joined for too: its origin is asked whether it changed."""
        ref = Ref(source, str(key))
        before = len(self.flights)
        known = next((flight for flight in self.flights if flight.ref == ref), None)
        waiters = known.waiters if known else 0
        flight, new = self.ledger.join(ref, job=job)
        assert new == (known is None)
        assert known is None or flight is known
        assert flight.waiters == waiters + 1
        assert flight.demand or job is not None
        if new:
            self.flights.append(flight)
        assert len(self.flights) == before + new

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        if flight.waiters and self.ledger.leave(flight):
            self.ledger.land(flight)
            self.flights.remove(flight)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), more=st.integers(1, 8 * MB), rivals=st.booleans())
    def reserve(self, data: st.DataObject, more: int, *, rivals: bool) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        need = Need(flight.room.bytes + more)
        before = flight.room
        verdict = self.ledger.reserve(flight, need, ROOMY, rivals=rivals)
        for _ in range(40):
            if not isinstance(verdict, Evict) or not verdict.victims:
                break
            self._evict(verdict.victims, flight, data)
            verdict = self.ledger.reserve(flight, need, ROOMY, rivals=rivals)
        limits = self.ledger.caps
        if isinstance(verdict, Granted):
            assert flight.slot
            assert flight.room == need
            assert not limits.max_shards or self._shards() <= limits.max_shards
            assert not limits.max_bytes or self._bytes() <= limits.max_bytes
        else:
            assert flight.room == before
        if isinstance(verdict, Never):
            assert need.bytes > limits.max_bytes > 0
        if isinstance(verdict, NotNow) and flight.demand:
            assert all(one in self.busy or self._pinned(one, flight) for one in self.ready)
        if isinstance(verdict, Displaces):
            mine = [one for one in self.ready if one.unread_of == flight.job]
            assert mine
            mine_flying = [
                o for o in self.flights if o.slot and o is not flight and o.job == flight.job and not o.demand
            ]
            shards = len(mine) + len(mine_flying) + 1
            size = sum(one.blocks for one in mine) + sum(o.room.bytes for o in mine_flying) + need.bytes
            assert (limits.max_shards and shards > limits.max_shards) or (limits.max_bytes and size > limits.max_bytes)

    @precondition(lambda self: any(flight.slot for flight in self.flights))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from([flight for flight in self.flights if flight.slot]))
        size = flight.room.bytes
        self.flights.remove(flight)
        before = self._latest(flight.ref)
        one = Entry(flight.ref, f"{flight.ref.key}@{self._tick()}", Stamp(0, 0, 0, 0), size, size, 3, self._tick())
        self.ledger.commit(flight, one)
        assert one.unread_of == (None if flight.demand else flight.job)
        self.ready.append(one)
        if before is not None:
            assert before.past
            self.busy.discard(before)
            assert before in self.ledger.past()

    @precondition(lambda self: any(one.past for one in self.ready))
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        """The origin has an earlier version again."""
        one = data.draw(st.sampled_from([one for one in self.ready if one.past]))
        other = self._latest(one.ref)
        self.ledger.revive(one, self._tick())
        self.busy -= {one, other}
        assert self.ledger.get(one.ref) is one
        assert other is None or other.past
        assert self.ledger.version(one.ref, one.name) is one

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        self.flights.remove(flight)
        self.ledger.land(flight)
        assert flight.ended

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.flights)).give_back()

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.ready))
        self.ledger.touch(one, self._tick())
        assert one.unread_of is None

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), outcome=st.sampled_from(["evicted", "busy", "gone"]))
    def evict_by_name(self, data: st.DataObject, outcome: str) -> None:
        one = data.draw(st.sampled_from(self.ready))
        self.busy.discard(one)
        self.ledger.take_out(one)
        assert not self.ledger.has(one)
        assert one.past or self.ledger.get(one.ref) is None
        self._goes(one, outcome)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.ready))
        self.ledger.resize(one, max(4096, one.blocks - 4096))

    @precondition(lambda self: self.trash)
    @rule()
    def delete(self) -> None:
        gone = self.trash.pop()
        self.ledger.deleted(Need(gone.blocks, gone.inodes))

    @rule()
    def recheck(self) -> None:
        self.ledger.recheck()
        self.busy.clear()

    @rule(data=st.data(), shards=st.integers(0, 6), size=st.integers(4, 20), most=st.integers(1, 4))
    def change_caps(self, data: st.DataObject, shards: int, size: int, most: int) -> None:
        """After a lower cap only the surplus goes, and all of it but what is leased."""
        self.ledger.caps = caps(shards, size * MB)
        while surplus := self.ledger.surplus(most):
            assert len(surplus) <= most
            held = sum(one.blocks for one in self.ready) + sum(flight.room.bytes for flight in self.flights)
            assert (shards and self._shards() > shards) or held > size * MB
            self._evict(surplus, None, data)
        if self.ledger.is_over():
            assert all(one in self.busy or self._pinned(one, None) for one in self.ready)

    @invariant()
    def counts(self) -> None:
        ledger = self.ledger
        assert len(ledger) == len(self.ready)
        latest = [one for one in self.ready if not one.past]
        assert {one.ref: one for one in latest} == {one.ref: one for one in ledger.entries()}
        assert set(ledger.past()) == {one for one in self.ready if one.past}
        assert ledger.bytes == sum(one.blocks for one in [*self.ready, *self.trash])
        assert ledger.reserved == sum(flight.room.bytes for flight in self.flights)
        assert ledger.leased == len(self.busy)
        assert list(ledger.flights.values()) == self.flights
        for source in "ab":
            mine = [one for one in self.ready if one.ref.source == source]
            assert ledger.per_source.get(source, [0, 0]) == [len(mine), sum(one.blocks for one in mine)]
        assert [e.ref for e in ledger.page(None, "", None, 99)] == sorted(one.ref for one in latest)


TestWalk = pytest.mark.timeout(180)(Walk.TestCase)
TestWalk.settings = settings(max_examples=60, stateful_step_count=50)


def test_who_is_needed_after_all_others_is_refused_at_the_first_look() -> None:
    """Not all that is here is looked through for each shard that a plan would like to have."""
    asked: list[Ref] = []

    def due(ref: Ref) -> float:
        asked.append(ref)
        return float(ref.key)

    ledger = Ledger(caps(50), due)
    for number in range(50):
        ledger.add(entry(str(number), 0.0))
    flight = ledger.join(Ref("s", "100"), job="plan p", ahead=True)[0]
    asked.clear()
    assert ledger.reserve(flight, Need(MB, 3), ROOMY) == Displaces()
    assert len(asked) < 10
    sooner = ledger.join(Ref("s", "30.5"), job="plan p", ahead=True)[0]
    assert keys(ledger.reserve(sooner, Need(MB, 3), ROOMY)) == ["49"]


def test_what_came_ahead_and_was_not_used_is_known_without_a_search() -> None:
    ledger = filled(3, caps(5))
    for one in list(ledger.entries()):
        ledger.announce(one, 5.0, "plan p")
    used, gone, left = ledger.entries()
    ledger.touch(used, 6.0)
    ledger.take_out(gone)
    assert ledger.unread() == [left]
    ledger.put_back(gone)
    assert ledger.unread() == [left, gone]


def test_there_is_a_place_where_something_may_go_for_it() -> None:
    """For what comes ahead: nothing that is needed sooner goes, and nothing that was brought for a plan and not read."""
    due = {"soon": 1.0, "old": 5.0, "new": 3.0, "late": 9.0}
    ledger = Ledger(caps(2), lambda ref: due.get(ref.key, math.inf))
    assert ledger.has_place(Ref("s", "late"))
    for key in ("soon", "old"):
        ledger.add(entry(key, 0.0))
    assert ledger.has_place(Ref("s", "new")), "the old one is needed later"
    assert not ledger.has_place(Ref("s", "late"))
    ledger.protected = {"plan p"}
    old = ledger.get(Ref("s", "old"))
    assert old is not None
    ledger.announce(old, 0.0, "plan p")
    assert not ledger.has_place(Ref("s", "new")), "it was not read yet"
    assert len(keys(ledger.reserve(ask(ledger, "new"), Need(MB, 1), ROOMY))) == 1, "the order is as it was"
