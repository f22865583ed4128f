"""What the ledger keeps account of, shards and flights, and what it decides. Pure: no clock, no disk, no await."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachedaemon.model import Need, Ref, Stamp


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
    ticket: int = -1
    unread_of: str | None = None
    """The prefetch job that brought it, as long as nobody has read it."""
    suspect: bool = False
    checked: bool = True
    """False for what was found at start, until its size was compared with its meta file."""


@dataclass(slots=True, eq=False)
class Flight:
    """A shard on its way, and how many wait for it."""

    ref: Ref
    order: int
    """Place in the order of asking."""
    demand: bool
    job: str | None = None
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
    wanted: Need | None = None
    """Room to wait for before the origin is asked again."""
    cause: Exception | None = None
    """Why the last try failed."""

    def empty(self) -> None:
        """Nothing of a try is on the disk (any more)."""
        self.written = self.made = self.arrived = 0

    def give_back(self) -> None:
        """Start anew: the reservation ends, the place in the order stays."""
        self.room, self.slot, self.growing = Need(0, 0), False, False
        self.empty()

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Who holds room goes first, since others wait for it; demand before prefetch; then the order of asking."""
        return (not self.slot, not self.demand, self.order)


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
