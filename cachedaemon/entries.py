"""What the ledger keeps account of, shards and flights, and what it decides. Pure: no clock, no disk, no await."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from cachedaemon.model import Need, Ref, Stamp

Place = tuple[float, float, int]
"""In the order of eviction: by next use, the farthest first; by last use; by arrival."""


@dataclass(slots=True, eq=False)
class Entry:
    """A published shard, or a suspect one that has still to prove its digest."""

    ref: Ref
    name: str
    stamp: Stamp
    size: int
    blocks: int
    inodes: int
    used: float
    place: Place | None = None
    unread_of: str | None = None
    """The prefetch job that brought it, as long as nobody has read it."""
    suspect: bool = False
    checked: bool = True
    """False for what was found at start, until its size was compared with its meta file."""
    asked: float = -math.inf
    """When the origin was last known to have this version; of a source that asks it again."""
    past: bool = False
    """Another version has taken its place: nobody is sent to it any more, and it goes when nobody holds it."""


Rank = tuple[bool, bool, int]


@dataclass(slots=True, eq=False)
class Flight:
    """A shard on its way, and how many wait for it."""

    ref: Ref
    order: int
    """Place in the order of asking."""
    demand: bool
    job: str | None = None
    ahead: bool = False
    """Begun for a plan: it displaces nothing that is needed sooner."""
    waiters: int = 0
    ended: bool = False
    """Nobody can join any more."""
    room: Need = field(default_factory=lambda: Need(0, 0))
    slot: bool = False
    """Whether it counts as a shard against `max_shards`."""
    growing: bool = False
    """Its size is not known beforehand."""
    written: int = 0
    """Bytes of its room that are on the disk already."""
    made: int = 0
    """Inodes of its room likewise, of what is unpacked."""
    arrived: int = 0
    """Bytes of the object that have come in this try."""
    size: int | None = None
    """Bytes, as the origin announced in the last try."""
    asked: float = -math.inf
    """When the origin was last asked."""
    replaces: bool = False
    """Whether the origin has another version than the one that is here, to which nobody is sent any more then."""
    wanted: Need | None = None
    """Room to wait for before the origin is asked again."""
    cause: Exception | None = None
    """Why the last try failed."""
    had: int = 0
    """Bytes that had come by then."""
    failed: float = 0
    """Failures in a row; what `fetch.LATER` says counts for less."""
    in_parts: bool = True
    """False once the origin sent something else when it was asked for a part, be it of what seems another version.

    Servers of a farm may each have a tag of their own for the same bytes: asked for parts, they would never agree.
    """
    number: int = 0
    """What its lines in the log go by."""
    line: Line | None = None
    """Where it stands, if it waits in one."""

    def empty(self) -> None:
        """Nothing of a try is on the disk (any more)."""
        self.written = self.made = self.arrived = self.had = 0

    def give_back(self) -> None:
        """Start anew: the reservation ends, the place in the order stays."""
        self.room, self.slot, self.growing = Need(0, 0), False, False
        self.empty()

    def promote(self, order: int) -> None:
        """A demand has joined a prefetch: it is one now, in the place of that asking, also where it stands in a line."""
        line = self.line
        if line is not None:
            line.remove(self)
        self.demand, self.order = True, order
        if line is not None:
            line.add(self)

    @property
    def held_up_by(self) -> Exception | None:
        """The failure since which nothing has come."""
        return self.cause if self.arrived <= self.had else None

    @property
    def rank(self) -> Rank:
        """Who holds room goes first, since others wait for it; demand before prefetch; then the order of asking."""
        return (not self.slot, not self.demand, self.order)


class Line:
    """Flights that wait for the same thing, in the order of their rank and by source. A step is as cheap with thousands."""

    def __init__(self) -> None:
        self._ranks: dict[str, list[Rank]] = {}
        """Of each source whose flights wait, in order."""
        self._flights: dict[Rank, Flight] = {}
        self._places: dict[Flight, Rank] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, flight: Flight) -> bool:
        return flight in self._places

    def add(self, flight: Flight) -> None:
        """A flight begins to wait. What it is ranked by changes only with `Flight.promote` as long as it stands here."""
        rank = self._places[flight] = flight.rank
        self._flights[rank] = flight
        bisect.insort(self._ranks.setdefault(flight.ref.source, []), rank)
        flight.line = self

    def remove(self, flight: Flight) -> None:
        """A flight goes, if it stands here."""
        rank = self._places.pop(flight, None)
        if rank is None:
            return
        del self._flights[rank]
        ranks = self._ranks[flight.ref.source]
        del ranks[bisect.bisect_left(ranks, rank)]
        if not ranks:
            del self._ranks[flight.ref.source]
        flight.line = None

    def first(self, passed_over: Callable[[str], bool]) -> Flight | None:
        """Whose turn it is, among the sources that are not passed over."""
        heads = [ranks[0] for source, ranks in self._ranks.items() if not passed_over(source)]
        return self._flights[min(heads)] if heads else None

    def has_others(self, source: str) -> bool:
        """Whether flights of another source wait."""
        return any(other != source for other in self._ranks)

    def has_demand(self, *, but: str | None = None) -> bool:
        """Whether demands wait, of any source or of any but one."""
        return any(_with_demand(ranks) for source, ranks in self._ranks.items() if source != but)


def _with_demand(ranks: list[Rank]) -> bool:
    """Demands lead two parts of the order: that of those who hold room, and that of the others."""
    others = bisect.bisect_left(ranks, (True, False, 0))
    return any(not rank[1] for rank in (*ranks[:1], *ranks[others : others + 1]))


@dataclass(slots=True)
class Short:
    """What a wish for room lacks; nothing or less where there is room to spare."""

    shards: int
    bytes: int
    inodes: int

    def any(self) -> bool:
        """Whether anything is missing."""
        return self.shards > 0 or self.bytes > 0 or self.inodes > 0

    def take(self, entry: Entry) -> None:
        """A shard goes."""
        self.shards -= 1
        self.bytes -= entry.blocks
        self.inodes -= entry.inodes


@dataclass(frozen=True, slots=True)
class Granted:
    """The room is reserved."""


@dataclass(frozen=True, slots=True)
class Evict:
    """These have left the index and must be moved to trash; ask again when room has come back (perhaps none must go)."""

    victims: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class NotNow:
    """Nothing can go at present: ask again when something has changed."""

    leased: int
    flying: int


@dataclass(frozen=True, slots=True)
class Yield:
    """The source's transfers hold half of the cap and another source waits: let that one go first."""


@dataclass(frozen=True, slots=True)
class Displaces:
    """Room could come only from what the same prefetch brought and nobody has read."""


@dataclass(frozen=True, slots=True)
class Never:
    """It does not fit, whatever goes: wanted bytes and the limit's name and size."""

    wanted: int
    limit: str
    allowed: int


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Others have filled the file system, and nothing of ours is left that could go: missing bytes and inodes."""

    wanted: int
    inodes: int
    free: int
    kept: int


Verdict = Granted | Evict | NotNow | Yield | Displaces | Never | DiskFull
