"""Very many shards, of which many go at once."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon import Daemon
from tests.fakes.waiting import until

SMALL, LARGE = 2_000, 40_000
GO = SMALL // 2
NEWEST = 50
"""Shards that were used last, which stay."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A cache directory in memory, where that can be: tens of thousands of files take long on a busy disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="cd-", dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made) / "cache"


def fill(cache: Path, count: int) -> None:
    """So many empty shards as if they had been fetched, one second of last use apart."""
    then = time.time() - count
    for n in range(count):
        (cache / f"shards/s/{n}.bin").touch()
        validators = {"etag": None, "version": None, "modified": None}
        said = {"key": f"{n}.bin", "size": 0, "digest": "xxh3-128:0", "blocks": 0, "inodes": 3, "fetched": then}
        meta = cache / f"meta/s/{n}.bin.json"
        meta.write_text(json.dumps({**said, "validators": validators, "synced": True}))
        os.utime(meta, (then + n, then + n))


def processor(pid: int) -> float:
    """Seconds of processor time so far, of all threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hits(daemon: Daemon, count: int) -> list[float]:
    """Seconds that each of the newest shards takes to be answered for, by the daemon itself."""
    took = []
    with contextlib.closing(daemon.connection()) as link:
        for n in range(count - NEWEST, count):
            began = time.monotonic()
            link.request("POST", "/v1/acquire", json.dumps({"source": "s", "key": f"{n}.bin", "wait": 60}))
            assert json.loads(link.getresponse().read())["result"] == "hit"
            took.append(time.monotonic() - began)
    return took


def lowered(cache: Path, count: int) -> float:
    """A reload lowers the cap of a full cache, so that `GO` shards must go; the processor seconds that each of them takes."""
    with Daemon({"s": "http://127.0.0.1:9/"}, max_shards=count, scan=0, grace=0, cache_dir=cache) as daemon:
        daemon.stop()
        fill(cache, count)
        daemon.start(120)
        assert daemon.status()["cache"]["shards"] == count
        before, took, threads = processor(daemon.pid), [], 0
        daemon.tables["cache"]["max_shards"] = count - GO
        daemon.reload()
        while daemon.status()["cache"]["shards"] > count - GO:
            took += hits(daemon, count)
            threads = max(threads, len(os.listdir(f"/proc/{daemon.pid}/task")))
        until(lambda: not list((cache / "trash").iterdir()), 60, "what went is deleted")
        spent = processor(daemon.pid) - before
        assert daemon.metric("evictions_total", source="s", reason="cap") == GO
        assert not (cache / "shards/s/0.bin").exists()
        assert (cache / f"shards/s/{GO}.bin").exists()
        assert threads < 100
        assert statistics.median(took) < 0.1
    return spent / (GO + len(took))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_shards_go_at_once(place: Path) -> None:
    """C-74: hits are answered meanwhile, threads are few, and what each costs does not grow with what is here."""
    small = lowered(place / "small", SMALL)
    large = lowered(place / "large", LARGE)
    assert large < 3 * small
