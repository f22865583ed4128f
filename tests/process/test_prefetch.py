"""Prefetch jobs: in order, until they would displace what they brought; and never before a demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.readers import Reader
from tests.fakes.waiting import until

HOLD = """
shards = [ShardCache("s").open(name) for name in ARG]
say("held")
hear()
"""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        one.default(lambda name: one.put(name, 100_000))
        yield one


def names(count: int, prefix: str = "p") -> list[str]:
    return [f"{prefix}{number:02}" for number in range(count)]


def here(daemon: Daemon) -> list[str]:
    return sorted(shard["key"] for shard in daemon.shards("s"))


def gate_all(origin: Origin, keys: list[str]) -> Gate:
    gate = Gate(50_000)
    for key in keys:
        origin.put(key, 100_000, gate=gate)
    return gate


def end(daemon: Daemon, keys: list[str]) -> dict[str, Any]:
    return daemon.job(daemon.prefetch("s", keys))


def test_all_that_fits(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=20) as daemon:
        daemon.path("s", "p00")
        job = end(daemon, names(10))
        assert (job["state"], job["total"], job["done"], job["failed"]) == ("done", 10, 10, 0)
        assert job["bytes"] == 1_000_000
        assert here(daemon) == names(10)
        assert origin.gets == 10
        again = end(daemon, names(10))
        assert (again["state"], again["done"]) == ("done", 10)
        assert origin.gets == 10
        assert daemon.metric("requests_total", source="s") == 1  # a prefetch is no request


def test_ends_where_it_would_displace_what_it_brought(origin: Origin) -> None:
    """In order: the first ones stay, one transfer each, and old shards went for them."""
    with Daemon({"s": origin.url}, max_shards=6, grace="0s") as daemon:
        for name in names(6, "old"):
            daemon.path("s", name)
        job = end(daemon, names(20))
        assert (job["state"], job["done"], job["failed"]) == ("partial", 6, 0)
        assert here(daemon) == names(6)
        assert daemon.metric("evicted_unread_total", source="s") == 0
        assert [origin.shared.objects[name].gets for name in names(6)] == [1] * 6


def test_what_it_found_here_is_not_displaced_either(origin: Origin) -> None:
    """A job that asks for more than there is room for must not throw out its first keys, wherever they came from."""
    with Daemon({"s": origin.url}, max_shards=4, grace="0s") as daemon:
        for name in names(4):
            daemon.path("s", name)
        job = end(daemon, [*names(4), "more0", "more1", "more2"])
        assert (job["state"], job["done"]) == ("partial", 4)
        assert here(daemon) == names(4)
        assert end(daemon, ["other0", "other1"])["state"] == "done"
        assert here(daemon) == ["other0", "other1", "p02", "p03"]


def test_what_was_read_may_go_for_the_next(origin: Origin) -> None:
    keys = names(6)
    gate = Gate(50_000)
    origin.put(keys[4], 100_000, gate=gate)
    with Daemon({"s": {"url": origin.url, "concurrency": 1}}, max_shards=5, grace="0s") as daemon:
        job = daemon.prefetch("s", keys)
        assert gate.reached.wait(20)
        daemon.path("s", keys[0])
        gate.open()
        assert daemon.job(job)["state"] == "done"
        assert here(daemon) == keys[1:]


def test_a_demand_goes_before_what_is_fetched_ahead(origin: Origin) -> None:
    """Queued behind a prefetch of 30 it is the next to be transferred."""
    keys = names(30)
    gate = gate_all(origin, keys)
    source = {"url": origin.url, "concurrency": 2}
    with Daemon({"s": source}, max_shards=40) as daemon:
        job = daemon.prefetch("s", keys)
        assert gate.reached.wait(20)
        said: list[int] = []
        threads = [
            threading.Thread(target=lambda k=k: said.append(daemon.acquire("s", k).status)) for k in ("now", "p29")
        ]
        for thread in threads:
            thread.start()
        until(lambda: daemon.status()["waiters"] == 4, 20)
        gate.open()
        for thread in threads:
            thread.join(30)
        assert said == [200, 200]
        order = [request.target.strip("/") for request in origin.log if request.method == "GET"]
        assert {"now", "p29"} <= set(order[:5]), order
        assert daemon.job(job)["state"] == "done"
        assert origin.gets == 31


def test_a_demand_displaces_what_was_brought_and_not_read(origin: Origin) -> None:
    """The one that came first; one after the other, since those that come together come in any order."""
    source = {"url": origin.url, "concurrency": 1}
    with Daemon({"s": source}, max_shards=3, grace="0s") as daemon:
        assert end(daemon, names(3))["state"] == "done"
        daemon.path("s", "now")
        assert here(daemon) == ["now", "p01", "p02"]
        assert daemon.metric("evicted_unread_total", source="s") == 1


def test_a_demand_that_joins_gets_the_shard_though_the_job_ends(origin: Origin) -> None:
    """Whoever asks for the very shard at which a job ends as partial gets it."""
    said: list[int] = []
    with Daemon({"s": origin.url}, max_shards=3, grace="0s") as daemon:

        def ask() -> None:
            said.append(daemon.acquire("s", "p03").status)

        for _ in range(10):
            assert end(daemon, names(3))["done"] == 3
            threads = [threading.Thread(target=ask) for _ in range(3)]
            job = daemon.prefetch("s", names(4))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert daemon.job(job)["state"] in ("partial", "done")
            for name in names(4):
                daemon.evict("s", name)
    assert said == [200] * 30


def test_the_same_key_twice(origin: Origin) -> None:
    with Daemon({"s": origin.url}) as daemon:
        job = end(daemon, ["a", "a", "b", "a", "b", "b"])
        assert (job["state"], job["total"], job["done"]) == ("done", 6, 6)
        assert origin.gets == 2


def test_two_jobs_for_the_same_keys(origin: Origin) -> None:
    keys = names(12)
    gate = gate_all(origin, keys)
    with Daemon({"s": origin.url}, max_shards=20) as daemon:
        jobs = [daemon.prefetch("s", keys), daemon.prefetch("s", list(reversed(keys)))]
        assert gate.reached.wait(20)
        gate.open()
        assert [daemon.job(job)["done"] for job in jobs] == [12, 12]
        assert origin.gets == 12


def test_failures_are_told_and_hold_nothing_up(origin: Origin) -> None:
    origin.put("gone", 10, always=Status(404))
    origin.put("refused", 10, always=Status(403))
    with Daemon({"s": origin.url}, fetch={"retries": 0}) as daemon:
        job = end(daemon, ["gone", "a", "refused", "b"])
        assert (job["state"], job["done"], job["failed"]) == ("failed", 2, 2)
        assert {error["key"]: error["code"] for error in job["errors"]} == {
            "gone": "missing",
            "refused": "origin_refused",
        }
        assert all("s/" in error["message"] or error["key"] in error["message"] for error in job["errors"])
        assert here(daemon) == ["a", "b"]


def test_no_keys_and_no_job(origin: Origin) -> None:
    with Daemon({"s": origin.url}) as daemon:
        assert (end(daemon, [])["state"], end(daemon, [])["total"]) == ("done", 0)
        answer = daemon.api("GET", "/v1/jobs/nonsense")
        assert (answer.status, answer.code) == (404, "not_found")
        bad = daemon.api("POST", "/v1/prefetch", {"source": "s", "keys": ["a", ""]})
        assert (bad.status, bad.code) == (400, "bad_request")
        assert origin.gets == 0


def test_it_waits_for_leases_and_goes_on(origin: Origin) -> None:
    """While all is leased a job neither ends nor runs a hot loop nor keeps a demand from its turn."""
    source = {"url": origin.url, "concurrency": 2}
    with Daemon({"s": source}, max_shards=2, grace="0s") as daemon:
        with Reader(daemon, HOLD, ["a", "b"]) as reader:
            assert reader.line() == "held"
            job = daemon.prefetch("s", names(2))
            until(lambda: daemon.status()["cache"]["full"], 20)
            said: list[int] = []
            demand = threading.Thread(target=lambda: said.append(daemon.acquire("s", "now", wait=40).status))
            demand.start()
            until(lambda: daemon.status()["cache"]["full"]["waiting"] == 3, 20)
            reader.kill9()
            demand.join(40)
        assert said == [200]
        order = [key for key in (request.target.strip("/") for request in origin.log) if key in ("now", "p00", "p01")]
        assert "now" in order
        assert daemon.job(job)["done"] >= 1


def test_it_waits_for_the_grace_of_what_was_asked_for_just_before(origin: Origin) -> None:
    """Right after `get` the daemon itself holds what it has given out: that ends by itself, and so must not end a job."""
    with Daemon({"s": origin.url}, max_shards=3, grace="3s") as daemon:
        daemon.path("s", "got")
        job = end(daemon, names(3))
        assert (job["state"], job["done"]) == ("done", 3)
        assert here(daemon) == names(3)
        daemon.path("s", "p01")
        assert end(daemon, names(4, "q"))["state"] == "partial"
        assert here(daemon) == names(3, "q")


def test_it_waits_for_a_reader_before_it_ends(origin: Origin) -> None:
    """With room still to come from a reader's shard a job is not over; with its own left alone it is."""
    with Daemon({"s": origin.url}, max_shards=3, grace="0s") as daemon:
        with Reader(daemon, HOLD, ["a"]) as reader:
            assert reader.line() == "held"
            job = daemon.prefetch("s", names(4))
            until(lambda: daemon.api("GET", f"/v1/jobs/{job}").body["done"] == 2, 20)
            until(lambda: daemon.status()["cache"]["full"], 20)
            assert daemon.api("GET", f"/v1/jobs/{job}").body["state"] == "running"
            reader.kill9()
        said = daemon.job(job)
        assert (said["state"], said["done"]) == ("partial", 3)
        assert len(here(daemon)) == 3


