"""Runs as root inside a machine that systemd booted, where the service is installed: test_systemd.py brings it there.

Standard library and the client only, by the service's own interpreter. Each function below `CHECKS` is one check; a line of JSON in
RESULT tells how it went.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

RESULT = Path("/result.jsonl")
SET = Path("/srv/set")
ETC = Path("/etc/cachedaemon")
DROPS = Path("/etc/systemd/system")
PROJECT = Path("/srv/project")
INSTALLER = str(PROJECT / "scripts/systemd")
SOCKET = Path("/run/cachedaemon/cachedaemon.sock")
KEYS = [f"{n}.bin" for n in range(12)]
TRAINER, STRANGER = 2000, 2001


def content(key: str) -> bytes:
    return random.Random(key).randbytes(200_000)


def run(*command: str, check: bool = True) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if check and ran.returncode:
        raise AssertionError(f"{command}: {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def show(unit: str, name: str) -> str:
    return run("systemctl", "show", "-P", name, unit)


def until(state: Callable[[], object], what: str, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not state():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def main_pid(unit: str = "cachedaemon.service") -> int:
    return int(show(unit, "MainPID"))


def is_active(unit: str) -> bool:
    return run("systemctl", "is-active", unit, check=False) == "active"


def as_user(uid: int, *, member: bool, code: str, socket_path: Path = SOCKET) -> subprocess.Popen[str]:
    """A program of an ordinary user, in the cache's group or not."""
    groups = f"--groups={grp.getgrnam('cachedaemon').gr_gid}" if member else "--clear-groups"
    return subprocess.Popen(
        ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        env={"CACHEDAEMON_SOCKET": str(socket_path), "PYTHONDONTWRITEBYTECODE": "1"},
    )


READ = """
import random, sys
from cachedaemon_client import ShardCache
cache = ShardCache("set", wait=60)
def content(key): return random.Random(key).randbytes(200_000)
def read(key):
    with cache.open(key) as shard:
        assert shard.path.read_bytes() == content(key), key
"""
ONCE = READ + "read('0.bin'); print('read')"
FOR_EVER = (
    READ
    + """
import select
chance, count = random.Random(), 0
while not select.select([sys.stdin], [], [], 0)[0]:
    read(f"{chance.randrange(12)}.bin")
    count += 1
    if count % 20 == 0:
        print(count, flush=True)
print("end", flush=True)
"""
)


class Reader:
    """A trainer that reads until it is told to end."""

    def __init__(self) -> None:
        self.process = as_user(TRAINER, member=True, code=FOR_EVER)
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        self.said.extend(line for line in self.process.stdout or ())

    def goes_on(self) -> None:
        """It reads 20 more shards."""
        before = len(self.said)
        until(lambda: len(self.said) > before or self.process.poll() is not None, "reads go on")
        assert self.process.poll() is None, "".join(self.said)

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self.process.stdin:
                self.process.stdin.write("end\n")
                self.process.stdin.close()
        self.process.wait(60)
        self._thread.join()
        assert self.said[-1] == "end\n", "".join(self.said)


# --- the checks, in this order -------------------------------------------------------------------------------------


def the_socket_unit_makes_folder_and_socket() -> None:
    run("systemctl", "start", "cachedaemon.socket")
    seen, folder = SOCKET.stat(), SOCKET.parent.stat()
    assert (stat.S_IMODE(seen.st_mode), grp.getgrgid(seen.st_gid).gr_name) == (0o660, "cachedaemon")
    assert stat.S_IMODE(folder.st_mode) == 0o755
    assert not is_active("cachedaemon.service")


def the_first_client_starts_the_daemon() -> None:
    reader = as_user(TRAINER, member=True, code=ONCE)
    said = reader.communicate(timeout=60)[0]
    assert said == "read\n", said
    assert is_active("cachedaemon.service")
    assert show("cachedaemon.service", "StatusText") == "serving set"
    status = Path(f"/proc/{main_pid()}/status").read_text()
    assert f"Uid:\t{os.stat('/var/cache/cachedaemon').st_uid}\t" in status
    assert "CapEff:\t0000000000000000" in status


