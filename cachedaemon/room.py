"""Who gets room next. One keeper task grants it, strictly in the order of asking, demand before prefetch.

Transfers that grow come first: they hold staging already, and the oldest of them must be able to end. The kernel tells
nobody when a lease ends, so while somebody waits and everything is leased the keeper looks again, ten times a second;
when nobody waits it sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from cachedaemon.errors import CacheDaemonError, CacheFull, NoSpace, TooLarge
from cachedaemon.ledger import DiskFull, Displaces, Entry, Evict, Flight, Granted, Ledger, Never, NotNow, Yield
from cachedaemon.model import Disk, Need

LOOK_AGAIN = 0.1
"""Seconds between two looks at leased shards."""


class Partial(Exception):
    """A prefetch has filled what it may: the rest would displace what it brought and nobody has read."""


@dataclass(eq=False, slots=True)
class Claim:
    """One flight's wish for room."""

    flight: Flight
    need: Need
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Those that grow first, then demand before prefetch, then the order of asking."""
        return (not self.flight.slot, *self.flight.rank)


class Room:
    """The queue for room. `evict` moves victims to trash and reports to the ledger; `stops` end a flight's try."""

    def __init__(
        self,
        ledger: Ledger,
        usage: Callable[[], Awaitable[Disk]],
        evict: Callable[[tuple[Entry, ...], str], Awaitable[None]],
        stops: Mapping[Flight, Callable[[], None]],
    ) -> None:
        self._ledger = ledger
        self._usage = usage
        self._evict = evict
        self._claims: list[Claim] = []
        self._wake = asyncio.Event()
        self._full: NotNow | None = None
        self._stops = stops

    def changed(self) -> None:
        """Room may have come back, or a cap was lowered."""
        self._wake.set()

    def blocks(self, flight: Flight) -> NotNow | None:
        """Why a flight waits, if it waits for room and everything is leased or in transfer."""
        waits = flight.wanted is not None or any(claim.flight is flight for claim in self._claims)
        return self._full if waits else None

    @property
    def full(self) -> NotNow | None:
        """Why the first in the queue waits, while everything is leased or in transfer."""
        return self._full if self._claims else None

    @property
    def waiting(self) -> int:
        """Flights in the queue."""
        return len(self._claims)

    async def reserve(self, flight: Flight, need: Need) -> None:
        """Wait until `need` is reserved in all for a flight.

        Raises `TooLarge`, `NoSpace`, or `Partial` for a prefetch.
        """
        claim = Claim(flight, need)
        self._claims.append(claim)
        self._wake.set()
        try:
            await claim.granted
        finally:
            self._claims.remove(claim)
            self._wake.set()

    async def keep(self) -> None:
        """Grant room as it comes, for ever."""
        while True:
            await self._next_look()
            self._wake.clear()
            self._full = None
            self._ledger.recheck()
            await self._shrink()
            for claim in sorted(self._claims, key=lambda c: c.rank):
                if not claim.granted.done() and not await self._serve(claim):
                    break

    async def _next_look(self) -> None:
        waits = self._full is not None
        try:
            await asyncio.wait_for(self._wake.wait(), LOOK_AGAIN if waits else None)
        except TimeoutError:
            return

    async def _shrink(self) -> None:
        """After a cap was lowered the surplus goes, as leases end."""
        while surplus := self._ledger.surplus():
            await self._evict(surplus, "cap")
        if self._ledger.is_over():
            self._full = NotNow(self._ledger.leased, 0)

    async def _serve(self, claim: Claim) -> bool:
        """Give one claim its room; False when it must wait, and with it all behind it."""
        while not claim.granted.done():
            disk = await self._usage()
            verdict = self._ledger.reserve(claim.flight, claim.need, disk, rivals=self._has_rivals(claim))
            match verdict:
                case Granted():
                    claim.granted.set_result(None)
                case Evict(victims) if victims:
                    await self._evict(victims, "room")
                case Evict():
                    return False  # what was deleted will wake the keeper
                case Yield():
                    return True
                case NotNow():
                    self._full = verdict
                    self._make_way(claim)
                    return False
                case Displaces():
                    claim.granted.set_exception(Partial())
                case Never() | DiskFull():
                    claim.granted.set_exception(_refusal(claim, verdict))
        return True

    def _has_rivals(self, claim: Claim) -> bool:
        source = claim.flight.ref.source
        return not claim.flight.slot and any(
            other.flight.ref.source != source and not other.granted.done() for other in self._claims
        )

    def _make_way(self, claim: Claim) -> None:
        victim = self._ledger.to_stop(claim.flight)
        stop = self._stops.get(victim) if victim is not None else None
        if stop is not None:
            stop()


def _refusal(claim: Claim, verdict: Never | DiskFull) -> CacheDaemonError:
    ref = claim.flight.ref
    if isinstance(verdict, Never):
        return TooLarge(f"{ref} needs {verdict.wanted} bytes, {verdict.limit} allows {verdict.allowed}")
    return NoSpace(
        f"{ref}: the cache's file system has {verdict.free} bytes free, {verdict.kept} of them are kept free "
        f"(cache.min_free), {verdict.wanted} are missing and nothing of the cache is left to evict"
    )


def cache_full(flight: Flight, full: NotNow, shards: int) -> CacheFull:
    """What a waiter is told when no room came in time."""
    return CacheFull(
        f"{flight.ref}: no room: {full.leased} of {shards} shards are leased and {full.flying} in transfer; "
        "nothing can be evicted before a lease ends"
    )
