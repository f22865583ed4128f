"""What is published, reserved and leaving: the one index of the cache. Pure: no clock, no disk, no await.

Not thread-safe: the cache owns it, on the loop. Every method decides at once and returns what is to be done on the disk;
whoever does it reports the outcome here. Every shard is counted in exactly one of the index (published or suspect), the
reservations (coming), and the departures (chosen to go and not renamed yet, or in trash, its bytes not free yet), so that
no reservation can pass the caps in between.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, KeysView
from dataclasses import replace

from cachedaemon.candidates import Candidates
from cachedaemon.departures import Departures
from cachedaemon.entries import DiskFull, Displaces, Entry, Evict, Flight, Granted, Never, NotNow, Short, Verdict, Yield
from cachedaemon.model import Caps, Disk, Need, Ref
from cachedaemon.reservations import Reservations

EXPOSED = "nobody's"
"""What marks unread shards that are no plan's and no job's any more."""


class Ledger:
    """The index. See the module for what counts where."""

    def __init__(self, caps: Caps, next_use: Callable[[Ref], float] = lambda _: math.inf) -> None:
        """`next_use`: when a shard is used next by all plans, where that counts; infinite for never."""
        self.caps = caps
        self.protected: set[str] = set()
        """What marks unread shards that were fetched for plans that run: they go last, and for no other prefetch."""
        self.flights: dict[Ref, Flight] = {}
        self._reservations = Reservations()
        self.per_source: dict[str, list[int]] = {}
        """Shards and bytes of each source that are published; what is to go counts until it has gone."""
        self._ready: dict[Ref, Entry] = {}
        self._unread: dict[Entry, None] = {}
        """Those that were brought ahead and not used yet, in the order of their coming."""
        self._past: set[Entry] = set()
        """Earlier versions, which stay at their paths until nobody holds them."""
        self._candidates = Candidates(self.flights, next_use)
        self._departures = Departures()
        self._sorted: list[Ref] | None = None
        self._orders = 0
        self._bytes = 0

    # ---- what is here

    def __len__(self) -> int:
        """Published and suspect shards, each version; one that is to go counts until it has gone."""
        return self._here + len(self._departures)

    @property
    def _here(self) -> int:
        return len(self._ready) + len(self._past)

    @property
    def bytes(self) -> int:
        """Allocated bytes: published, leaving and in trash; reservations are not counted."""
        return self._bytes + self._departures.bytes

    @property
    def reserved(self) -> int:
        """Bytes that flights have reserved."""
        return self._reservations.bytes

    @property
    def leased(self) -> int:
        """Shards that a reader held when they were last tried."""
        return len(self._candidates.busy)

    def get(self, ref: Ref) -> Entry | None:
        """The shard, if it is published or suspect: its latest version."""
        return self._ready.get(ref)

    def version(self, ref: Ref, name: str) -> Entry | None:
        """The version of a shard that is published under this name, be it an earlier one."""
        latest = self._ready.get(ref)
        if latest is not None and latest.name == name:
            return latest
        return next((entry for entry in self._past if entry.ref == ref and entry.name == name), None)

    def entries(self) -> Iterator[Entry]:
        """All shards, in no order."""
        return iter(self._ready.values())

    def refs(self) -> frozenset[Ref]:
        """What is here now, to be kept for long."""
        return frozenset(self._ready)

    def present(self) -> KeysView[Ref]:
        """What is here now, or on its way. As cheap as it can be, since the loop stands still meanwhile; not to be kept."""
        return (self._ready | self.flights).keys()

    def unread(self) -> list[Entry]:
        """Of these, what was brought ahead and not used yet."""
        return [entry for entry in self._unread if not entry.past]

    def past(self) -> list[Entry]:
        """Earlier versions that are here still."""
        return list(self._past)

    def page(self, source: str | None, prefix: str, after: Ref | None, limit: int) -> list[Entry]:
        """Shards in the order of source and key, after a place."""
        if self._sorted is None:
            self._sorted = sorted(self._ready)
        start = bisect.bisect_right(self._sorted, after) if after else 0
        start = max(start, bisect.bisect_left(self._sorted, Ref(source, prefix)) if source else 0)
        found: list[Entry] = []
        for ref in self._sorted[start:]:
            if len(found) >= limit or (source is not None and ref.source != source):
                break
            if ref.key.startswith(prefix):
                found.append(self._ready[ref])
            elif source is not None:
                break
        return found

    def add(self, entry: Entry) -> None:
        """A shard is published (or was found at start)."""
        self._index(entry)
        self._candidates.add(entry)
        self._count(entry, 1)

    def supersede(self, entry: Entry) -> None:
        """Nobody is sent to this version any more. It goes before all others, once nobody holds it."""
        if not self.has(entry) or entry.past:
            return
        self._unindex(entry)
        entry.past, entry.used = True, -math.inf
        self._index(entry)
        self._candidates.add(entry)

    def revive(self, entry: Entry, used: float) -> None:
        """The origin has an earlier version again: it is the latest now, in the place of the other."""
        if not entry.past:
            return
        if (latest := self._ready.get(entry.ref)) is not None:
            self.supersede(latest)
        self._unindex(entry)
        entry.past, entry.used = False, used
        self._index(entry)
        self._candidates.add(entry)

    def has(self, entry: Entry) -> bool:
        """Whether it is here, and not about to go."""
        return entry in self._past or self._ready.get(entry.ref) is entry

    def _index(self, entry: Entry) -> None:
        if entry.past:
            self._past.add(entry)
        else:
            assert entry.ref not in self._ready
            self._ready[entry.ref] = entry
            self._sorted = None
        if entry.unread_of is not None:
            self._unread[entry] = None
        self._bytes += entry.blocks

    def _unindex(self, entry: Entry) -> None:
        if entry.past:
            self._past.remove(entry)
        else:
            del self._ready[entry.ref]
            self._sorted = None
        self._unread.pop(entry, None)
        self._bytes -= entry.blocks
        self._candidates.discard(entry)

    def _count(self, entry: Entry, sign: int) -> None:
        totals = self.per_source.setdefault(entry.ref.source, [0, 0])
        totals[0] += sign
        totals[1] += sign * entry.blocks

    def resize(self, entry: Entry, blocks: int) -> None:
        """A shard takes so many bytes, as is known better now; what is about to go keeps what it was counted for."""
        if self.has(entry):
            self._count(entry, -1)
            self._bytes += blocks - entry.blocks
            entry.blocks = blocks
            self._count(entry, 1)

    def replanned(self, moved: Iterable[Ref]) -> None:
        """The last or next uses of these shards are others than before."""
        for ref in moved:
            if (entry := self._ready.get(ref)) is not None:
                self._candidates.moved(entry)

    def touch(self, entry: Entry, used: float) -> None:
        """A shard was used at that time."""
        entry.used = max(entry.used, used)
        entry.unread_of = None
        self._unread.pop(entry, None)

    def announce(self, entry: Entry, at: float, job: str) -> None:
        """Somebody will want a shard soon: it counts as just used and unread, as if the job had brought it now."""
        entry.used = max(entry.used, at)
        entry.unread_of = job
        if self.has(entry):
            self._unread[entry] = None

    def expose(self, entry: Entry) -> None:
        """An unread shard is one like others from now on: its user has more of them than its share."""
        entry.unread_of = EXPOSED

    # ---- flights

    def join(self, ref: Ref, *, job: str | None = None, ahead: bool = False) -> tuple[Flight, bool]:
        """Wait for a shard: its flight, and whether it is new. The waiter is counted before it waits.

        A demand that joins a prefetch turns it into a demand, in the place of its own asking.
        """
        self._orders += 1
        demand = job is None
        flight = self.flights.get(ref)
        new = flight is None
        if flight is None:
            flight = self.flights[ref] = Flight(ref, self._orders, demand, job, ahead, number=self._orders)
        elif demand and not flight.demand:
            flight.promote(self._orders)
        flight.waiters += 1
        return flight, new

    def leave(self, flight: Flight) -> bool:
        """A waiter goes; whether it was the last."""
        flight.waiters -= 1
        return flight.waiters == 0

    def land(self, flight: Flight) -> None:
        """The flight is over, one way or the other: its reservation is given back."""
        flight.ended = True
        if self.flights.get(flight.ref) is flight:
            del self.flights[flight.ref]
        self._reservations.end(flight)

    def commit(self, flight: Flight, entry: Entry) -> None:
        """The flight's shard is published; an earlier version makes way."""
        entry.unread_of = None if flight.demand else flight.job
        self.land(flight)
        if (before := self._ready.get(entry.ref)) is not None:
            self.supersede(before)
        self.add(entry)

    # ---- room

    def reserve(self, flight: Flight, need: Need, disk: Disk, *, rivals: bool = False) -> Verdict:
        """Reserve room for a flight: `need` in all, on top of nothing or of what it has. `rivals`: another source waits."""
        if refused := self._never(need, disk):
            return refused
        if rivals and self._reservations.is_over_half(flight, need, self.caps):
            return Yield()
        short = self._short(flight, need, disk)
        if not short.any():
            self._reservations.grant(flight, need)
            return Granted()
        return self._make_room(flight, short, disk)

    def _never(self, need: Need, disk: Disk) -> Never | None:
        if self.caps.max_bytes and need.bytes > self.caps.max_bytes:
            return Never(need.bytes, "cache.max_bytes", self.caps.max_bytes)
        usable = disk.total - self.caps.min_free.of(disk.total)
        if need.bytes > usable:
            return Never(need.bytes, "the file system less cache.min_free", usable)
        return None

    def _short(self, flight: Flight, need: Need, disk: Disk) -> Short:
        """What is missing, before anything goes; negative where there is room to spare."""
        caps, flights = self.caps, self._reservations.holding()
        more, nodes = need.bytes - flight.room.bytes, need.inodes - flight.room.inodes
        shards = len(self) + len(flights) + (not flight.slot) - caps.max_shards if caps.max_shards else -1
        pending = sum([max(0, other.room.bytes - other.written) for other in flights])
        room = pending + more - (disk.free - caps.min_free.of(disk.total))
        if caps.max_bytes:
            room = max(room, self.bytes + self.reserved + more - caps.max_bytes)
        inodes = -1
        if disk.inodes:
            kept = caps.min_free.of_inodes(disk.inodes, disk.total)
            to_make = sum([max(0, other.room.inodes - other.made) for other in flights])
            inodes = nodes + to_make - (disk.free_inodes - kept)
        return Short(shards, room, inodes)

    def _make_room(self, flight: Flight, short: Short, disk: Disk) -> Verdict:
        if short.bytes > self.bytes + self.reserved - flight.room.bytes:
            return self._disk_full(short, disk)
        self._departures.relieve(short)
        if not short.any():
            return Evict(())
        victims, own = self._victims(flight, short)
        if short.any() and (not flight.demand or not victims):
            for entry in victims:
                self.put_back(entry)
            return self._nothing_goes(flight, short, disk, own=own)
        return Evict(tuple(victims))

    def _nothing_goes(self, flight: Flight, short: Short, disk: Disk, *, own: bool) -> Verdict:
        if flight.ahead and not flight.demand:
            return Displaces()  # its plan decides anew what comes next
        if own and not flight.demand and not self._could_go_later(flight, short):
            return Displaces()
        flying = len(self._reservations) - flight.slot
        if not self._here and not flying and short.shards <= 0:
            return self._disk_full(short, disk)
        return NotNow(self.leased, flying)

    def _could_go_later(self, flight: Flight, short: Short) -> bool:
        """Whether a prefetch gets room without displacing its own, once leases have ended and other transfers landed."""
        short = replace(short)
        for entry in self._ready.values():
            if entry.unread_of != flight.job and (entry in self._candidates.busy or entry.ref in self.flights):
                short.take(entry)
        for other in self._reservations.holding():
            if other is not flight and (other.demand or other.job != flight.job):
                short.shards -= 1
                short.bytes -= other.room.bytes
                short.inodes -= other.room.inodes
        return not short.any()

    def _disk_full(self, short: Short, disk: Disk) -> DiskFull:
        return DiskFull(max(0, short.bytes), max(0, short.inodes), disk.free, self.caps.min_free.of(disk.total))

    def _victims(self, flight: Flight, short: Short, most: int | None = None) -> tuple[list[Entry], bool]:
        """Shards that have left the index, enough or all that can go; and whether the flight's own job kept some."""
        victims, own = self._candidates.choose(flight, short, self.protected, most)
        for entry in victims:
            self._leave(entry)
        return victims, own

    def to_stop(self, flight: Flight) -> Flight | None:
        """Which transfer to stop for a flight that finds nothing to evict; None: it waits."""
        return self._reservations.to_stop(flight, self.caps)

    # ---- going

    def surplus(self, most: int) -> tuple[Entry, ...]:
        """What must go because a cap was lowered, and is not known to be leased; `most` at once."""
        caps = self.caps
        flying = len(self._reservations)
        shards = len(self) + flying - caps.max_shards if caps.max_shards else -1
        room = self._bytes + self.reserved - caps.max_bytes if caps.max_bytes else -1
        short = Short(shards - len(self._departures), room, -1)
        nobody = Flight(Ref("", ""), 0, demand=True)
        return tuple(self._victims(nobody, short, most)[0])

    def fits(self) -> int:
        """Shards that there is room for: by a byte cap as many as are of the usual size."""
        caps = self.caps
        by_bytes = caps.max_bytes * len(self) // max(1, self.bytes) if caps.max_bytes and len(self) else caps.max_shards
        return max(1, min(caps.max_shards or by_bytes, by_bytes))

    def has_place(self, ref: Ref) -> bool:
        """Whether a shard of the usual size may find room ahead; where nothing can go for it, its origin need not be asked."""
        caps, usual = self.caps, self.bytes // max(1, len(self))
        crowded = bool(caps.max_shards) and len(self) + len(self._reservations) >= caps.max_shards
        crowded |= bool(caps.max_bytes) and self.bytes + self.reserved + usual > caps.max_bytes
        if not crowded or self._candidates.busy or self._departures.are_coming_back():
            return True
        return self._candidates.has_any(Flight(ref, 0, demand=False, job="", ahead=True), self.protected)

    def is_over(self) -> bool:
        """Whether the caps are passed by what is here (they were lowered, and readers hold it)."""
        caps = self.caps
        flying = len(self._reservations)
        shards = bool(caps.max_shards) and self._here + flying > caps.max_shards
        return shards or (bool(caps.max_bytes) and self._bytes + self.reserved > caps.max_bytes)

    def take_out(self, entry: Entry) -> None:
        """A shard is chosen to go by name."""
        if self.has(entry):
            self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        self._unindex(entry)
        self._departures.add(entry)

    def put_back(self, entry: Entry, *, busy: bool = False) -> None:
        """A shard that was to go stays: somebody holds it, or it was not needed."""
        if not self._departures.end(entry):
            return
        if entry.ref in self._ready:  # another version came meanwhile
            entry.past, entry.used = True, -math.inf
        self._index(entry)
        if busy:
            self._candidates.put_aside(entry)
        else:
            self._candidates.add(entry)

    def trashed(self, entry: Entry) -> None:
        """A shard was renamed to trash: it counts as a shard no more, its bytes until `deleted`."""
        self.vanished(entry)
        self.leftover(Need(entry.blocks, entry.inodes))

    def vanished(self, entry: Entry) -> None:
        """A shard that was to go was not there."""
        if self._departures.end(entry):
            self._count(entry, -1)

    def leftover(self, room: Need) -> None:
        """Something is in trash, of which the index does not know (any more)."""
        self._departures.leftover(room)

    def deleted(self, gone: Need) -> None:
        """Room in trash is free again."""
        self._departures.deleted(gone)

    def stuck(self, room: Need) -> None:
        """Something in trash cannot be deleted at present: nobody should wait for its room instead of evicting."""
        self._departures.stuck(room)

    def unstuck(self, room: Need) -> None:
        """Its deletion is tried again."""
        self._departures.unstuck(room)

    def recheck(self) -> None:
        """What was leased may be free by now."""
        self._candidates.recheck()

    def clear(self) -> Iterable[Entry]:
        """The cache directory was removed: nothing is here any more."""
        gone = [*self._ready.values(), *self._past]
        for entry in gone:
            self._leave(entry)
        for entry in self._departures.leaving():
            self.vanished(entry)
        self._departures.empty_trash()
        return gone
