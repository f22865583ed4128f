"""What a source's settings do in the running daemon: bandwidth, folders that are not there, keys that cannot be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.disk import Sampler
from tests.fakes.origin import Object, Origin
from tests.fakes.waiting import until

MB = 10**6


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        origin.default(lambda name: Object(name, 3 * MB))
        yield origin


def test_bandwidth_holds_for_all_transfers_of_a_source_and_for_no_other(origin: Origin, folder: Path) -> None:
    """Whether http or file; 12 MB at 6 MB/s, of which a quarter of a second and one batch are free."""
    for number in range(4):
        content.write(folder / f"{number}.bin", f"{number}.bin", 3 * MB)
    sources = {
        "web": {"url": origin.url, "bandwidth": "6MB"},
        "mount": {"url": f"file://{folder}/", "bandwidth": "6MB", "settle": 0},
        "free": origin.url,
    }
    with Daemon(sources, max_shards=50) as daemon:
        began = time.monotonic()
        jobs = {name: daemon.prefetch(name, [f"{number}.bin" for number in range(4)]) for name in sources}
        ends = {}
        for name in ("free", "web", "mount"):
            assert daemon.job(jobs[name])["state"] == "done"
            ends[name] = time.monotonic() - began
        assert min(ends["web"], ends["mount"]) > 1.0
        assert {one["size"] for one in daemon.shards()} == {3 * MB}


def test_a_reload_changes_the_bandwidth_of_transfers_under_way(origin: Origin) -> None:
    """What would take minutes is here at once; and a transfer that waits can be given up."""
    sources = {"s": {"url": origin.url, "bandwidth": "20kB"}}
    with Daemon(sources, max_shards=50) as daemon:
        jobs = [daemon.prefetch("s", ["0.bin", "1.bin"])]
        until(lambda: len(daemon.status()["fetches"]) == 2, 20, "both transfers")
        assert daemon.acquire("s", "2.bin", wait=0.3).code == "wait_expired"
        daemon.tables["sources"]["s"] = {"url": origin.url, "bandwidth": "100MB"}
        daemon.reload()
        assert [daemon.job(job)["state"] for job in jobs] == ["done"]
        assert len(origin.log) in (2, 3), "nothing was asked for again"


def test_a_reload_with_another_url_under_load(origin: Origin) -> None:
    """Every job gets all its keys, the ledger and the disk agree, and the caps hold throughout."""
    keys = [f"{number}.bin" for number in range(40)]
    with Origin() as other:
        for key in keys:
            other.put(key, 100_000)
            origin.put(key, 100_000)
        with Daemon({"s": origin.url}, max_shards=0, max_bytes=5 * MB, grace="0s", scan="60s") as daemon:
            with Sampler(daemon.cache) as seen:
                jobs = []
                for round_ in range(12):
                    jobs.append(daemon.prefetch("s", keys))
                    daemon.tables["sources"]["s"] = {"url": (other, origin)[round_ % 2].url}
                    daemon.reload()
                    until(lambda n=round_: daemon.log.count("reloaded: ") > n, 20, "the reload")  # type: ignore[misc]
                ends = [daemon.job(job) for job in jobs]
            assert [(end["state"], end["done"], end["failed"]) for end in ends] == [("done", 40, 0)] * 12
            assert seen.most.bytes <= 5 * MB
            daemon.audit()


def test_a_folder_that_is_not_there_is_told_and_delays_nothing(folder: Path) -> None:
    """At the start and on a reload, for the sources that it is true of; `check-config` tells it and finds no fault."""
    (folder / "good").mkdir()
    (folder / "good/a.bin").write_bytes(b"a")
    (folder / "empty").mkdir()
    sources = {name: f"file://{folder}/{name}/" for name in ("good", "empty", "gone")}
    with Daemon(sources) as daemon:
        until(lambda: daemon.log.count("is it mounted?") == 2, 20, "two warnings")
        assert f"source gone ({folder}/gone/)" in daemon.log
        assert f"source empty ({folder}/empty/)" in daemon.log
        assert "source good" not in daemon.log
        assert daemon.path("good", "a.bin").read_bytes() == b"a"
        (folder / "empty/b.bin").write_bytes(b"b")
        ran = daemon.cli("check-config", "--config", str(daemon.config))
        assert ran.status == 0
        (line,) = ran.err.splitlines()  # and nothing of the helpers that looked
        assert line.startswith(f"cachedaemon: warning: source gone ({folder}/gone/)")
        daemon.tables["sources"]["new"] = {"url": f"file://{folder}/new/"}
        daemon.reload()
        until(lambda: f"source new ({folder}/new/)" in daemon.log, 20, "a warning of the new source")


def test_a_suffix_behind_the_key_is_warned_of(origin: Origin) -> None:
    """Readers know keys alone: what ends so only by the url is a plain file, which nobody would find out by himself."""
    sources = {
        "behind": {"url": f"{origin.url}{{key}}.tar?x=1"},
        "asked": {"url": f"{origin.url}get?file={{key}}.zip&x=1"},
        "opaque": {"url": f"{origin.url}{{key}}.tar", "archives": "opaque"},
        "before": {"url": f"{origin.url}a.tar/{{key}}?name=x.tar"},
    }
    with Daemon(sources, begin=False, check=False) as daemon:
        daemon.write()
        ran = daemon.cli("check-config", "--config", str(daemon.config))
        assert ran.status == 0
        first, second = ran.err.splitlines()
        assert first.startswith("cachedaemon: warning: source behind: its url has '.tar' behind {key}")
        assert second.startswith("cachedaemon: warning: source asked: its url has '.zip' behind {key}")
        daemon.start()
        until(lambda: daemon.log.count("behind {key}") == 2, 20, "two warnings")


def test_a_prefetch_of_keys_that_cannot_be_is_refused_at_once(origin: Origin, folder: Path) -> None:
    with Daemon({"web": origin.url, "mount": f"file://{folder}/"}) as daemon:
        for source in ("web", "mount"):
            answer = daemon.api("POST", "/v1/prefetch", {"source": source, "keys": ["0.bin", "../up"]})
            assert (answer.status, answer.code) == (400, "bad_request")
            assert "'../up'" in answer.body["error"]["message"]
        assert not daemon.status()["fetches"]
        assert not origin.log


def test_a_reload_with_a_setting_that_is_refused_changes_nothing(origin: Origin) -> None:
    with Daemon({"s": origin.url}) as daemon:
        daemon.tables["sources"]["s"] = {"url": origin.url, "etl": "resize"}
        daemon.reload()
        said = "sources.s.etl: has no effect on a source of http"
        until(lambda: said in daemon.log, 20, "the refusal")
        assert daemon.acquire("s", "0.bin").status == 200
        ran = daemon.cli("check-config", "--config", str(daemon.config))
        assert (ran.status, said in ran.err, ran.err.count("\n")) == (1, True, 1)
