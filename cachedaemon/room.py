"""Who gets room next. One keeper task grants it, strictly in the order of asking, demand before prefetch.

Transfers that grow come first: they hold staging already, and the oldest of them must be able to end. The kernel tells
nobody when a lease ends, so while somebody waits the keeper tries leased shards again, ten times a second; when nobody
waits it sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from cachedaemon.entries import DiskFull, Displaces, Entry, Evict, Flight, Granted, Line, Never, NotNow, Verdict, Yield
from cachedaemon.errors import CacheDaemonError, CacheFull, NoSpace, TooLarge
from cachedaemon.fetch import Impatient
from cachedaemon.ledger import Ledger
from cachedaemon.model import Disk, Need

LOOK_AGAIN = 0.1
"""Seconds between two looks at leased shards."""
LATELY = 1.0
"""Seconds for which the last verdict of the queue explains why somebody gave up."""
AT_ONCE = 64
"""Shards that leave the index at once after a cap was lowered: what has left it cannot be answered until it has gone."""


class Partial(Exception):
    """A prefetch has filled what it may: the rest would displace what it brought and nobody has read."""


@dataclass(eq=False, slots=True)
class Claim:
    """One flight's wish for room."""

    flight: Flight
    need: Need
    holds_turn: bool
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Room:
    """The queue for room.

    `evict` moves victims to trash and reports to the ledger, `stops` end a flight's try, `is_due` says whether the turn
    to transfer that a flight has is waited for by one that goes first.
    """

    def __init__(
        self,
        ledger: Ledger,
        usage: Callable[[], Awaitable[Disk]],
        evict: Callable[[tuple[Entry, ...], str], Awaitable[object]],
        stops: Mapping[Flight, Callable[[], None]],
        is_due: Callable[[Flight], bool],
    ) -> None:
        self._ledger = ledger
        self._usage = usage
        self._evict = evict
        self._stops = stops
        self._is_due = is_due
        self._line = Line()
        self._claims: dict[Flight, Claim] = {}
        """Of those in the line."""
        self._wake = asyncio.Event()
        self._full: NotNow | None = None
        self._last: tuple[float, NotNow | None] = (0.0, None)
        self._over = False
        self._look_at = 0.0
        """When leased shards are tried again, in seconds of the loop's clock."""

    def changed(self) -> None:
        """Room may have come back, or a cap was lowered."""
        self._wake.set()

    def blocks(self, flight: Flight) -> NotNow | None:
        """Why a flight got no room, if everything was leased or in transfer: it waits for some, or has yet to ask."""
        waits = flight.wanted is not None or flight in self._line
        if not waits and (flight.slot or flight.cause is not None):
            return None
        at, full = self._last
        return full if asyncio.get_running_loop().time() - at < LATELY else None

    @property
    def full(self) -> NotNow | None:
        """Why the first in the queue waits, while everything is leased or in transfer."""
        return self._full if self._claims else None

    @property
    def waiting(self) -> int:
        """Flights in the queue."""
        return len(self._claims)

    async def reserve(self, flight: Flight, need: Need, *, holds_turn: bool = False) -> None:
        """Wait until `need` is reserved in all for a flight.

        Raises `TooLarge`, `NoSpace`, or `Partial` for a prefetch; `Impatient` where it keeps one that goes first from its
        turn (`holds_turn`): he may be who has the room that it waits for.
        """
        claim = Claim(flight, need, holds_turn)
        self._claims[flight] = claim
        self._line.add(flight)
        self._look_at = 0.0
        self._wake.set()
        try:
            await claim.granted
        finally:
            self._settle(claim)
            self._wake.set()

    def _settle(self, claim: Claim) -> None:
        """A claim waits no more; its flight may have made another since."""
        if self._claims.get(claim.flight) is claim:
            del self._claims[claim.flight]
            self._line.remove(claim.flight)

    async def keep(self) -> None:
        """Grant room as it comes, for ever."""
        while True:
            await self._next_look()
            self._wake.clear()
            self._recheck()
            await self._shrink()
            self._full = await self._grant()

    async def _next_look(self) -> None:
        """Until something has changed, or it is time to try leased shards again that stand in somebody's way."""
        waits = self._over or self._claims
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._look_at if waits else None):
                await self._wake.wait()

    def _recheck(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + LOOK_AGAIN
            self._ledger.recheck()

    async def _shrink(self) -> None:
        """After a cap was lowered the surplus goes, as leases end."""
        while surplus := self._ledger.surplus(AT_ONCE):
            await self._move(surplus, "cap")
        self._over = self._ledger.is_over()

    async def _move(self, victims: tuple[Entry, ...], reason: str) -> None:
        await self._evict(victims, reason)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # it came while a thread worked, which is always awaited to its end
            raise asyncio.CancelledError

    async def _grant(self) -> NotNow | None:
        """Serve the queue in its order; why the first that waits does, if for leases and transfers."""
        yielding: set[str] = set()
        for _ in range(len(self._line)):
            flight = self._line.first(yielding.__contains__)
            if flight is None:
                break
            claim = self._claims[flight]
            match await self._serve(claim):
                case NotNow() as full:
                    self._last = asyncio.get_running_loop().time(), full
                    self._make_way(claim)
                    self._free_turns()
                    return full
                case Evict():
                    return None  # what was deleted will wake the keeper
                case Yield():
                    yielding.add(flight.ref.source)  # and with the first of a source all behind it
                case _:
                    self._settle(claim)
        return None

    async def _serve(self, claim: Claim) -> Verdict | None:
        """Give one claim its room, or its refusal; else why it must wait, and all behind it unless it yields."""
        while not claim.granted.done():
            try:
                disk = await self._usage()
            except CacheDaemonError as cause:
                _refuse(claim, cause)
                break
            if claim.granted.done():
                break  # its flight was cancelled meanwhile
            verdict = self._ledger.reserve(claim.flight, claim.need, disk, rivals=self._has_rivals(claim))
            match verdict:
                case Granted():
                    self._last = 0.0, None
                    claim.granted.set_result(None)
                case Evict(victims) if victims:
                    await self._move(victims, "room")
                case NotNow() if self._is_in_the_way(claim):
                    _refuse(claim, Impatient())
                case Evict() | NotNow() | Yield():
                    return verdict
                case Displaces():
                    claim.flight.ended = True  # a demand that comes now must not share this end
                    _refuse(claim, Partial())
                case Never() | DiskFull():
                    _refuse(claim, _refusal(claim, verdict))
        return None

    def _is_in_the_way(self, claim: Claim) -> bool:
        return claim.holds_turn and self._is_due(claim.flight)

    def _free_turns(self) -> None:
        """Nobody in the queue gets room at present: those who are in the way need not be its first."""
        for claim in self._claims.values():
            if self._is_in_the_way(claim):
                _refuse(claim, Impatient())

    def _has_rivals(self, claim: Claim) -> bool:
        """Whether another source waits for room; a demand lets no prefetch go first."""
        flight, source = claim.flight, claim.flight.ref.source
        if flight.slot:
            return False
        return self._line.has_demand(but=source) or (not flight.demand and self._line.has_others(source))

    def _make_way(self, claim: Claim) -> None:
        victim = self._ledger.to_stop(claim.flight)
        stop = self._stops.get(victim) if victim is not None else None
        if stop is not None:
            stop()


def _refuse(claim: Claim, cause: Exception) -> None:
    if not claim.granted.done():
        claim.granted.set_exception(cause)


def _refusal(claim: Claim, verdict: Never | DiskFull) -> CacheDaemonError:
    ref = claim.flight.ref
    if isinstance(verdict, Never):
        return TooLarge(f"{ref} needs {verdict.wanted} bytes, {verdict.limit} allows {verdict.allowed}")
    missing = f"{verdict.wanted} bytes" if verdict.wanted else f"{verdict.inodes} inodes"
    return NoSpace(
        f"{ref}: the cache's file system has {verdict.free} bytes free, {verdict.kept} of them are kept free "
        f"(cache.min_free), {missing} are missing and nothing of the cache is left to evict"
    )


def cache_full(flight: Flight, full: NotNow, shards: int) -> CacheFull:
    """What a waiter is told when no room came in time."""
    return CacheFull(
        f"{flight.ref}: no room: {full.leased} of {shards} shards are leased and {full.flying} in transfer; "
        "nothing can be evicted before a lease ends"
    )