def strangers_have_no_part_in_it() -> None:
    said = as_user(STRANGER, member=False, code=READ.replace("wait=60", "wait=1") + "read('0.bin')").communicate()[0]
    assert "Refused: no permission to use the socket" in said, said
    said = as_user(STRANGER, member=False, code="import os; os.listdir('/var/cache/cachedaemon')").communicate()[0]
    assert "PermissionError" in said, said
    said = as_user(TRAINER, member=True, code="open('/etc/cachedaemon/secrets/x')").communicate()[0]
    assert "PermissionError" in said, said


def restarts_disturb_no_reader() -> None:
    """C-65: clients reconnect by themselves, and a container that has the socket's folder mounted keeps a living one."""
    mounted = Path("/srv/mounted")
    mounted.mkdir()
    run("mount", "--bind", "/run/cachedaemon", str(mounted))
    folder, node = SOCKET.parent.stat().st_ino, SOCKET.stat().st_ino
    with readers(4) as reading:
        for _ in range(2):
            before = main_pid()
            run("systemctl", "restart", "cachedaemon.service")
            assert main_pid() not in (0, before)
            for one in reading:
                one.goes_on()
        run("systemctl", "reload", "cachedaemon.service")
        until(lambda: show("cachedaemon.service", "StatusText") == "serving set", "the reload")
    assert (SOCKET.parent.stat().st_ino, SOCKET.stat().st_ino) == (folder, node)
    said = as_user(TRAINER, member=True, code=ONCE, socket_path=mounted / SOCKET.name).communicate(timeout=60)[0]
    assert said == "read\n", said
    run("umount", str(mounted))


def a_killed_daemon_is_started_again() -> None:
    with readers(4) as reading:
        before, times = main_pid(), int(show("cachedaemon.service", "NRestarts"))
        os.kill(before, signal.SIGKILL)
        until(lambda: main_pid() not in (0, before) and is_active("cachedaemon.service"), "the next daemon")
        assert int(show("cachedaemon.service", "NRestarts")) == times + 1
        for one in reading:
            one.goes_on()


def the_watchdog_ends_a_stuck_daemon() -> None:
    with readers(4) as reading:
        before = main_pid()
        os.kill(before, signal.SIGSTOP)
        until(lambda: main_pid() not in (0, before) and is_active("cachedaemon.service"), "the next daemon")
        for one in reading:
            one.goes_on()
    assert "Watchdog timeout" in run("journalctl", "-u", "cachedaemon.service", "-o", "cat")


def an_upgrade_disturbs_no_reader() -> None:
    """From a release under another name to this one, by the installer; the one before stays for going back."""
    prefix = Path("/opt/cachedaemon")
    new = os.readlink(prefix / "current")
    run("cp", "-a", str(prefix / new), str(prefix / "old"))
    run("sed", "-i", f"s|{new}|old|g", str(prefix / "old/bin/cachedaemon"), str(prefix / "old/pyvenv.cfg"))
    run("ln", "-sfn", "old", str(prefix / "current"))
    run("systemctl", "restart", "cachedaemon.service")
    assert b"/opt/cachedaemon/old/" in Path(f"/proc/{main_pid()}/cmdline").read_bytes()
    with readers(4) as reading:
        run(INSTALLER, "install")
        for one in reading:
            one.goes_on()
    assert f"/opt/cachedaemon/{new}/".encode() in Path(f"/proc/{main_pid()}/cmdline").read_bytes()
    assert os.readlink(prefix / "previous") == "old"


