"""What all tests run under: both event loops, no blocking call on them, no process left behind, no silent skip in CI."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

PROJECT = Path(__file__).resolve().parent.parent
IN_CI = bool(os.environ.get("CACHEDAEMON_CI"))
BY_DESIGN = "not here by design"

MARK = "TESTS_OF_CACHEDAEMON_RUN"
"""Environment variable that every process below this one inherits; no `CACHEDAEMON_` name, since those get cleaned."""

# No deadline: how long an example takes says more about the machine's other work. CI takes the same examples each time;
# elsewhere new ones are tried, and failures kept where this user may write.
if IN_CI:
    settings.register_profile("tests", deadline=None, derandomize=True)
elif os.access(PROJECT, os.W_OK):
    settings.register_profile(
        "tests", deadline=None, database=DirectoryBasedExampleDatabase(PROJECT / ".hypothesis/examples")
    )
else:
    settings.register_profile("tests", deadline=None, database=InMemoryExampleDatabase())
settings.load_profile("tests")


# A shell that starts us in the background has SIGINT and SIGQUIT ignored, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


# --- skips -------------------------------------------------------------------------------------------------------


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure in CI, where everything that a test needs must be there."""
    if not IN_CI or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(BY_DESIGN):
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure in CI, unless its reason begins with {BY_DESIGN!r}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")


# --- crashes -----------------------------------------------------------------------------------------------------

CRASHED = PROJECT / ".pytest_cache/crashed"
"""Here after a run in which a process of the tests crashed or hung: what it had still to run was not run."""


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        CRASHED.unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    CRASHED.parent.mkdir(exist_ok=True)
    CRASHED.write_text(crashitem)


# --- event loops -------------------------------------------------------------------------------------------------


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on both; `@pytest.mark.asyncio(loop_factories=["uvloop"])` picks one."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


SLOW = Path(__file__).parent / "slow.txt"
"""Tests, and whole files of them, that take long."""
PLACES = ("http", "file")
"""Of the places that the suite for origins runs on, those of the usual run."""


def _is_of_a_place(item: pytest.Item) -> bool:
    """Whether it is the suite's, on another place than the usual ones."""
    places = re.findall(r"TestOrigins::.*\b(http|https|file|mount|ais)\b", item.nodeid)
    return bool(places) and places[0] not in PLACES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The daemon's own loop is uvloop: the other half of what runs on both is slow. So is what `slow.txt` names.

    Slow tests of whole processes, and those whose library is busy itself, run alone.
    """
    names = {item.nodeid for item in items}
    listed = set(SLOW.read_text().splitlines()) if SLOW.exists() else set()
    for item in items:
        if item.get_closest_marker("slow") and ("/process/" in item.nodeid or "TestVideos" in item.nodeid):
            item.add_marker(pytest.mark.alone)
        if (
            {item.nodeid, item.nodeid.partition("::")[0]} & listed
            or _is_of_a_place(item)
            or re.sub(r"\[asyncio\b", "[uvloop", item.nodeid) in names - {item.nodeid}
        ):
            item.add_marker(pytest.mark.slow)


# Calls that block and that blockbuster does not know, and where they are allowed all the same.
_BLOCKING: Mapping[str, list[tuple[str, set[str]]]] = {
    "os.open": [("subprocess.py", {"_get_devnull"})],  # asyncio starts programs through subprocess
    "os.fsync": [],
    "os.fdatasync": [],
    "os.ftruncate": [],
    "os.posix_fallocate": [],
    "os.pread": [],
    "os.pwrite": [],
    "os.chmod": [],
    "os.utime": [],
    "fcntl.flock": [],
}


_SUITE = "cachedaemon.conformance"
"""Tests that lie in the package: what they do to a place may block."""


@pytest.fixture(autouse=True)
def no_blocking_on_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call by the daemon's code that blocks its event loop raises `BlockingError`."""
    if request.node.get_closest_marker("asyncio") is None:
        yield
        return
    guard = BlockBuster("cachedaemon", excluded_modules=[_SUITE])
    for name, allowed in _BLOCKING.items():
        guard.functions[name] = BlockBusterFunction(
            None,
            name,
            scanned_modules="cachedaemon",
            excluded_modules=[_SUITE],
            can_block_functions=list(allowed),
        )
    for function in guard.functions.values():
        function.can_block_in("<frozen importlib._bootstrap>", "_find_and_load")  # an import is no I/O of the daemon's
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


