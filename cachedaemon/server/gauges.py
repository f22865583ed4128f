"""The gauges of /metrics, read from the ledger and its neighbours at every scrape. docs/metrics.md says what each means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cachedaemon.cache import Cache
from cachedaemon.metrics import Gauge
from cachedaemon.plans import Plans
from cachedaemon.regrets import Regrets
from cachedaemon.upkeep import Upkeep
from cachedaemon.vitals import Vitals


class Gauges:
    """One daemon, measured."""

    def __init__(self, cache: Cache, plans: Plans, regrets: Regrets, upkeep: Upkeep, vitals: Vitals) -> None:
        self._cache = cache
        self._plans = plans
        self._regrets = regrets
        self._upkeep = upkeep
        self._vitals = vitals

    def read(self) -> Iterable[Gauge]:
        """All of them, as they are now."""
        yield from self._node()
        yield from self._disk()
        yield from self._sources()

    def _node(self) -> Iterable[Gauge]:
        caps, room = self._cache.ledger.caps, self._cache.room
        yield "max_shards", "The shard cap; 0: none", {}, caps.max_shards
        yield "max_bytes", "The byte cap; 0: none", {}, caps.max_bytes
        yield "degraded", "1 while something is wrong that /healthz names", {}, float(bool(self._upkeep.health))
        held = self._plans.held_at_once()
        yield "held_by_plans", "Shards that the consumers of all plans have open at once", {}, held
        waiting = room.waiting if room.full else 0
        yield "waiting_for_room", "Transfers that wait while everything is leased or in transfer", {}, waiting

    def _disk(self) -> Iterable[Gauge]:
        disk, kept = self._vitals.disk, self._cache.ledger.caps.min_free
        if disk is None:
            return
        yield "disk_size_bytes", "Size of the file system of the cache", {}, disk.total
        yield "disk_free_bytes", "Bytes of it that are free", {}, disk.free
        yield "disk_kept_bytes", "Bytes of it that the cache leaves to others (cache.min_free)", {}, kept.of(disk.total)
        if disk.inodes:
            yield "disk_inodes", "Inodes of the file system of the cache", {}, disk.inodes
            yield "disk_free_inodes", "Inodes of it that are free", {}, disk.free_inodes

    def _sources(self) -> Iterable[Gauge]:
        cache, flying, waiting = self._cache, Counter[str](), Counter[str]()
        for flight in cache.ledger.flights.values():
            flying[flight.ref.source] += 1
            waiting[flight.ref.source] += flight.waiters
        planned = Counter(plan.source for plan in self._plans)
        for name in dict.fromkeys([*(one.name for one in cache.sources.all()), *cache.ledger.per_source]):
            shards, size = cache.ledger.per_source.get(name, [0, 0])
            allowed = cache.turns.allowance(name).now
            labels = {"source": name}
            yield "shards", "Published shards", labels, shards
            yield "bytes", "Allocated bytes of published shards", labels, size
            yield "fetches_in_flight", "Transfers under way or queued", labels, flying[name]
            yield "connections_allowed", "Connections given to the source now", labels, allowed
            yield "waiters", "Requests that wait for a shard", labels, waiting[name]
            yield "plans", "Plans that run", labels, planned[name]
            if (ratio := self._regrets.ratio(name)) is not None:
                yield "regret_ratio", "Bytes fetched while plans ran, over the least possible", labels, ratio
