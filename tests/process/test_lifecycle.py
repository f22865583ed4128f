"""The daemon's life: start, second daemon, reload, drain."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import content, disk
from tests.fakes.daemon import Daemon, free_port
from tests.fakes.fusefs import fuse_fs
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.waiting import until

MIB = 1 << 20
LIMIT = 10.0
"""Seconds from SIGTERM to the end."""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        yield made


def _ends(daemon: Daemon) -> None:
    began = time.monotonic()
    assert daemon.stop(LIMIT) == 0, daemon.log
    assert time.monotonic() - began < LIMIT
    assert not daemon.socket.exists()
    assert "Traceback" not in daemon.log


# --- SIGTERM -----------------------------------------------------------------------------------------------------


def test_sigterm_in_mid_download_tells_waiters_and_leaves_nothing(origin: Origin) -> None:
    """C-70: waiters get `stopping` with Retry-After, staging is empty, and the status is 0."""
    gate = Gate(MIB)
    shard = origin.put("a.bin", 4 * MIB, gate=gate)
    with Daemon({"s": origin.url}) as daemon, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(daemon.acquire, "s", "a.bin", 30) for _ in range(8)]
        assert gate.reached.wait(20)
        until(lambda: daemon.status()["waiters"] == 8, 20)
        _ends(daemon)
        for one in asked:
            answer = one.result()
            assert (answer.status, answer.code) == (503, "stopping")
            assert answer.headers["retry-after"]
        assert disk.leftovers(daemon.cache) == []
        assert disk.published(daemon.cache) == []
        gate.open()
        assert shard.gets == 1


def test_a_second_sigterm_and_sigint_change_nothing(origin: Origin) -> None:
    origin.put("a.bin", 4 * MIB, gate=Gate(MIB))
    with Daemon({"s": origin.url}) as daemon, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(daemon.acquire, "s", "a.bin", 30)
        until(lambda: daemon.status()["fetches"], 20)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(daemon.pid, number)
        _ends(daemon)
        assert asked.result().code == "stopping"


def test_sigterm_ends_streams_of_events(origin: Origin) -> None:
    origin.put("a.bin", 1000)
    with Daemon({"s": origin.url}, http=True) as daemon:
        streams = [daemon.connection() for _ in range(5)]
        for stream in streams:
            stream.request("GET", "/v1/events")
            assert stream.getresponse().status == 200
        idle = daemon.connection()
        idle.request("GET", "/v1/hello")
        idle.getresponse().read()
        _ends(daemon)
        for stream in [*streams, idle]:
            stream.close()


def test_sigterm_with_a_hung_mount(folder: Path) -> None:
    """A thread that sits in a dead mount cannot be joined, and is not waited for.

    Frozen, not held by a fault: a call that the file system has taken already keeps its process even from SIGKILL.
    """
    content.write(folder / "a.bin", "a.bin", MIB)
    with fuse_fs(folder) as mount, Daemon({"s": f"file://{mount.path}/"}, check=False) as daemon:
        daemon.path("s", "a.bin")
        mount.freeze()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(daemon.acquire, "s", f"{n}.bin", 30) for n in range(4)]
            until(lambda: daemon.status()["waiters"] == 4, 20)
            _ends(daemon)
            assert {one.result().code for one in asked} == {"stopping"}


def test_sigterm_during_the_start_ends_it(origin: Origin) -> None:
    """Also as PID 1, for which the kernel has no default action: the handlers stand before the first lock."""
    with Daemon({"s": origin.url}) as first, Daemon({"s": origin.url}, cache_dir=first.cache, begin=False) as second:
        second.write()
        process = second.launch()
        until(lambda: (second.socket.parent / "d.sock.lock").exists() or process.poll() is not None, 20)
        process.send_signal(signal.SIGHUP)
        process.terminate()
        first.stop()
        assert process.wait(20) == 0
        first.start()


# --- two daemons ---------------------------------------------------------------------------------------------------


def _tree(folder: Path) -> list[tuple[str, int, int, int]]:
    return sorted((str(p), s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for p, s in disk.walk(folder))


def test_a_second_daemon_on_the_same_cache_touches_nothing(origin: Origin) -> None:
    origin.put("a.bin", MIB)
    with Daemon({"s": origin.url}, scan=0) as first:
        first.path("s", "a.bin")
        (first.cache / "staging/99").mkdir()
        until(lambda: '"synced": true' in (first.cache / "meta/s/a.bin.json").read_text(), 20)
        time.sleep(1.2)  # the last use is written to the disk once a second: let that be over
        before = _tree(first.cache)
        with Daemon({"other": origin.url}, cache_dir=first.cache, begin=False, check=False) as second:
            ran = second.fails()
        assert ran.status == 1
        assert f"pid {first.pid}" in ran.err
        assert str(first.cache) in ran.err
        assert len(ran.err.strip().splitlines()) == 1
        assert _tree(first.cache) == before
        assert first.acquire("s", "a.bin").body["result"] == "hit"
        (first.cache / "staging/99").rmdir()


def test_a_second_daemon_on_the_same_socket_touches_nothing(origin: Origin, folder: Path) -> None:
    with Daemon({"s": origin.url}) as first:
        with Daemon({"s": origin.url}, cache_dir=folder / "other", begin=False, check=False) as second:
            second.tables["server"]["socket"] = first.socket
            ran = second.fails()
        assert ran.status == 1
        assert f"another daemon listens at {first.socket}" in ran.err
        assert len(ran.err.strip().splitlines()) == 1
        assert not (folder / "other").exists()
        assert first.answers()


def test_the_next_daemon_waits_for_the_last_one_to_end(origin: Origin) -> None:
    origin.put("a.bin", MIB)
    with Daemon({"s": origin.url}) as daemon:
        daemon.path("s", "a.bin")
        old = daemon.process
        daemon.freeze()
        old.terminate()
        fresh = daemon.launch()
        try:
            threading.Timer(1.0, lambda: os.kill(old.pid, signal.SIGCONT)).start()
            assert old.wait(20) == 0
            until(daemon.answers, 20, daemon.log)
            assert fresh.poll() is None
            assert daemon.acquire("s", "a.bin").body["result"] == "hit"
        finally:
            old.kill()


def test_a_taken_port_is_a_start_error_and_touches_nothing(origin: Origin) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
            daemon.tables["server"]["http"] = f"127.0.0.1:{taken.getsockname()[1]}"
            ran = daemon.fails()
            assert ran.status == 1
            assert "server.http" in ran.err
            assert "in use" in ran.err
            assert 'allowed are another address and port of this machine, and "" for none' in ran.err
            assert not daemon.cache.exists()


def test_a_second_daemon_with_the_same_port_is_told_of_the_cache_directory(origin: Origin) -> None:
    """Which is the cause: another port would help nobody who starts the same configuration twice."""
    with Daemon({"s": origin.url}, http=True) as first:
        with Daemon({"s": origin.url}, cache_dir=first.cache, begin=False, check=False) as second:
            second.tables["server"]["http"] = first.tables["server"]["http"]
            ran = second.fails()
        assert ran.status == 1
        assert f"another daemon (pid {first.pid}) uses the cache directory {first.cache}" in ran.err
        assert "server.http" not in ran.err


# --- the socket ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 107])
def test_a_socket_path_of_up_to_107_bytes_works(origin: Origin, folder: Path, length: int) -> None:
    """C-63."""
    path = folder / ("x" * (length - len(str(folder)) - 1))
    assert len(os.fsencode(path)) == length
    with Daemon({"s": origin.url}, begin=False) as daemon:
        daemon.socket = path
        daemon.tables["server"]["socket"] = path
        daemon.start()
        assert daemon.api("GET", "/v1/hello").status == 200


@pytest.mark.parametrize("length", [108, 150])
def test_a_longer_socket_path_is_a_clear_start_error(origin: Origin, folder: Path, length: int) -> None:
    """C-63: which setting, how long, what is allowed; nothing is made."""
    path = folder / ("x" * (length - len(str(folder)) - 1))
    with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
        daemon.tables["server"]["socket"] = path
        ran = daemon.fails()
        assert ran.status == 1
        assert "server.socket" in ran.err
        assert "107" in ran.err
        assert str(length) in ran.err
        assert len(ran.err.strip().splitlines()) == 1
        assert not daemon.cache.exists()
        assert os.listdir(folder) == []


def test_a_file_in_the_sockets_place_is_left_alone(origin: Origin) -> None:
    with Daemon({"s": origin.url}, begin=False, check=False) as daemon:
        daemon.socket.write_text("precious")
        ran = daemon.fails()
        assert ran.status == 1
        assert "no socket" in ran.err
        assert daemon.socket.read_text() == "precious"


# --- SIGHUP --------------------------------------------------------------------------------------------------------


def _reloaded(daemon: Daemon) -> None:
    before = daemon.log.count("reloaded")
    daemon.reload()
    until(lambda: daemon.log.count("reloaded") > before, 20, "the reload")


@pytest.mark.parametrize("closed", ["0<&-", "0<&- 1>&- 2>&-"])
def test_it_serves_without_standard_streams(folder: Path, closed: str) -> None:
    """Its helpers start, too, and nothing of its own is taken for one of them."""
    (folder / "a.bin").write_bytes(b"of the source")
    wrap = ("bash", "-c", f'exec "$@" {closed}', "bash")
    with Daemon({"s": {"url": f"file://{folder}/", "settle": 0}}, wrap=wrap) as daemon:
        assert daemon.path("s", "a.bin").read_bytes() == b"of the source"
        assert "Assertion" not in daemon.log


def test_a_socket_that_somebody_removed_is_made_anew(origin: Origin) -> None:
    """Until then nobody new finds the daemon."""
    origin.put("0.bin", 1000)
    with Daemon({"s": origin.url}, server={"socket_mode": "0640"}) as daemon:
        daemon.socket.unlink()
        until(daemon.answers, 30, "the socket")
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o640
        assert "was removed by somebody: it is made anew" in daemon.log
        assert daemon.path("s", "0.bin").exists()


def test_a_reload_takes_over_caps_and_sources(origin: Origin) -> None:
    for name in ("a.bin", "b.bin", "c.bin", "d.bin"):
        origin.put(name, MIB)
    with Daemon({"s": origin.url}, max_shards=4, grace="1s") as daemon:
        for name in ("a.bin", "b.bin", "c.bin", "d.bin"):
            daemon.path("s", name)
        generation = daemon.api("GET", "/v1/hello").headers["cachedaemon-generation"]
        daemon.tables["cache"]["max_shards"] = 2
        daemon.tables["sources"]["t"] = {"url": origin.url}
        _reloaded(daemon)
        until(lambda: daemon.status()["cache"]["shards"] == 2, 20, "the surplus to go")
        assert disk.published(daemon.cache) == ["s/c.bin", "s/d.bin"]
        hello = daemon.api("GET", "/v1/hello")
        assert set(hello.body["sources"]) == {"s", "t"}
        assert hello.headers["cachedaemon-generation"] != generation
        assert content.matches(daemon.path("t", "a.bin"), "a.bin", MIB)
        del daemon.tables["sources"]["s"]
        _reloaded(daemon)
        assert daemon.acquire("s", "a.bin").code == "unknown_source"
        assert content.matches(daemon.path("t", "a.bin"), "a.bin", MIB)


def test_a_bad_configuration_changes_nothing(origin: Origin) -> None:
    origin.put("a.bin", MIB)
    with Daemon({"s": origin.url}, max_shards=4) as daemon:
        daemon.path("s", "a.bin")
        hello = daemon.api("GET", "/v1/hello")
        daemon.tables["cache"]["max_shards"] = 1
        daemon.tables["sources"]["t"] = {"url": "nonsense://x"}
        daemon.reload()
        until(lambda: "not reloaded" in daemon.log, 20)
        after = daemon.api("GET", "/v1/hello")
        assert after.body == hello.body
        assert after.headers["cachedaemon-generation"] == hello.headers["cachedaemon-generation"]
        assert daemon.status()["cache"]["max_shards"] == 4
        assert daemon.acquire("s", "a.bin").body["result"] == "hit"
        daemon.config.write_text("this is [no toml")
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: daemon.log.count("not reloaded") == 2, 20)
        assert daemon.acquire("s", "a.bin").body["result"] == "hit"
        daemon.config.unlink()
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: daemon.log.count("not reloaded") == 3, 20)
        assert daemon.answers()


def test_another_url_under_the_same_name_brings_other_bytes(origin: Origin) -> None:
    """Also for who is waiting right then: a flight from the old url never ends under the new one."""
    with Origin() as other:
        for name in ("a.bin", "b.bin"):
            origin.put(name, MIB, seed=1, gate=Gate(MIB // 2) if name == "b.bin" else None)
            other.put(name, MIB, seed=2)
        with Daemon({"s": origin.url}) as daemon, ThreadPoolExecutor(4) as pool:
            old = daemon.path("s", "a.bin")
            assert content.matches(old, "a.bin", MIB, seed=1)
            waiting = [pool.submit(daemon.path, "s", "b.bin") for _ in range(4)]
            until(lambda: daemon.status()["waiters"] == 4, 20)
            daemon.tables["sources"]["s"]["url"] = other.url
            with old.open("rb") as reader:
                _reloaded(daemon)
                assert reader.read() == content.data("a.bin", MIB, seed=1)  # who reads it keeps it
            for one in waiting:
                assert content.matches(one.result(), "b.bin", MIB, seed=2)
            answer = daemon.acquire("s", "a.bin")
            assert answer.body["result"] == "miss"
            assert content.matches(answer.body["path"], "a.bin", MIB, seed=2)
            daemon.audit()


def test_a_source_that_was_removed_and_comes_back_with_another_url(origin: Origin) -> None:
    """What it brought under the old url stays counted while it is away, and is never served under the new one."""
    with Origin() as other:
        origin.put("a.bin", MIB, seed=1)
        other.put("a.bin", MIB, seed=2)
        with Daemon({"s": origin.url, "t": origin.url}) as daemon:
            daemon.path("s", "a.bin")
            del daemon.tables["sources"]["s"]
            _reloaded(daemon)
            assert daemon.status()["cache"]["shards"] == 1
            daemon.tables["sources"]["s"] = {"url": other.url}
            _reloaded(daemon)
            assert content.matches(daemon.path("s", "a.bin"), "a.bin", MIB, seed=2)
            daemon.audit()
            del daemon.tables["sources"]["s"]
            _reloaded(daemon)
            daemon.tables["sources"]["s"] = {"url": other.url}
            _reloaded(daemon)
            assert daemon.acquire("s", "a.bin").body["result"] == "hit"


def test_two_reloads_at_once_and_one_during_the_drain(origin: Origin) -> None:
    with Daemon({"s": origin.url}) as daemon:
        for number in range(5):
            daemon.tables["cache"]["max_shards"] = 10 + number
            daemon.reload()
        until(lambda: daemon.status()["cache"]["max_shards"] == 14, 20)
        daemon.reload()
        _ends(daemon)


def test_the_origin_may_be_away_at_the_start() -> None:
    """No source is asked before somebody wants something of it."""
    with Daemon({"s": f"http://127.0.0.1:{free_port()}/"}, fetch={"retries": 0}) as daemon:
        assert daemon.acquire("s", "a.bin", 5).code == "origin_unavailable"


def test_logs_as_json_lines(origin: Origin) -> None:
    import json

    origin.put("a.bin", always=Status(404))
    with Daemon({"s": origin.url}, log={"format": "json"}) as daemon:
        daemon.acquire("s", "a.bin")
        daemon.stop()
        lines = [json.loads(line) for line in daemon.log.splitlines()]
        assert lines[0]["message"].startswith("ready")
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)


def test_the_socket_has_its_mode_whatever_the_umask(origin: Origin) -> None:
    for umask in (0o000, 0o077, 0o022):
        with Daemon({"s": origin.url}, popen={"umask": umask}, server={"socket_mode": "0660"}) as daemon:
            assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
            assert stat.S_IMODE(Path(f"{daemon.socket}.lock").stat().st_mode) == 0o600
