"""What the API says of the daemon: `hello`, `status` and what is wrong, each read from the ledger as it is."""

from __future__ import annotations

import time
from collections import Counter

from cachedaemon import __version__
from cachedaemon.cache import Cache
from cachedaemon.config import public_url
from cachedaemon.plans import Plans
from cachedaemon.regrets import Regrets
from cachedaemon.server.replies import Full, Hello, SourceHello, SourceStatus, Status
from cachedaemon.upkeep import Upkeep
from cachedaemon_client.wire import PROTOCOL


class View:
    """One daemon, looked at."""

    def __init__(self, cache: Cache, plans: Plans, regrets: Regrets, upkeep: Upkeep, cache_dir: str) -> None:
        self._cache = cache
        self._plans = plans
        self._regrets = regrets
        self._upkeep = upkeep
        self._cache_dir = cache_dir
        self._started = time.monotonic()

    def hello(self) -> Hello:
        """Answer to `GET /v1/hello`; no secret, no signature."""
        sources: dict[str, SourceHello] = {
            one.name: {"url": public_url(one.settings.url), "archives": one.settings.archives, "direct": one.direct}
            for one in self._cache.sources.all()
        }
        return {"version": __version__, "protocol": PROTOCOL, "cache_dir": self._cache_dir, "sources": sources}

    def status(self, policy: str) -> Status:
        """Answer to `GET /v1/status`."""
        ledger = self._cache.ledger
        return {
            "version": __version__,
            "uptime": round(time.monotonic() - self._started, 3),
            "health": self._upkeep.health,
            "cache": {
                "shards": len(ledger),
                "bytes": ledger.bytes,
                "reserved_bytes": ledger.reserved,
                "max_shards": ledger.caps.max_shards,
                "max_bytes": ledger.caps.max_bytes,
                "policy": policy,
                "regret": _rounded(self._regrets.ratio()),
                "held_by_plans": self._plans.held_at_once(),
                "full": self._full(),
            },
            "fetches": [
                {"source": f.ref.source, "key": f.ref.key, "bytes": f.arrived, "size": f.size}
                for f in ledger.flights.values()
            ],
            "waiters": sum(flight.waiters for flight in ledger.flights.values()),
            "plans": [
                {
                    "id": p.id,
                    "source": p.source,
                    "keys": p.keys,
                    "position": p.position,
                    "state": "idle" if p.idle else "running",
                }
                for p in self._plans
            ],
            "sources": self._sources(),
        }

    def _full(self) -> Full | None:
        full = self._cache.room.full
        return (
            {"leased": full.leased, "in_transfer": full.flying, "waiting": self._cache.room.waiting} if full else None
        )

    def _sources(self) -> dict[str, SourceStatus]:
        ledger = self._cache.ledger
        flying = Counter(flight.ref.source for flight in ledger.flights.values())
        return {
            one.name: {
                "url": public_url(one.settings.url),
                "urls": str(one.settings.urls) if one.settings.urls else None,
                "archives": one.settings.archives,
                "direct": one.direct,
                "shards": ledger.per_source.get(one.name, [0, 0])[0],
                "bytes": ledger.per_source.get(one.name, [0, 0])[1],
                "fetching": flying[one.name],
                "regret": _rounded(self._regrets.ratio(one.name)),
                "connections": self._cache.turns.allowance(one.name).now,
            }
            for one in self._cache.sources.all()
        }

    def health(self) -> dict[str, str]:
        """What is wrong, by area."""
        return self._upkeep.health


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)
