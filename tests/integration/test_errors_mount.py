"""A mounted source that hangs, fails or goes away: nothing else notices, and it recovers by itself."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.fusefs import FuseFs, fuse_fs
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SIZE = 3 << 20
LIMITS = {"retries": 0, "stall_timeout": "60s"}


@pytest.fixture
def mount() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder:
        for number in range(20):
            content.write(Path(folder) / f"{number}.bin", f"{number}.bin", SIZE)
        with fuse_fs(Path(folder)) as made:
            yield made


def source(mount: FuseFs) -> dict[str, object]:
    return {"url": f"file://{mount.path}/", "settle": 0, "concurrency": 4}


def threads(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))


@contextlib.contextmanager
def asking(daemon: Daemon, keys: list[str]) -> Iterator[None]:
    """Askers who wait for these until the block ends, and then leave."""
    with contextlib.ExitStack() as stack:
        for key in keys:
            connection = stack.enter_context(contextlib.closing(daemon.connection()))
            connection.request("POST", "/v1/acquire", f'{{"source": "m", "key": "{key}"}}'.encode())
        yield


def test_a_hung_mount_disturbs_nothing_else(mount: FuseFs) -> None:
    """Warm hits, another source, health, metrics and status answer as ever; threads are bounded; it recovers."""
    with (
        Origin() as origin,
        Daemon({"m": source(mount), "w": origin.url}, fetch=LIMITS, max_shards=0, max_bytes="1GB") as daemon,
    ):
        daemon.path("m", "0.bin")
        for number in range(6):
            origin.put(f"{number}.bin", SIZE)
        daemon.path("w", "5.bin")
        before = threads(daemon)
        mount.turn(hang=True)
        with asking(daemon, [f"{number}.bin" for number in range(1, 20)]):
            until(lambda: len(daemon.status()["fetches"]) == 19, 20, "19 flights")
            began = time.monotonic()
            assert daemon.acquire("m", "0.bin").body["result"] == "hit"
            for number in range(5):
                assert content.matches(daemon.path("w", f"{number}.bin"), f"{number}.bin", SIZE)
            for path in ("/healthz", "/metrics", "/v1/status", "/v1/hello", "/v1/shards"):
                assert daemon.api("GET", path).status == 200
            assert daemon.evict("w", "0.bin").status == 204
            assert time.monotonic() - began < 20, "nothing waited for the mount's limit of 60 s"
            assert threads(daemon) - before <= 4 + 12, "the source's own, and those of other work"
        until(lambda: not daemon.status()["fetches"], 20, "the end of flights whose askers left")
        mount.turn()
        assert content.matches(daemon.path("m", "7.bin"), "7.bin", SIZE)


def test_sigterm_ends_in_time_while_the_mount_hangs(mount: FuseFs) -> None:
    with Daemon({"m": source(mount)}, fetch=LIMITS) as daemon:
        mount.turn(hang=True)
        with asking(daemon, ["1.bin", "2.bin"]), concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.acquire, "m", "3.bin")
            until(lambda: daemon.status()["waiters"] == 3, 20, "the askers")
            began = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - began < 10
            assert asked.result().code == "stopping"


def test_two_hundred_cancels_leave_no_descriptor(mount: FuseFs) -> None:
    """C-76: while it answers slowly and while it hangs."""
    with Daemon({"m": source(mount)}, fetch=LIMITS) as daemon:
        daemon.path("m", "0.bin")
        base = daemon.descriptors()
        for round_ in range(20):
            mount.turn(hang=True) if round_ % 2 else mount.turn(delay=0.01)
            with asking(daemon, [f"{number}.bin" for number in range(1, 11)]):
                until(lambda: daemon.status()["fetches"], 20, "flights")
            until(lambda: not daemon.status()["fetches"], 20, "no flights")
        mount.turn()
        until(lambda: daemon.descriptors() <= base + 3, 20, f"{base} descriptors, not {daemon.descriptors()}")
        assert content.matches(daemon.path("m", "11.bin"), "11.bin", SIZE)


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "ENOTCONN"])
def test_a_mount_that_fails_for_a_while(mount: FuseFs, error: str) -> None:
    """C-19: warm shards are served all the while, nothing is taken for deleted, and no restart is needed."""
    with Daemon({"m": source(mount)}, fetch=LIMITS, scan="200ms") as daemon:
        daemon.path("m", "0.bin")
        mount.turn(errno=error)
        for key in ("1.bin", "none.bin"):
            answer = daemon.acquire("m", key)
            assert (answer.status, answer.code) == (503, "origin_unavailable")
            assert f"m/{key}" in answer.body["error"]["message"]
        assert daemon.acquire("m", "0.bin").body["result"] == "hit"
        mount.turn()
        assert daemon.acquire("m", "1.bin").status == 200
        assert daemon.acquire("m", "none.bin").code == "missing"


@pytest.mark.parametrize("slash", ["/", ""])
def test_a_folder_that_goes_away_for_a_while(folder: Path, slash: str) -> None:
    """C-19: moved away, and moved away with an empty folder left in its place, as an unmounted file system leaves it."""
    place, away = folder / "set", folder / "away"
    place.mkdir()
    content.write(place / "a.bin", "a", 1000)
    content.write(place / "b.bin", "b", 1000)
    with Daemon({"m": {"url": f"file://{place}{slash}", "settle": 0}}, fetch={"retries": 8}, scan="200ms") as daemon:
        path = daemon.path("m", "a.bin")
        place.rename(away)
        assert daemon.acquire("m", "b.bin", wait=1).code == "wait_expired"
        place.mkdir()
        answer = daemon.acquire("m", "b.bin", wait=1)
        assert answer.code == "wait_expired"
        assert "mounted" in answer.body["error"]["message"]
        assert daemon.acquire("m", "a.bin").body["result"] == "hit"
        assert path.exists()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.acquire, "m", "b.bin", 60)
            until(lambda: daemon.status()["waiters"] == 1, 20, "the asker")
            place.rmdir()
            away.rename(place)
            assert asked.result().status == 200


def test_a_fifo_in_the_source_is_refused_and_no_thread_is_stuck(folder: Path) -> None:
    """C-76."""
    os.mkfifo(folder / "fifo.bin")
    content.write(folder / "a.bin", "a", 1000)
    settings = {"url": f"file://{folder}/", "settle": 0, "concurrency": 1}
    with Daemon({"m": settings}) as daemon:
        for _ in range(3):
            answer = daemon.acquire("m", "fifo.bin")
            assert (answer.status, answer.code) == (502, "origin_refused")
            assert "m/fifo.bin: not a regular file" in answer.body["error"]["message"]
        assert daemon.acquire("m", "a.bin").status == 200
