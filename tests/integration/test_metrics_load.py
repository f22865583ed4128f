"""/metrics while much is fetched by many: as many series as before, and an answer in no time. C-72."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.daemon import Daemon
from tests.fakes.exposition import samples
from tests.fakes.waiting import until

SHARDS = 1_500
CLIENTS = 50
CAP = 100


def resident(daemon: Daemon) -> float:
    """Bytes of memory, as its metrics have it."""
    found = samples(str(daemon.api("GET", "/metrics").body))
    return found["process_resident_memory_bytes", frozenset()]


def fetch(daemon: Daemon, first: int, failed: list[str]) -> None:
    """One client with a connection of its own; every 50th shard is its."""
    link = daemon.connection()
    for n in range(first, SHARDS, CLIENTS):
        link.request("POST", "/v1/acquire", json.dumps({"source": "s", "key": f"{n}.bin", "wait": 60}))
        answer: http.client.HTTPResponse = link.getresponse()
        said = answer.read()
        if answer.status != 200:
            failed.append(f"{n}: {said.decode()}")
    link.close()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_many_shards_and_fifty_clients(folder: Path) -> None:
    """C-72, with a trainer's PROMETHEUS_MULTIPROC_DIR: constant series, flat memory, scrapes below a second throughout."""
    data, shared = folder / "data", folder / "multiproc"
    data.mkdir(), shared.mkdir()
    for n in range(SHARDS):
        (data / f"{n}.bin").write_bytes(b"%d" % n)
    source = {"url": f"file://{data}/", "settle": 0, "concurrency": 16}
    env = {"PROMETHEUS_MULTIPROC_DIR": str(shared)}
    failed: list[str] = []
    with Daemon({"s": source}, max_shards=CAP, env=env) as daemon:
        until(lambda: "disk_free_bytes" in str(daemon.api("GET", "/metrics").body), 10, "the first look at the disk")
        series = set(samples(str(daemon.api("GET", "/metrics").body)))
        clients = [threading.Thread(target=fetch, args=(daemon, n, failed)) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        longest, early = 0.0, 0.0
        while any(client.is_alive() for client in clients):
            began = time.monotonic()
            seen = set(samples(str(daemon.api("GET", "/metrics").body)))
            longest = max(longest, time.monotonic() - began)
            assert {name for name, _ in seen} == {name for name, _ in series}
            if not early and daemon.metric("fetch_seconds_count") > SHARDS / 4:
                early = resident(daemon)
            clients[0].join(0.5)
        assert not failed
        assert daemon.metric("fetch_seconds_count") == SHARDS
        assert daemon.metric("requests_total", result="miss") == SHARDS
        assert daemon.metric("evictions_total", reason="room") == SHARDS - CAP
        new = set(samples(str(daemon.api("GET", "/metrics").body))) - series
        assert {name for name, _ in new} <= {"cachedaemon_origin_requests_total"}, "the status of a file's answer"
        assert longest < 1
        assert resident(daemon) < 1.2 * early, "what it knows of a shard goes with the shard"
        until(lambda: daemon.metric("fetches_in_flight") == 0, 10)
    assert not list(shared.iterdir())
