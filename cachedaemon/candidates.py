"""What may go for whom, and what goes first. Pure: no clock, no disk, no await.

What a reader held when it was last tried is `busy`, out of the order until `recheck`; every shard of the index is in the
order or busy, and what has been chosen is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from cachedaemon.entries import Entry, Flight, Short
from cachedaemon.model import Ref
from cachedaemon.policy import Order


class Candidates:
    """The shards that may go. `flights`: those that are under way; `next_use`: when a shard is used next, infinite for never."""

    def __init__(self, flights: Mapping[Ref, Flight], next_use: Callable[[Ref], float]) -> None:
        self._flights = flights
        self._next_use = next_use
        self._order: Order[Entry] = Order(lambda entry: next_use(entry.ref))
        self.busy: set[Entry] = set()

    def add(self, entry: Entry) -> None:
        """A shard may go."""
        self._order.add(entry)

    def put_aside(self, entry: Entry) -> None:
        """A reader holds a shard that was to go."""
        self.busy.add(entry)

    def discard(self, entry: Entry) -> None:
        """A shard is not here any more, or not as it was."""
        self._order.discard(entry)
        self.busy.discard(entry)

    def moved(self, entry: Entry) -> None:
        """The last or next use of a shard is another than before."""
        self._order.moved(entry)

    def recheck(self) -> None:
        """What was leased may be free by now."""
        for entry in self.busy:
            self._order.add(entry)
        self.busy.clear()

    def choose(
        self, flight: Flight, short: Short, protected: AbstractSet[str], most: int | None = None
    ) -> tuple[list[Entry], bool]:
        """Enough to make up for what is short, or all that can go; and whether the flight's own job kept some."""
        chosen: list[Entry] = []
        unread: list[Entry] = []
        own = False
        if not short.any():
            return chosen, own
        ahead = flight.ahead and not flight.demand
        due = self._next_use(flight.ref) if ahead else math.inf
        for entry in self._order.first_to_go():
            mine = entry.ref == flight.ref  # the version that this flight replaces
            if ahead and self._next_use(entry.ref) < due:
                own = True  # and so are all that follow
                break
            if not mine and self._is_kept_from(flight, entry, protected):
                own = True
                unread.append(entry)
            elif mine or entry.past or not self._is_asked_for(entry):
                self._take(entry, chosen, short)
            if not short.any() or len(chosen) == most:
                break
        if flight.demand:
            self._take_unread(unread, chosen, short)
        return chosen, own

    def _take_unread(self, unread: list[Entry], chosen: list[Entry], short: Short) -> None:
        for entry in unread:
            if not short.any():
                return
            if not self._is_asked_for(entry):
                self._take(entry, chosen, short)

    def _take(self, entry: Entry, chosen: list[Entry], short: Short) -> None:
        self._order.discard(entry)
        chosen.append(entry)
        short.take(entry)

    def has_any(self, flight: Flight, protected: AbstractSet[str]) -> bool:
        """Whether something may go for a flight that fetches ahead."""
        due = self._next_use(flight.ref)
        for entry in self._order.first_to_go():
            if not self._is_kept_from(flight, entry, protected) and (entry.past or not self._is_asked_for(entry)):
                return True
            if self._next_use(entry.ref) < due:  # and so are all that follow
                return False
        return False

    def _is_kept_from(self, flight: Flight, entry: Entry, protected: AbstractSet[str]) -> bool:
        """Whether a shard must not go for this flight; for a demand it goes when nothing else can."""
        if entry.unread_of in protected:
            return True
        if flight.demand or flight.job is None:
            return False
        due = self._next_use(entry.ref) if flight.ahead else math.inf
        return entry.unread_of == flight.job or (due < math.inf and due <= self._next_use(flight.ref))

    def _is_asked_for(self, entry: Entry) -> bool:
        """Whether a flight may give this version out; one that replaces it may wait for room behind the asker."""
        flight = self._flights.get(entry.ref)
        return flight is not None and not flight.replaces
