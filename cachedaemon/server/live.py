"""The snapshot of the node that all who look share: made once a second at the most, and never while nobody looks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cachedaemon import __version__
from cachedaemon.cache import Cache
from cachedaemon.errors import CacheDaemonError
from cachedaemon.metrics import Metrics
from cachedaemon.model import Disk, Ref
from cachedaemon.plans import Plans
from cachedaemon.regrets import Regrets
from cachedaemon.server import glance
from cachedaemon.server.history import STEP, History, Totals
from cachedaemon.server.view import View

APART = 1.0
"""Seconds between two snapshots at the least."""
OF_THE_LOOP = 30
"""A snapshot that takes the loop long comes so many times more seldom: of a hundred thousand shards every other second."""
AT_ONCE = 2000
"""Shards that are looked at before others get their turn: half a millisecond, about."""


@dataclass(frozen=True)
class Snapshot:
    """The node at a moment. Whoever is sent both texts has all of it."""

    said: Mapping[str, Any]
    cells: Mapping[str, Any]
    """The map of shards, which changes more seldom than the rest."""

    @cached_property
    def text(self) -> str:
        """All but the map, as JSON."""
        return json.dumps(self.said, separators=(",", ":"))

    @cached_property
    def map_text(self) -> str:
        """The map, as JSON."""
        return json.dumps(self.cells, separators=(",", ":"))


class Live:
    """One daemon, as people look at it."""

    def __init__(  # noqa: PLR0913 - all that is looked at
        self,
        *,
        cache: Cache,
        plans: Plans,
        regrets: Regrets,
        view: View,
        metrics: Metrics,
        usage: Callable[[], Awaitable[Disk]],
        policy: Callable[[], str],
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._regrets = regrets
        self._view = view
        self._metrics = metrics
        self._usage = usage
        self._policy = policy
        self._host = socket.gethostname()
        self._making = asyncio.Lock()
        self._last: Snapshot | None = None
        self._good_until = 0.0
        self._held: set[Ref] = set()
        self.ended = asyncio.Event()
        """Set when the daemon stops: nobody is shown anything more."""
        self.history = History()

    async def keep(self) -> None:
        """Add to the history, for ever: a few counters are read, so that plots are not empty when somebody comes to look."""
        try:
            while True:
                self.history.add(self._totals())
                await asyncio.sleep(STEP)
        finally:
            self.ended.set()

    async def now(self) -> Snapshot:
        """The latest snapshot; a new one when it is old."""
        async with self._making:
            if self._last is None or time.monotonic() >= self._good_until:
                began, used = time.monotonic(), time.thread_time()
                self._last = await self._snapshot()
                self._good_until = began + max(0.9 * APART, OF_THE_LOOP * (time.thread_time() - used))
            return self._last

    def _totals(self) -> Totals:
        requests = list(_samples(self._metrics.requests, "_total"))
        waits = self._metrics.acquire_wait
        return Totals(
            at=round(time.time(), 2),
            asked=sum(value for _, value in requests),
            hits=sum(value for labels, value in requests if labels["result"] == "hit"),
            waited=(_sum(waits, "_sum"), _sum(waits, "_count")),
            received=_by_source(self._metrics.origin_bytes),
            failures=_by_source(self._metrics.fetch_failures),
            waiters=sum(map(glance.readers, self._cache.ledger.flights.values())),
            regret=self._regrets.ratio(),
        )

    async def _snapshot(self) -> Snapshot:
        wanted = glance.soon(self._plans)
        cells = await self._map(wanted)
        disk = None
        with contextlib.suppress(CacheDaemonError):  # health says what is wrong with it
            disk = await self._usage()
        now, ledger = time.monotonic(), self._cache.ledger
        status = self._view.status(self._policy())
        said = {
            "at": round(time.time(), 2),
            "host": self._host,
            "version": __version__,
            "uptime": status["uptime"],
            "health": status["health"],
            "cache": status["cache"] | {"leased": len(self._held), "disk": self._disk(disk)},
            "waiters": sum(map(glance.readers, ledger.flights.values())),
            "mean_wait": self.history.mean_wait(),
            "transfers": glance.transfers(ledger.flights),
            "transfers_in_all": len(ledger.flights),
            "plans": glance.courses(self._plans, ledger),
            "plans_in_all": len(self._plans),
            "to_come": glance.to_come(wanted, ledger, now),
            "sources": self._sources(status["sources"]),
        }
        return Snapshot(said, cells)

    async def _map(self, wanted: Mapping[Ref, float]) -> dict[str, Any]:
        """A part at a time: a hundred thousand shards keep nobody waiting."""
        ledger = self._cache.ledger
        survey = glance.Survey(list(ledger.entries()), wanted, ledger.protected)
        since = time.monotonic() - glance.LATELY
        for start in range(0, len(survey.entries), AT_ONCE):
            survey.take(start, start + AT_ONCE, since, self._held)
            await asyncio.sleep(0)
        self._held = await self._cache.shelf.leased_among(survey.to_look_at())
        return survey.cells(self._held)

    def _disk(self, disk: Disk | None) -> dict[str, int] | None:
        if disk is None:
            return None
        return {"total": disk.total, "free": disk.free, "kept": self._cache.ledger.caps.min_free.of(disk.total)}

    def _sources(self, status: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Those that are configured, in that order: never their URLs."""
        flights = self._cache.ledger.flights.values()
        waiting, planned = Counter[str](), Counter(plan.source for plan in self._plans)
        for flight in flights:
            waiting[flight.ref.source] += glance.readers(flight)
        limits = self._cache.sources.limits()
        return [
            {
                "name": name,
                "shards": one["shards"],
                "bytes": one["bytes"],
                "fetching": one["fetching"],
                "waiters": waiting[name],
                "plans": planned[name],
                "connections": one["connections"],
                "most_connections": limits.get(name, one["connections"]),
                "rate": round(self.history.rate(name)),
                "failures": self.history.failures(name),
                "regret": one["regret"],
            }
            for name, one in status.items()
        ]


def _samples(metric: Any, ending: str) -> Iterable[tuple[Mapping[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(ending):
                yield sample.labels, sample.value


def _sum(metric: Any, ending: str) -> float:
    return sum(value for _, value in _samples(metric, ending))


def _by_source(metric: Any) -> dict[str, float]:
    totals: dict[str, float] = {}
    for labels, value in _samples(metric, "_total"):
        totals[labels["source"]] = totals.get(labels["source"], 0.0) + value
    return totals
