"""Room that flights hold until their shards are published, and how it is divided among sources. Pure: no clock, no disk, no await."""

from __future__ import annotations

from collections.abc import Iterable

from cachedaemon.entries import Flight
from cachedaemon.model import Caps, Need


class Reservations:
    """The flights that were granted room. A source may hold half of the cap while another waits."""

    def __init__(self) -> None:
        self._granted: set[Flight] = set()
        """Now or before: a try that failed may have given it back. Few, while any number waits."""

    def grant(self, flight: Flight, need: Need) -> None:
        """A flight has so much room, in the place of what it had."""
        flight.room, flight.slot = need, True
        self._granted.add(flight)

    def end(self, flight: Flight) -> None:
        """A flight is over: what it held is free, or its shard's."""
        self._granted.discard(flight)

    @property
    def bytes(self) -> int:
        """All that are reserved, on the disk already or not."""
        return sum([flight.room.bytes for flight in self._granted])

    def __len__(self) -> int:
        """Flights that hold room."""
        return len(self.holding())

    def holding(self) -> list[Flight]:
        """Flights that hold room."""
        return [flight for flight in self._granted if flight.slot]

    def is_over_half(self, flight: Flight, need: Need, caps: Caps) -> bool:
        """Whether with `need` for a flight its source would hold over half of the cap; one flight of it may."""
        others = [o for o in self.holding() if o.ref.source == flight.ref.source and o is not flight]
        return bool(others) and _is_over_half(caps, len(others) + 1, _bytes(others) + need.bytes)

    def to_stop(self, flight: Flight, caps: Caps) -> Flight | None:
        """Which transfer to stop for a flight that finds nothing to evict; None: it waits.

        For one that grows, the youngest other that grows; else the youngest of a source that holds over half of the cap.
        A prefetch stops no demand.
        """
        holding = [o for o in self.holding() if o is not flight and not o.ended]
        if flight.slot:
            stoppable = [o for o in holding if o.growing and o.rank > flight.rank]
        else:
            others = [o for o in holding if o.ref.source != flight.ref.source and _hogs(o.ref.source, holding, caps)]
            stoppable = [o for o in others if flight.demand or not o.demand]
        return max(stoppable, key=lambda o: o.rank, default=None)


def _hogs(source: str, holding: list[Flight], caps: Caps) -> bool:
    mine = [o for o in holding if o.ref.source == source]
    return len(mine) > 1 and _is_over_half(caps, len(mine), _bytes(mine))


def _bytes(flights: Iterable[Flight]) -> int:
    return sum([flight.room.bytes for flight in flights])


def _is_over_half(caps: Caps, shards: int, room: int) -> bool:
    by_shards = bool(caps.max_shards) and shards > max(1, caps.max_shards // 2)
    return by_shards or (bool(caps.max_bytes) and room > caps.max_bytes // 2)