def test_partial_and_failed(origin: Origin) -> None:
    """A job that ends early says what failed before."""
    origin.put("gone", 10, always=Status(404))
    with Daemon({"s": origin.url}, max_shards=2, grace="0s") as daemon:
        job = end(daemon, ["gone", *names(5)])
        assert (job["state"], job["total"], job["done"], job["failed"]) == ("partial", 6, 2, 1)
        assert [error["key"] for error in job["errors"]] == ["gone"]


def test_bytes_are_counted_as_they_come(origin: Origin) -> None:
    """A slow transfer shows how far it is, in the job and in the status alike; the end is the sum of the sizes."""
    origin.put("quick", 1000)
    origin.put("slow", 600_000, bps=200_000)
    seen: set[int] = set()
    with Daemon({"s": origin.url}) as daemon:
        job = daemon.prefetch("s", ["quick", "slow"])

        def looks() -> bool:
            seen.add(daemon.api("GET", f"/v1/jobs/{job}").body["bytes"])
            return any(0 < fetch["bytes"] < fetch["size"] == 600_000 for fetch in daemon.status()["fetches"])

        until(looks, 20)
        until(lambda: looks() and len(seen) > 4, 20)
        said = daemon.job(job)
        assert (said["state"], said["bytes"]) == ("done", 601_000)
        assert max(seen) <= 601_000


def test_the_daemon_stops_in_the_middle_of_a_job(origin: Origin) -> None:
    keys = names(10)
    gate = gate_all(origin, keys)
    with Daemon({"s": origin.url}) as daemon:
        daemon.prefetch("s", keys)
        assert gate.reached.wait(20)
        assert daemon.stop(20) == 0
        daemon.audit()
        daemon.start()
        gate.open()
        assert end(daemon, keys)["state"] == "done"
