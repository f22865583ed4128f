"""A mounted source that hangs, fails or goes away: nothing else notices, and it recovers by itself."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import os
import socket
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
CONCURRENCY = 4
LIMITS = {"retries": 0, "stall_timeout": "60s"}


@pytest.fixture
def mount() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder:
        for number in range(20):
            content.write(Path(folder) / f"{number}.bin", f"{number}.bin", SIZE)
        with fuse_fs(Path(folder)) as made:
            yield made


def source(mount: FuseFs) -> dict[str, object]:
    return {"url": f"file://{mount.path}/", "settle": 0, "concurrency": CONCURRENCY}


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def readers(daemon: Daemon) -> list[int]:
    """The processes that read mounts."""
    return daemon.helpers("mounts.helper")


@contextlib.contextmanager
def asking(daemon: Daemon, keys: list[str]) -> Iterator[None]:
    """Askers who wait for these until the block ends, and then leave."""
    with contextlib.ExitStack() as stack:
        for key in keys:
            connection = stack.enter_context(contextlib.closing(daemon.connection()))
            connection.request("POST", "/v1/acquire", f'{{"source": "m", "key": "{key}"}}'.encode())
        yield


def test_a_hundred_requests_that_hang_disturb_nothing_else(mount: FuseFs) -> None:
    """Warm hits, another source, health, metrics and status answer as ever; threads and processes are bounded; all recover."""
    (mount.folder / "many").mkdir()
    keys = [f"many/{number}.bin" for number in range(100)]
    for key in keys:
        content.write(mount.folder / key, key, 10_000)
    with (
        Origin() as origin,
        Daemon({"m": source(mount), "w": origin.url}, fetch=LIMITS, max_shards=0, max_bytes="1GB") as daemon,
        concurrent.futures.ThreadPoolExecutor(100) as pool,
    ):
        daemon.path("m", "0.bin")
        for number in range(6):
            origin.put(f"{number}.bin", SIZE)
        daemon.path("w", "5.bin")
        before = threads(daemon.pid)
        mount.turn(hang=True)
        asked = [pool.submit(daemon.acquire, "m", key, 120) for key in keys]
        until(lambda: daemon.status()["waiters"] == 100, 20, "100 waiters")
        began = time.monotonic()
        assert daemon.acquire("m", "0.bin").body["result"] == "hit"
        for number in range(5):
            assert content.matches(daemon.path("w", f"{number}.bin"), f"{number}.bin", SIZE)
        for path in ("/healthz", "/metrics", "/v1/status", "/v1/hello", "/v1/shards"):
            assert daemon.api("GET", path).status == 200
        assert daemon.evict("w", "0.bin").status == 204
        assert time.monotonic() - began < 20, "nothing waited for the mount's limit of 60 s"
        assert threads(daemon.pid) - before <= 12, "none for the mount: those of other work"
        assert [threads(pid) <= 1 + 2 * CONCURRENCY for pid in readers(daemon)] == [True]
        mount.turn()
        for key, one in zip(keys, asked, strict=True):
            assert content.matches(Path(one.result().body["path"]), key, 10_000)
        assert len(daemon.children()) == 1


@pytest.mark.parametrize("signal", ["stop", "kill9"])
def test_a_mount_that_hangs_in_the_middle_of_files_stops_nothing_else(mount: FuseFs, signal: str) -> None:
    """Bytes that came lie in the pipes to the daemon: it must read and close these whatever the mount does.

    The kernel keeps a pipe locked while a file is spliced into it, against SIGKILL too.
    """
    with Daemon({"m": source(mount)}, fetch=LIMITS) as daemon:
        daemon.path("m", "0.bin")
        mount.turn(delay=0.01, ops=["read"])
        with asking(daemon, ["1.bin", "2.bin", "3.bin", "4.bin"]):
            until(lambda: daemon.metric("origin_bytes_total", source="m") > 2 * SIZE, 20, "bytes")
            mount.turn(hang=True, ops=["read"])
            for _ in range(10):
                assert daemon.api("GET", "/healthz", timeout=10).status == 200
                assert daemon.acquire("m", "0.bin").body["result"] == "hit"
            assert daemon.status()["waiters"], "some hang, unless all had come before"
        until(lambda: not daemon.status()["fetches"], 20, "the end of flights whose askers left")
        began = time.monotonic()
        getattr(daemon, signal)()
        assert time.monotonic() - began < 10
        mount.turn()
        until(lambda: not daemon.children(), 20, "the end of the reading process")
        daemon.start()
        assert content.matches(daemon.path("m", "1.bin"), "1.bin", SIZE)


def test_requests_that_were_given_up_while_the_mount_hung_leave_nothing(mount: FuseFs) -> None:
    with Daemon({"m": source(mount)}, fetch=LIMITS) as daemon:
        daemon.path("m", "0.bin")
        mount.turn(hang=True)
        with asking(daemon, [f"{number}.bin" for number in range(1, 20)]):
            until(lambda: len(daemon.status()["fetches"]) == 19, 20, "19 flights")
        until(lambda: not daemon.status()["fetches"], 20, "the end of flights whose askers left")
        mount.turn()
        assert content.matches(daemon.path("m", "7.bin"), "7.bin", SIZE)


def test_a_daemon_starts_beside_a_mount_that_hangs(mount: FuseFs) -> None:
    """It ends in time and starts again; what is here is served, and the rest once the mount answers."""
    with Daemon({"m": source(mount)}, fetch=LIMITS) as daemon:
        path = daemon.path("m", "0.bin")
        mount.turn(hang=True)
        with asking(daemon, ["1.bin", "2.bin"]):
            until(lambda: daemon.status()["waiters"] == 2, 20, "the askers")
            assert daemon.restart() == 0
        assert daemon.acquire("m", "0.bin").body == {"path": str(path), "size": SIZE, "result": "hit"}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.acquire, "m", "1.bin")
            until(lambda: daemon.status()["waiters"] == 1, 20, "the asker")
            mount.turn()
            assert content.matches(Path(asked.result().body["path"]), "1.bin", SIZE)


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


def test_a_file_that_is_gone_in_the_middle_is_looked_for_anew(mount: FuseFs) -> None:
    """C-19: what a read says is not certain: only who opens a file can tell that it is missing."""
    with Daemon({"m": source(mount)}, fetch={**LIMITS, "retries": 1}) as daemon:
        mount.turn(errno="ENOENT", ops=["read"])
        answer = daemon.acquire("m", "1.bin")
        assert (answer.status, answer.code) == (503, "origin_unavailable")
        assert "m/1.bin" in answer.body["error"]["message"]
        mount.turn()
        assert daemon.acquire("m", "1.bin").status == 200


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


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
def test_a_read_that_fails_in_the_middle_goes_on_from_there(mount: FuseFs, error: str) -> None:
    """C-19: by opening the path anew; what came already is not read again."""
    key = "big.bin"
    content.write(mount.folder / key, key, 4 * SIZE)
    with (
        Daemon({"m": source(mount)}, fetch={"retries": 20}) as daemon,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        mount.turn(delay=0.02, ops=["read"])
        asked = pool.submit(daemon.path, "m", key)
        until(lambda: daemon.metric("origin_bytes_total", source="m") > SIZE, 20, "a quarter")
        mount.turn(errno=error, ops=["read"])
        until(lambda: daemon.metric("fetch_failures_total", reason="origin_unavailable") > 1, 20, "failures")
        mount.turn()
        assert content.matches(asked.result(), key, 4 * SIZE)
        assert daemon.metric("origin_bytes_total", source="m") == 4 * SIZE


def test_an_outage_under_load_fails_nobody_who_waits(mount: FuseFs) -> None:
    """C-19: warm shards are served all the while, none goes, cold ones arrive when the mount is back; nothing is missing.

    The watched folder, which could take an outage for a mass deletion, is not built yet.
    """
    with (
        Daemon({"m": source(mount)}, fetch={"retries": 50}, scan="100ms") as daemon,
        concurrent.futures.ThreadPoolExecutor(10) as pool,
    ):
        warm = [f"{number}.bin" for number in range(5)]
        for key in warm:
            daemon.path("m", key)
        mount.turn(errno="ESTALE")
        asked = [pool.submit(daemon.acquire, "m", f"{number}.bin", 60) for number in range(5, 15)]
        until(lambda: daemon.metric("origin_requests_total", source="m", status="origin_unavailable") > 20, 20, "tries")
        impatient = daemon.acquire("m", "none.bin", wait=0.5)
        assert (impatient.code, impatient.body["error"]["retryable"]) == ("wait_expired", True)
        assert [daemon.acquire("m", key).body["result"] for key in warm] == ["hit"] * 5
        assert {one["key"] for one in daemon.shards()} == set(warm)
        mount.turn()
        assert [one.result().status for one in asked] == [200] * 10
        assert daemon.metric("evictions_total") == 0


def test_a_burst_of_new_files_is_all_seen(folder: Path) -> None:
    """C-17, as far as it is of sources today: 20,000 files that appear at once, and a listing has every one.

    Nothing watches a source yet: a key is looked up when it is asked for.
    """
    (folder / "first.bin").write_bytes(b"x")
    with Daemon({"m": {"url": f"file://{folder}/", "settle": 0}}, max_shards=0, max_bytes="1MB") as daemon:
        daemon.path("m", "first.bin")
        for number in range(20_000):
            os.close(os.open(folder / f"{number}.bin", os.O_CREAT | os.O_WRONLY))
        answer = daemon.api("POST", "/v1/prefetch", {"source": "m"})
        assert answer.status == 202
        job = f"/v1/jobs/{answer.body['job']}"
        until(lambda: daemon.api("GET", job).body["total"] == 20_001, 20, "the listing")
        assert daemon.acquire("m", "19999.bin").status == 200


@contextlib.contextmanager
def no_inotify_left() -> Iterator[None]:
    """This user has used up its instances (inotify(7), max_user_instances)."""
    begin, held = ctypes.CDLL(None, use_errno=True).inotify_init1, list[int]()
    try:
        while (made := begin(os.O_CLOEXEC)) >= 0:
            held.append(made)
        assert ctypes.get_errno() == errno.EMFILE
        yield
    finally:
        for each in held:
            os.close(each)


def test_a_daemon_starts_without_inotify(folder: Path) -> None:
    """C-17: with all watches used up by others, it starts, and finds what is new."""
    content.write(folder / "a.bin", "a", 1000)
    with no_inotify_left(), Daemon({"m": {"url": f"file://{folder}/", "settle": 0}}) as daemon:
        assert daemon.acquire("m", "a.bin").status == 200
        content.write(folder / "b.bin", "b", 1000)
        assert daemon.acquire("m", "b.bin").status == 200


def test_a_file_that_is_being_written_arrives_whole(folder: Path) -> None:
    """First with no bytes at all, as NFS shows it, and then a part at a time."""
    path = folder / "a.bin"
    path.write_bytes(b"")
    with (
        Daemon({"m": {"url": f"file://{folder}/", "settle": "1s"}}) as daemon,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(daemon.path, "m", "a.bin")
        for number in range(1, 5):
            until(lambda n=number: time.time() - path.stat().st_mtime > 0.2, 10, f"part {number}")  # type: ignore[misc]
            assert not asked.done()
            with path.open("ab") as file:
                file.write(content.data("a", 100_000 * number)[100_000 * (number - 1) :])
        assert content.matches(asked.result(), "a", 400_000)


@pytest.mark.parametrize("odd", ["fifo", "device", "folder", "socket"])
def test_what_is_no_file_is_refused_and_no_thread_is_stuck(folder: Path, odd: str) -> None:
    """C-76."""
    content.write(folder / "a.bin", "a", 1000)
    with contextlib.ExitStack() as stack:
        if odd == "fifo":
            os.mkfifo(folder / odd)
        elif odd == "device":
            (folder / odd).symlink_to("/dev/zero")
        elif odd == "folder":
            (folder / odd).mkdir()
        else:
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(folder / odd))
        settings = {"url": f"file://{folder}/", "settle": 0, "concurrency": 1}
        daemon = stack.enter_context(Daemon({"m": settings}))
        for _ in range(5):
            answer = daemon.acquire("m", odd)
            assert (answer.status, answer.code) == (502, "origin_refused")
            assert f"m/{odd}: " in answer.body["error"]["message"]
        assert daemon.acquire("m", "a.bin").status == 200
