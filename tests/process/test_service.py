"""Under a service manager: what the daemon tells it, the watchdog, and sockets that are passed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import packing
from tests.fakes.daemon import Daemon, free_port
from tests.fakes.manager import Manager, listening
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import family, freeze, thaw, until

MIB = 1 << 20
SLOW = pytest.mark.slow


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.put("a.bin", 1000)
        yield made


def _managed(origin: Origin, manager: Manager) -> Daemon:
    return Daemon(
        {"s": {"url": origin.url, "archives": "unpack"}},
        env=manager.env,
        wrap=manager.wrap,
        popen=manager.popen,
        begin=False,
    )


# --- sd_notify -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", pytest.param("abstract", marks=SLOW)])
def test_ready_is_said_when_the_socket_accepts(origin: Origin, folder: Path, kind: str) -> None:
    """C-67: the start is extended first; the instant READY=1 arrives, a call is answered. Reloads and the end are told too."""
    address = str(folder / "notify") if kind == "path" else f"@{folder.name}"
    with Manager(address) as manager, _managed(origin, manager) as daemon:
        daemon.write()
        daemon.launch()
        heard = manager.until("READY=1")
        assert daemon.api("GET", "/v1/hello").status == 200
        assert heard[0].splitlines() == ["EXTEND_TIMEOUT_USEC=30000000", "STATUS=reading the cache directory"]
        assert heard[-1].splitlines() == ["READY=1", "STATUS=serving s"]
        daemon.tables["sources"]["t"] = {"url": origin.url}
        daemon.reload()
        begins, ends = manager.until("READY=1")
        assert begins.startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert ends.splitlines() == ["READY=1", "STATUS=serving s, t"]
        daemon.tables["sources"]["t"] = {"url": "nonsense://x"}
        daemon.reload()
        assert manager.until("READY=1")[-1].endswith("STATUS=serving s, t; the configuration is not reloaded")
        assert daemon.stop() == 0
        assert manager.hear().splitlines()[0] == "STOPPING=1"


@pytest.mark.parametrize(
    "address",
    ["/nonexistent/notify", *(pytest.param(one, marks=SLOW) for one in ("relative", "vsock:2:9", "@" + "x" * 107))],
)
def test_an_odd_notify_socket_breaks_no_start(origin: Origin, address: str) -> None:
    """C-67: one that cannot be reached is one warning, whatever is said to it; of another kind it counts as none."""
    with Daemon({"s": origin.url}, env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000"}) as daemon:
        daemon.path("s", "a.bin")
        daemon.reload()
        until(lambda: "reloaded" in daemon.log, 20)
        assert daemon.stop() == 0
        assert daemon.log.count("NOTIFY_SOCKET") == (1 if address[0] in "/@" else 0)


@SLOW
def test_a_manager_that_is_busy_hears_it_later(origin: Origin, folder: Path) -> None:
    with Manager(str(folder / "notify")) as manager, _managed(origin, manager) as daemon:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            other.connect(manager.address)
            with contextlib.suppress(BlockingIOError):
                while other.send(b"STATUS=somebody else"):
                    pass
        daemon.start()
        assert "STATUS=serving s" in manager.until("READY=1")[-1]


# --- the watchdog --------------------------------------------------------------------------------------------------


def test_pings_stop_only_when_the_loop_is_stuck(origin: Origin, folder: Path) -> None:
    """C-67: not when the pool that unpacks is."""
    for name in ("a.zip", "b.zip"):
        origin.put(name, data=packing.zip_bytes({"x": b"1" * 5000}))
    with (
        Manager(str(folder / "notify"), more={"WATCHDOG_USEC": "200000"}) as manager,
        _managed(origin, manager) as daemon,
        ThreadPoolExecutor(1) as pool,
    ):
        daemon.start()
        daemon.path("s", "a.zip")
        helpers = until(daemon.children, 10)
        for pid in helpers:
            freeze(pid)
        asked = pool.submit(daemon.path, "s", "b.zip")
        until(lambda: daemon.status()["waiters"], 20)
        for _ in range(10):
            manager.until("WATCHDOG=1")
        assert not asked.done()
        for pid in helpers:
            thaw(pid)
        assert asked.result().is_dir()
        daemon.freeze()
        assert manager.is_silent(0.5)
        daemon.thaw()
        manager.until("WATCHDOG=1")


@SLOW
def test_no_pings_where_the_watchdog_is_another_s(origin: Origin, folder: Path) -> None:
    """C-67: WATCHDOG_PID names another process."""
    with (
        Manager(str(folder / "notify"), more={"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}) as manager,
        _managed(origin, manager) as daemon,
    ):
        daemon.start()
        daemon.path("s", "a.bin")
        daemon.stop()
        assert "WATCHDOG=1" not in manager.until("STOPPING=1")


# --- sockets that are passed ---------------------------------------------------------------------------------------


def _get(link: socket.socket, path: str = "/v1/hello") -> dict[str, object]:
    """One call on a socket that is connected already."""
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = link
    connection.request("GET", path)
    return dict(json.loads(connection.getresponse().read()))


def _connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(20)
    link.connect(str(path))
    return link


def test_a_passed_socket_is_served_and_left_as_it_is(origin: Origin, folder: Path) -> None:
    """No lock beside it, mode and owner as they were, there after the end: who connects meanwhile is served by the next daemon."""
    with Daemon({"s": origin.url}, begin=False) as daemon, listening(daemon.socket, 0o604) as link:
        before = daemon.socket.lstat()
        with Manager(str(folder / "notify"), [link]) as manager:
            daemon.env, daemon.command = manager.env, [*manager.wrap, *daemon.command]
            daemon.popen = manager.popen
            daemon.start()
            daemon.path("s", "a.bin")
            assert daemon.stop() == 0
            with _connect(daemon.socket) as early:
                daemon.start()
                assert _get(early)["cache_dir"] == str(daemon.cache)
            daemon.stop()
        after = daemon.socket.lstat()
        assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, before.st_mode, before.st_gid)
        assert stat.S_IMODE(after.st_mode) == 0o604
        assert not Path(f"{daemon.socket}.lock").exists()


def test_several_passed_sockets(origin: Origin, folder: Path) -> None:
    """The one of server.socket, one more, and one for scraping in place of server.http; none reaches helper processes."""
    origin.put("a.zip", data=packing.zip_bytes({"x": b"1" * 5000}))
    with (
        Daemon({"s": {"url": origin.url, "archives": "unpack"}}, begin=False) as daemon,
        listening(folder / "other.sock") as other,
        listening(daemon.socket) as main,
        socket.create_server(("127.0.0.1", 0)) as scrape,
        Manager(str(folder / "notify"), [other, main, scrape], {"LISTEN_FDNAMES": "a:b:c"}) as manager,
    ):
        daemon.env, daemon.command, daemon.popen = manager.env, [*manager.wrap, *daemon.command], manager.popen
        daemon.tables["server"]["http"] = f"127.0.0.1:{free_port()}"
        daemon.start()
        with _connect(folder / "other.sock") as link:
            assert "sources" in _get(link)
        port = scrape.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 20) as link:
            assert _get(link, "/readyz") == {"status": "ready"}
        with socket.create_connection(("127.0.0.1", port), 20) as link:
            assert "error" in _get(link)
        daemon.path("s", "a.zip")
        inode = f"socket:[{os.fstat(main.fileno()).st_ino}]"
        for pid in until(daemon.children, 10):
            links = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
            assert inode not in links
            names = {one.partition(b"=")[0] for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
            assert not names & {b"LISTEN_FDS", b"LISTEN_PID", b"NOTIFY_SOCKET"}


@SLOW
def test_sockets_for_another_process_are_not_taken(origin: Origin, folder: Path) -> None:
    with (
        Daemon({"s": origin.url}, begin=False) as daemon,
        listening(folder / "other.sock") as other,
        Manager(str(folder / "notify"), [other], {"LISTEN_PID": "1"}) as manager,
    ):
        daemon.env, daemon.command, daemon.popen = manager.env, [*manager.wrap, *daemon.command], manager.popen
        daemon.start()
        assert Path(f"{daemon.socket}.lock").exists()


@pytest.mark.parametrize(
    "what", ["elsewhere", *(pytest.param(one, marks=SLOW) for one in ("datagram", "file", "nothing"))]
)
def test_what_cannot_be_served_is_a_start_error(origin: Origin, folder: Path, what: str) -> None:
    """Which descriptor, its name, and what server.socket is; nothing is made."""
    with (
        Daemon({"s": origin.url}, begin=False, check=False) as daemon,
        listening(folder / "other.sock") as other,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        (folder / "file").open("w") as file,
    ):
        given = {"elsewhere": [other], "datagram": [datagram], "file": [file], "nothing": [other]}[what]
        more = {"LISTEN_FDNAMES": "mine"}
        with Manager(str(folder / "notify"), given, more) as manager:  # type: ignore[arg-type]
            daemon.env, daemon.command, daemon.popen = manager.env, [*manager.wrap, *daemon.command], manager.popen
            if what == "nothing":  # a number that is no open descriptor
                daemon.env = {**daemon.env, "PASSED": f"{manager.popen['pass_fds'][0]}"}
                daemon.command = [
                    *manager.wrap[:2],
                    manager.wrap[2].replace('exec "$@"', 'exec "$@" 3<&-'),
                    *daemon.command[3:],
                ]
            ran = daemon.fails()
        assert ran.status == 1
        assert len(ran.err.strip().splitlines()) == 1
        if what == "elsewhere":
            assert f"server.socket = {str(daemon.socket)!r}" in ran.err
            assert f"passes a socket at {folder}/other.sock; both must be the same" in ran.err
        else:
            assert "descriptor 3 (mine), which the service manager passes, is no listening stream socket" in ran.err
        assert not daemon.cache.exists()


# --- as PID 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("times", [pytest.param(1, marks=SLOW), 2])
def test_sigterm_as_pid_1_in_mid_download(origin: Origin, times: int) -> None:
    """C-70: PID 1 of a container, for which the kernel has no default action, ends with 0 well within a pod's 30 s."""
    origin.put("big.bin", 4 * MIB, gate=Gate(MIB))
    with (
        Daemon({"s": origin.url}, wrap=["unshare", "--pid", "--fork", "--mount-proc"], check=False) as daemon,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(daemon.acquire, "s", "big.bin", 30)
        until(lambda: daemon.status()["waiters"], 20)
        [inner] = [pid for pid in family(daemon.pid) if _is_first(pid)]
        for _ in range(times):
            os.kill(inner, signal.SIGTERM)
        assert asked.result().code == "stopping"
        assert daemon.process is not None
        assert daemon.process.wait(15) == 0, daemon.log


@SLOW
@pytest.mark.root
def test_sigterm_as_pid_1_while_modules_load(origin: Origin) -> None:
    """The kernel would drop it, and a pod would be killed after its whole grace."""
    wrap = ["unshare", "--pid", "--fork", "--mount-proc"]
    with Daemon({"s": origin.url}, wrap=wrap, begin=False, check=False) as daemon:
        daemon.write()
        process = daemon.launch()
        inner = until(lambda: [pid for pid in family(daemon.pid) if _is_first(pid) and _catches_sigterm(pid)], 20)
        os.kill(inner[0], signal.SIGTERM)
        assert process.wait(15) == 0
        assert "ready" not in daemon.log


def _catches_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _is_first(pid: int) -> bool:
    """Whether it is PID 1 of a namespace of its own (proc(5), NSpid)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NSpid:")).split()[1:] == [str(pid), "1"]