def instances_do_not_touch_each_other() -> None:
    """C-65: one of two instances is restarted, then stopped; the other one, and the plain one, notice nothing."""
    for name, port in (("one", 9465), ("two", 9466)):
        ETC.joinpath(f"{name}.toml").write_text(
            f'[server]\nsocket_group = "cachedaemon"\nhttp = "127.0.0.1:{port}"\n[sources.set]\nurl = "file://{SET}/"\n'
        )
        run("systemctl", "start", f"cachedaemon@{name}.service")
    sockets = {name: Path(f"/run/cachedaemon-{name}/cachedaemon.sock") for name in ("one", "two")}
    assert Path("/var/cache/cachedaemon-one").stat().st_uid == Path("/var/cache/cachedaemon").stat().st_uid
    others = main_pid("cachedaemon@two.service"), main_pid()
    folder = sockets["one"].parent.stat().st_ino
    run("systemctl", "restart", "cachedaemon@one.service")
    assert sockets["one"].parent.stat().st_ino == folder
    for path in (*sockets.values(), SOCKET):
        said = as_user(TRAINER, member=True, code=ONCE, socket_path=path).communicate(timeout=60)[0]
        assert said == "read\n", said
    run("systemctl", "stop", "cachedaemon@one.socket", "cachedaemon@one.service")
    assert not sockets["one"].exists()
    assert (main_pid("cachedaemon@two.service"), main_pid()) == others
    said = as_user(TRAINER, member=True, code=ONCE, socket_path=sockets["two"]).communicate(timeout=60)[0]
    assert said == "read\n", said


def a_folder_that_is_mounted_later_is_seen() -> None:
    """The service has mounts of its own, and the machine's new ones reach them; new sources need a reload only."""
    late = Path("/srv/late")
    late.mkdir()
    config = ETC / "two.toml"
    config.write_text(f'{config.read_text()}[sources.late]\nurl = "file://{late}/"\n')
    before = main_pid("cachedaemon@two.service")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(late))
    late.joinpath("x.bin").write_bytes(b"late")
    run("systemctl", "reload", "cachedaemon@two.service")
    until(lambda: show("cachedaemon@two.service", "StatusText") == "serving set, late", "the reload")
    command = "/opt/cachedaemon/current/bin/cachedaemon"
    path = run(command, "get", "--socket", "/run/cachedaemon-two/cachedaemon.sock", "late", "x.bin")
    assert Path(path).read_bytes() == b"late"
    assert main_pid("cachedaemon@two.service") == before
    run("umount", str(late))


def a_cache_elsewhere_needs_the_drop_in() -> None:
    """C-68: without it the start says what is wrong; with it, all is well, and /var/cache is not used."""
    ETC.joinpath("far.toml").write_text(
        '[cache]\ndir = "/local/cache"\n[server]\nsocket_group = "cachedaemon"\nhttp = ""\n'
        f'[sources.set]\nurl = "file://{SET}/"\n'
    )
    run("install", "-d", "-o", "cachedaemon", "-g", "cachedaemon", "-m", "0750", "/local/cache")
    run("systemctl", "start", "--no-block", "cachedaemon@far.service")
    said = lambda: run("journalctl", "-u", "cachedaemon@far.service", "-o", "cat")  # noqa: E731
    until(lambda: "cache.dir = '/local/cache' cannot be used: Read-only file system" in said(), f"the error: {said()}")
    assert not is_active("cachedaemon@far.service")
    folder = DROPS / "cachedaemon@far.service.d"
    folder.mkdir()
    folder.joinpath("place.conf").write_text(PROJECT.joinpath("systemd/drop-ins/cache-place.conf").read_text())
    run("systemctl", "daemon-reload")
    until(lambda: is_active("cachedaemon@far.service"), "the next try")
    socket_path = Path("/run/cachedaemon-far/cachedaemon.sock")
    said_once = as_user(TRAINER, member=True, code=ONCE, socket_path=socket_path).communicate(timeout=60)[0]
    assert said_once == "read\n", said_once
    assert Path("/local/cache/shards/set/0.bin").stat().st_gid == grp.getgrnam("cachedaemon").gr_gid