# --- folders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder with a short path (a socket's path has at most 107 bytes) that other users may enter."""
    path = Path(tempfile.mkdtemp(prefix="cd-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


# --- ordinary users ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OrdinaryUser:
    """Runs programs without root's rights; as the tests' own user where that one is not root."""

    uid: int
    gid: int
    prefix: Sequence[str]

    def command(self, argv: Sequence[str | os.PathLike[str]]) -> list[str]:
        """The program and its arguments, to be started by whoever; the process keeps its id through all of it."""
        return [*self.prefix, *map(os.fspath, argv)]

    def run(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run to its end, output captured as text, 60 s at most."""
        options = {"capture_output": True, "text": True, "timeout": 60, "check": False, "cwd": "/"} | options
        return subprocess.run(self.command(argv), **options)  # noqa: PLW1510 - it stands in the options

    def popen(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(argv), **({"cwd": "/"} | options))

    def own(self, path: Path) -> Path:
        """Give a file or a folder with all in it to this user."""
        if os.geteuid() == 0:
            for one in (path, *path.rglob("*")):
                os.chown(one, self.uid, self.gid, follow_symlinks=False)
        return path


# An interpreter below a folder that only root may enter (/root/.pyenv) is of no use to others. So the program gets
# mounts of its own: such folders are replaced by ones that can be entered and hold nothing but what is needed.
# Arguments: uid, gid, a work folder, then folders to replace, "--", folders to keep, "--", and the program.
_REACHABLE = r"""
set -e
uid=$1 gid=$2 work=$3; shift 3
given=$(umask); umask 022
blocked=(); kept=()
while [ "$1" != -- ]; do blocked+=("$1"); shift; done; shift
while [ "$1" != -- ]; do kept+=("$1"); shift; done; shift
mount -t tmpfs -o mode=755 tmpfs "$work"
for i in "${!kept[@]}"; do mkdir "$work/$i"; mount --bind "${kept[$i]}" "$work/$i"; done
for path in "${blocked[@]}"; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
for i in "${!kept[@]}"; do mkdir -p "${kept[$i]}"; mount --bind "$work/$i" "${kept[$i]}"; done
umount -R "$work"
umask "$given"
exec setpriv --reuid="$uid" --regid="$gid" --clear-groups -- "$@"
"""


def _prefix(uid: int, gid: int, work: Path) -> list[str]:
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, PROJECT)]
    blocked, kept = [], []
    for path in needed:
        closed = [step for step in reversed(path.parents) if not step.stat().st_mode & 0o001]
        if closed:
            kept.append(str(path))
            blocked += [str(closed[0])] if str(closed[0]) not in blocked else []
    if not blocked:
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    script = ["unshare", "--mount", "bash", "-c", _REACHABLE, "bash", str(uid), str(gid), str(work)]
    return [*script, *blocked, "--", *kept, "--"]


@pytest.fixture(scope="session")
def as_user() -> Iterator[OrdinaryUser]:
    """The user "nobody" when the tests run as root, else the tests' own user."""
    if os.geteuid() != 0:
        yield OrdinaryUser(os.geteuid(), os.getegid(), ())
        return
    with tempfile.TemporaryDirectory(prefix="cd-user-", dir="/tmp") as work:
        user = OrdinaryUser(65534, 65534, _prefix(65534, 65534, Path(work)))
        tried = user.run([sys.executable, "-c", "import os, cachedaemon.errors; print(os.getuid())"])
        if tried.stdout.strip() != "65534":
            pytest.skip(f"no ordinary user can run {sys.executable}: {tried.stderr.strip()[-200:]}")
        yield user


# --- processes ---------------------------------------------------------------------------------------------------


def _left(run: str) -> dict[int, str]:
    """Processes of this run that live: those that carry its mark, wherever their parent went, and all children."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                marked = f"{MARK}={run}".encode() in Path(entry.path, "environ").read_bytes().split(b"\0")
                stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # ended just now, or another user's
            helper = "multiprocessing.resource_tracker" in line or "multiprocessing.forkserver" in line
            if (marked or int(stat[1]) == os.getpid()) and stat[0] != "X" and not helper:
                found[int(entry.name)] = f"{entry.name} ({stat[0]}) {line.strip()[:200]}"
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail when a process that the tests started outlives them (multiprocessing's helpers live as long as this one)."""
    run = uuid.uuid4().hex
    os.environ[MARK] = run
    yield
    until = time.monotonic() + 5
    while (left := _left(run)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes left behind (now killed):\n" + "\n".join(left.values())


# --- object stores -----------------------------------------------------------------------------------------------


def _store(name: str) -> Iterator[Any]:
    from tests.fakes import stores  # obstore takes a while, and few tests need it

    with getattr(stores, name)() as running:
        yield running


@pytest.fixture(scope="session")
def moto() -> Iterator[Any]:
    """An S3 server, as faithful as can be had (`tests.fakes.stores.Running`)."""
    yield from _store("moto")


@pytest.fixture(scope="session")
def s3rver() -> Iterator[Any]:
    """A sloppy S3 server."""
    yield from _store("s3rver")


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[Any]:
    """A server of Google Cloud Storage's API."""
    yield from _store("fake_gcs")


@pytest.fixture(scope="session")
def azurite() -> Iterator[Any]:
    """A server of Azure's blob storage API."""
    yield from _store("azurite")
