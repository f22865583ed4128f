"""/metrics: valid, true, of constant size, and nobody else's business."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.mounts import loop_fs
from tests.fakes.origin import Object, Origin
from tests.fakes.waiting import until

NAMES = [
    "requests",
    "origin_bytes",
    "origin_requests",
    "fetch_failures",
    "evictions",
    "evicted_unread",
    "shards",
    "bytes",
    "max_shards",
    "max_bytes",
    "fetches_in_flight",
    "connections_allowed",
    "waiters",
    "plans",
    "acquire_wait_seconds",
    "fetch_seconds",
    "unpack_seconds",
    "build_info",
]


def parsed(daemon: Daemon) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """Samples of our own by family, by the official parser."""
    text = str(daemon.api("GET", "/metrics").body)
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family comes once"
    return {
        family.name.removeprefix("cachedaemon_"): [(s.name, s.labels, s.value) for s in family.samples]
        for family in families
        if family.name.startswith("cachedaemon_")
    }


def test_valid_constant_and_true(folder: Path) -> None:
    """Also with a trainer's PROMETHEUS_MULTIPROC_DIR in the environment: nothing is written there."""
    with (
        Origin() as origin,
        Daemon({"s": origin.url}, max_shards=400, env={"PROMETHEUS_MULTIPROC_DIR": str(folder)}) as daemon,
    ):
        origin.default(lambda name: None if name.startswith("none") else Object(name, 700))
        first = parsed(daemon)
        assert set(NAMES) <= set(first)
        assert first["requests"] == [
            ("cachedaemon_requests_total", {"source": "s", "result": result}, 0.0)
            for result in ("hit", "miss", "joined", "failed")
        ], "every series is there from the start"
        daemon.acquire("s", "zz0.bin"), daemon.acquire("s", "zz0.bin"), daemon.acquire("s", "none.bin")
        daemon.job(daemon.prefetch("s", [f"zz{n}.bin" for n in range(20)]))
        few = parsed(daemon)
        daemon.job(daemon.prefetch("s", [f"zz{n}.bin" for n in range(300)]))
        many = parsed(daemon)
        assert {name: len(rows) for name, rows in few.items()} == {name: len(rows) for name, rows in many.items()}
        assert "zz" not in str(daemon.api("GET", "/metrics").body)
        results = {result: daemon.metric("requests_total", result=result) for result in ("hit", "miss", "failed")}
        assert results == {"hit": 1, "miss": 1, "failed": 1}, "a prefetch is no request"
        assert daemon.metric("origin_bytes_total", source="s") == origin.sent == 300 * 700
        assert daemon.metric("origin_requests_total", status="200") == 300
        assert daemon.metric("origin_requests_total", status="404") == 1
        assert daemon.metric("fetch_failures_total", reason="missing") == 1
        assert daemon.metric("shards", source="s") == 300
        assert daemon.metric("bytes", source="s") == daemon.status()["cache"]["bytes"]
        assert daemon.metric("acquire_wait_seconds_count") == 2
        assert daemon.metric("fetch_seconds_count") == 300
        assert [daemon.metric(name) for name in ("fetches_in_flight", "waiters", "plans")] == [0, 0, 0]
        daemon.evict("s", "zz0.bin")
        assert daemon.metric("evictions_total", source="s") == 1
        assert not list(folder.iterdir())


def test_help_type_and_the_process_itself() -> None:
    with Daemon({"s": "http://127.0.0.1:1/"}) as daemon:
        answer = daemon.api("GET", "/metrics")
        text = str(answer.body)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        own = [line for line in text.splitlines() if line.startswith("# HELP cachedaemon_")]
        assert all(len(line.split(" ", 3)[3]) > 5 for line in own)
        assert "process_resident_memory_bytes" in text
        assert "_created" not in text
        assert 'cachedaemon_build_info{version="' in text


def test_a_source_that_comes_with_a_reload_has_its_series_and_one_that_goes_loses_its_gauges(folder: Path) -> None:
    content.write(folder / "a.bin", "a", 1000)
    with Daemon({"s": {"url": f"file://{folder}/", "settle": 0}}) as daemon:
        daemon.tables["sources"]["new"] = {"url": f"file://{folder}/", "settle": 0}
        daemon.reload()
        until(lambda: "new" in daemon.api("GET", "/v1/hello").body["sources"], 20, "the new source")
        assert [row[2] for row in parsed(daemon)["requests"] if row[1]["source"] == "new"] == [0, 0, 0, 0]
        del daemon.tables["sources"]["new"]
        daemon.reload()
        until(lambda: "new" not in daemon.api("GET", "/v1/hello").body["sources"], 20, "its end")
        assert not [row for row in parsed(daemon)["shards"] if row[1]["source"] == "new"]


@pytest.mark.root
def test_a_disk_that_refuses_to_delete_is_a_degraded_health() -> None:
    """Still alive, still serving: /healthz names the area, a metric says that something is wrong."""
    with loop_fs("ext4", 64 << 20) as disk, Origin() as origin:
        origin.put("a.bin", 1000)
        with Daemon({"s": origin.url}, cache_dir=disk.path / "cache", check=False) as daemon:
            path = daemon.path("s", "a.bin")
            subprocess.run(["chattr", "+i", str(path)], check=True)
            try:
                daemon.evict("s", "a.bin")
                said = daemon.api("GET", "/healthz")
                assert said.status == 200
                assert said.body["status"] == "degraded"
                assert "a.bin" in " ".join(said.body["reasons"].values())
                assert daemon.metric("degraded") == 1
                assert daemon.api("GET", "/readyz").status == 200
            finally:
                subprocess.run(["chattr", "-i", str(path)], check=True)