def a_wrong_configuration_is_told_and_mended() -> None:
    good = ETC.joinpath("two.toml").read_text()
    ETC.joinpath("two.toml").write_text(good + "\n[cache]\nmax_shard = 3\n")
    run("systemctl", "restart", "cachedaemon@two.service", check=False)
    assert "cache.max_shard" in run("journalctl", "-u", "cachedaemon@two.service", "-o", "cat")
    ETC.joinpath("two.toml").write_text(good)
    until(lambda: is_active("cachedaemon@two.service"), "the next try")


def a_stop_of_the_socket_ends_both() -> None:
    run("systemctl", "stop", "cachedaemon.socket")
    until(lambda: not is_active("cachedaemon.service"), "the end")
    assert show("cachedaemon.service", "Result") == "success"
    assert not SOCKET.exists()
    assert SOCKET.parent.is_dir()


def nothing_runs_after_uninstalling() -> None:
    run(INSTALLER, "uninstall")
    assert not run(
        "systemctl",
        "list-units",
        "--plain",
        "--no-legend",
        "--state=active",
        "cachedaemon*.service",
        "cachedaemon*.socket",
    )
    assert not Path("/opt/cachedaemon").exists()
    assert sorted(os.listdir(ETC)) == ["cachedaemon.toml", "far.toml", "one.toml", "secrets", "two.toml"]
    assert Path("/var/cache/cachedaemon/shards/set").is_dir()


CHECKS = [
    the_socket_unit_makes_folder_and_socket,
    the_first_client_starts_the_daemon,
    strangers_have_no_part_in_it,
    restarts_disturb_no_reader,
    a_killed_daemon_is_started_again,
    the_watchdog_ends_a_stuck_daemon,
    an_upgrade_disturbs_no_reader,
    instances_do_not_touch_each_other,
    a_folder_that_is_mounted_later_is_seen,
    a_cache_elsewhere_needs_the_drop_in,
    a_wrong_configuration_is_told_and_mended,
    a_stop_of_the_socket_ends_both,
    nothing_runs_after_uninstalling,
]


@contextlib.contextmanager
def readers(count: int) -> Iterator[list[Reader]]:
    """So many trainers that read; none of them may see an error until the end of the block."""
    made = [Reader() for _ in range(count)]
    try:
        for one in made:
            one.goes_on()
        yield made
    finally:
        for one in made:
            one.end()


def prepare() -> None:
    # systemd-nspawn covers the boot's id with one of its own, which no unit with ProtectProc= sees; on a machine there is one.
    run("umount", "/proc/sys/kernel/random/boot_id")
    run(INSTALLER, "install")
    SET.mkdir(parents=True)
    for key in KEYS:
        SET.joinpath(key).write_bytes(content(key))
    said = ETC.joinpath("cachedaemon.toml").read_text().replace("max_shards = 20", "max_shards = 8")
    ETC.joinpath("cachedaemon.toml").write_text(f'{said}\n[sources.set]\nurl = "file://{SET}/"\n')
    for unit in ("cachedaemon", "cachedaemon@"):
        folder = DROPS / f"{unit}.service.d"
        folder.mkdir(parents=True)
        folder.joinpath("test.conf").write_text("[Service]\nWatchdogSec=4\nRestartSec=300ms\n")
    run("systemctl", "daemon-reload")


def went(check: Callable[[], None]) -> dict[str, object]:
    """How a check went; after a failure with the end of the journal."""
    began = time.monotonic()
    told: dict[str, object] = {"check": check.__name__}
    try:
        check()
    except Exception:  # noqa: BLE001 - told to the test, which is on the other side
        journal = run("journalctl", "-b", "-n", "60", "--no-pager", "-o", "short")
        told["failed"] = f"{traceback.format_exc()}\n{journal}"
    return {**told, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    with RESULT.open("w") as result:
        for check in (prepare, *CHECKS):
            result.write(json.dumps(went(check)) + "\n")
            result.flush()


main()
