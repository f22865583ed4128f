"""Prometheus metrics of the daemon. No label whose values grow with the number of shards.

What the ledger knows is read at scrape by a collector of the daemon's; only events are counted here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

# A trainer's PROMETHEUS_MULTIPROC_DIR in our environment would turn every counter into a file shared with it.
_multiproc = os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
from prometheus_client import (  # noqa: E402
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric  # noqa: E402
from prometheus_client.platform_collector import PlatformCollector  # noqa: E402
from prometheus_client.process_collector import ProcessCollector  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

if _multiproc is not None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = _multiproc

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_DELAYS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FAILURES = ("origin_unavailable", "origin_refused", "corrupt", "bad_archive", "missing")
"""Reasons that the origin gives; the others are rare."""
RESULTS = ("hit", "miss", "joined", "failed")

Gauge = tuple[str, str, dict[str, str], float]
"""Name without prefix, help, labels, value."""


class Metrics:
    """All counters and histograms, in a registry of their own."""

    def __init__(self, version: str, sources: Iterable[str] = ()) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._version = version
        self.requests = self._counter("requests", "Shards asked for, by what came of it", "source", "result")
        self.origin_bytes = self._counter("origin_bytes", "Bytes received from the origin", "source")
        self.origin_requests = self._counter("origin_requests", "Requests to the origin", "source", "status")
        self.fetch_failures = self._counter(
            "fetch_failures", "Transfers that failed, tries included", "source", "reason"
        )
        self.evictions = self._counter("evictions", "Shards removed", "source", "reason")
        self.evicted_unread = self._counter(
            "evicted_unread", "Prefetched shards removed before anybody read them", "source"
        )
        self.refetched = self._counter(
            "refetched",
            "Shards fetched again that made room so lately that twice the cap would have kept them",
            "source",
        )
        self.acquire_wait = self._histogram("acquire_wait_seconds", "Time until a shard that was asked for was local")
        self.fetch = self._histogram("fetch_seconds", "Time of a transfer, tries included")
        self.unpack = self._histogram("unpack_seconds", "Time to check or unpack an archive")
        self.loop_delay = Histogram(
            "cachedaemon_loop_delay_seconds",
            "How late the event loop came to what was due, measured every second",
            buckets=_DELAYS,
            registry=self.registry,
        )
        for source in sources:
            self.expect(source)

    def expect(self, source: str) -> None:
        """Have the series of a source from the start, so that rates see their first event."""
        for result in RESULTS:
            self.requests.labels(source, result)
        self.origin_bytes.labels(source)
        self.origin_requests.labels(source, "200")
        self.evicted_unread.labels(source)
        self.refetched.labels(source)
        self.evictions.labels(source, "room")
        for reason in FAILURES:
            self.fetch_failures.labels(source, reason)
        for histogram in (self.acquire_wait, self.fetch, self.unpack):
            histogram.labels(source)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"cachedaemon_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"cachedaemon_{name}", text, ("source",), buckets=_WAITS, registry=self.registry)

    def watch(self, gauges: Callable[[], Iterable[Gauge]]) -> None:
        """Read these at every scrape."""
        self.registry.register(_Snapshot(gauges, self._version))

    def text(self) -> bytes:
        """The exposition, in the text format."""
        return generate_latest(self.registry)


class _Snapshot(Collector):
    def __init__(self, gauges: Callable[[], Iterable[Gauge]], version: str) -> None:
        self._gauges = gauges
        self._version = version

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        rows = [("build_info", "The running version", {"version": self._version}, 1.0), *self._gauges()]
        for name, text, labels, value in rows:
            family = families.setdefault(name, GaugeMetricFamily(f"cachedaemon_{name}", text, labels=list(labels)))
            family.add_metric(list(labels.values()), value)
        return families.values()
