"""What a node does right now, for a person: what the page and `cachedaemon top` show. Pure: no await, no clock, no disk.

Whatever the cache holds, what is shown has an upper bound: a large cache is a map of groups of shards, lists have a first part
and a number, and long keys lose their middle. Names are source and key; no URL is in it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cachedaemon.entries import Entry, Flight
from cachedaemon.ledger import Ledger
from cachedaemon.model import Ref
from cachedaemon.plans import Plan, Plans

SINGLE = 600
"""Shards up to which each has a place of its own on the map."""
GROUPS = 400
"""Groups of shards on the map of a cache that holds more."""
LISTED = 40
"""Transfers, plans and shards to come that are listed at the most."""
SOON = 64
"""Uses ahead of a plan that count as soon."""
SOON_IN_ALL = 2048
"""Those of all plans together."""
LOOKED_AT = SINGLE
"""Shards whose leases are looked at, at the most: of a large cache those that were used last."""
LATELY = 60.0
"""Seconds since its use within which a shard of a large cache is looked at."""
LONGEST = 160
"""Characters of a key that are shown."""

LEASED, UNREAD, WANTED, RESIDENT, SUSPECT = "lusrx"
"""States on the map: a reader holds it; fetched ahead and not read yet; wanted soon; none of these; to be checked."""


def short(key: str) -> str:
    """A key as it is shown: of a long one the beginning and the end."""
    return key if len(key) <= LONGEST else f"{key[: LONGEST // 2]}…{key[-LONGEST // 2 + 1 :]}"


def soon(plans: Plans) -> dict[Ref, float]:
    """The next uses of all plans that run, with their times by the daemon's own clock."""
    found: dict[Ref, float] = {}
    for plan in plans.running():
        for index, key in itertools.islice(plan.course.ahead(), SOON):
            ref, when = Ref(plan.source, key), plan.when(index)
            found[ref] = min(when, found.get(ref, when))
        if len(found) >= SOON_IN_ALL:
            break
    return found


class Survey:
    """One look at all shards, a part at a time: in the order of their coming, alone or in groups."""

    def __init__(self, entries: Sequence[Entry], wanted: Collection[Ref], ahead: Collection[str | None]) -> None:
        """`wanted`: soon; `ahead`: what marks unread shards that were fetched for plans."""
        self.entries = entries
        self.each = 1 if len(entries) <= SINGLE else -(-len(entries) // GROUPS)
        """Shards of a group."""
        self._wanted = wanted
        self._ahead = ahead
        self._states: dict[int, str] = {}
        """Of those that are more than resident, by place."""
        self._lately: list[tuple[float, int]] = []

    def take(self, start: int, stop: int, since: float, held: Collection[Ref]) -> None:
        """Look at a part. `since`: uses after that are recent; `held`: what was leased when it was last looked at."""
        wanted, ahead, states, alone = self._wanted, self._ahead, self._states, self.each == 1
        for place, entry in enumerate(self.entries[start:stop], start):
            if entry.suspect:
                states[place] = SUSPECT
                continue
            ref = entry.ref
            if entry.unread_of is not None and entry.unread_of in ahead:
                states[place] = UNREAD
            elif ref in wanted:
                states[place] = WANTED
            if alone or entry.used >= since or ref in held:
                self._lately.append((entry.used, place))

    def to_look_at(self) -> list[Entry]:
        """Whose leases are to be looked at: all of a small cache."""
        return [self.entries[place] for _, place in heapq.nlargest(LOOKED_AT, self._lately)]

    def cells(self, leased: Collection[Ref]) -> dict[str, Any]:
        """The map: a row for each shard, with its state; or counts for each group."""
        for _, place in self._lately:
            if self.entries[place].ref in leased:
                self._states[place] = LEASED
        if self.each == 1:
            rows = [
                [entry.ref.source, short(entry.ref.key), self._states.get(place, RESIDENT), entry.size]
                for place, entry in enumerate(self.entries)
            ]
            return {"each": 1, "shards": rows}
        return {"each": self.each, "groups": list(self._groups())}

    def _groups(self) -> Iterator[list[int]]:
        """Of each group: how many shards, and how many of them are leased, unread, wanted soon, to be checked."""
        counts = [[0, 0, 0, 0, 0] for _ in range(0, len(self.entries), self.each)]
        for number, group in enumerate(counts):
            group[0] = min(self.each, len(self.entries) - number * self.each)
        for place, state in self._states.items():
            counts[place // self.each][1 + "lusx".index(state)] += 1
        yield from counts


def readers(flight: Flight) -> int:
    """How many requests wait for a shard on its way. The prefetch that began a transfer waits for it too, and is none."""
    return max(0, flight.waiters - (flight.job is not None)) if flight.demand else 0


def transfers(flights: Mapping[Ref, Flight]) -> list[dict[str, Any]]:
    """What is under way, and how many wait for it: those with most waiters and the oldest first."""
    first = heapq.nsmallest(LISTED, flights.values(), key=lambda one: (-readers(one), one.rank))
    return [
        {
            "source": one.ref.source,
            "key": short(one.ref.key),
            "bytes": one.arrived,
            "size": one.size,
            "for": "reader" if one.demand else "plan" if one.ahead else "prefetch",
            "waiters": readers(one),
            "room": one.slot,
            "state": _state(one),
        }
        for one in first
    ]


def _state(flight: Flight) -> str:
    """Where a transfer is: it waits for its turn or room, its last try failed, or it comes."""
    if flight.line is not None:
        return "waiting"
    if flight.cause is not None and not flight.arrived:
        return f"failing: {getattr(flight.cause, 'code', 'unknown')}"
    return "arriving" if flight.size is not None and flight.arrived >= flight.size else "coming"


def courses(plans: Plans, ledger: Ledger) -> list[dict[str, Any]]:
    """Plans in the order of their making, and how many of the next uses of each are here without a gap."""
    return [
        {
            "id": plan.id,
            "source": plan.source,
            "keys": plan.keys,
            "position": plan.position,
            "state": "idle" if plan.idle else "running",
            "pace": round(1 / plan.gap, 3) if plan.gap else None,
            "ready": _ready(plan, ledger),
        }
        for plan in itertools.islice(plans, LISTED)
    ]


def _ready(plan: Plan, ledger: Ledger) -> int:
    uses = itertools.islice(plan.course.ahead(), SOON)
    here = itertools.takewhile(lambda use: ledger.get(Ref(plan.source, use[1])) is not None, uses)
    return sum(1 for _ in here)


def to_come(wanted: Mapping[Ref, float], ledger: Ledger, now: float) -> list[dict[str, Any]]:
    """What plans want next and neither is here nor on its way: the soonest first, with the seconds until then."""
    missing = ((when, ref) for ref, when in wanted.items() if ledger.get(ref) is None and ref not in ledger.flights)
    return [
        {"source": ref.source, "key": short(ref.key), "in": round(max(0.0, when - now), 1)}
        for when, ref in heapq.nsmallest(LISTED, missing)
    ]
