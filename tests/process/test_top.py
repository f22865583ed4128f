"""`cachedaemon top`, in real terminals of two sizes, in a pipe, and while the daemon is away."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING, Self

import pyte
import pytest

from cachedaemon_client import ShardCache
from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NASTY = "esc\x1b[2J\x1b]0;title\x07[bold]\n.bin"


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(40):
            one.put(f"set/a-{number}.bin", 1000 + number)
        one.put(NASTY, 10)
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url, "other": origin.url}, max_shards=60, grace="200ms") as one:
        yield one


class Terminal:
    """The command in a terminal of so many columns and lines."""

    def __init__(self, daemon: Daemon, columns: int, lines: int) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._before = termios.tcgetattr(theirs)
        # What runs these tests may say how wide its own terminal is.
        outer = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [COMMAND, "top", "--socket", str(daemon.socket)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**outer, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self._theirs = theirs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self._theirs)
        os.close(self._ours)

    def read(self) -> str:
        """What the screen shows by now."""
        while select.select([self._ours], [], [], 0.05)[0]:
            self._stream.feed(os.read(self._ours, 1 << 16))
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, *parts: str) -> str:
        """The first screen with all of this on it.

        What a program paints comes in pieces: half a line may be on the screen already. So nothing is asserted of a screen
        but what was waited for.
        """
        return self.until(lambda said: all(part in said for part in parts))

    def until(self, state: Callable[[str], bool], seconds: float = 30.0) -> str:
        """The first screen of this state. It has to say all that is asserted of it (`shows`)."""
        shown = ""
        end = time.monotonic() + seconds
        while not state(shown := self.read()):
            assert self.process.poll() is None, shown
            assert time.monotonic() < end, shown
        return shown

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ends(self) -> int:
        """Its exit status; the terminal is as it was before."""
        until(lambda: (self.read(), self.process.poll())[1] is not None, 20, "the end of top")
        assert termios.tcgetattr(self._theirs) == self._before
        return self.process.wait()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_all_of_it_fits_and_is_live(daemon: Daemon, origin: Origin, columns: int, lines: int) -> None:
    gate = Gate(2 << 20)
    origin.put(f"gated-{columns}.bin", 3 << 20, gate=gate)
    keys = [f"set/a-{number}.bin" for number in range(20)]
    with (
        ShardCache("s", socket=str(daemon.socket)) as cache,
        cache.plan(keys),
        cache.open(keys[0]),
        Terminal(daemon, columns, lines) as terminal,
    ):
        daemon.prefetch("s", [f"gated-{columns}.bin"])
        head = ("cachedaemon", "healthy", "shards ", "of 60", "hits ", "waiting ", "coming ", "regret ")
        parts = (*head, "on their way", f"s/gated-{columns}.bin", "% ", "(a prefetch)", "plans", "leased", "sources")
        terminal.shows(*parts)
        gate.open()
        terminal.until(lambda said: said.startswith("cachedaemon") and "sources" in said and "(a prefetch)" not in said)
        terminal.press(b"x")
        terminal.press(b"q")
        assert terminal.ends() == 0
    daemon.evict("s", f"gated-{columns}.bin")


def test_ctrl_c_ends_it_and_a_key_moves_no_cursor(daemon: Daemon, origin: Origin) -> None:
    gate = Gate(1)
    origin.put(NASTY, 1000, gate=gate)
    with Terminal(daemon, 200, 40) as terminal:
        daemon.prefetch("other", [NASTY])
        terminal.shows("other/esc\\x1b[2J\\x1b]0;title\\x07[bold]\\n.bin")
        gate.open()
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.ends() == 130


def test_a_daemon_that_is_away_is_told_and_waited_for(origin: Origin) -> None:
    with Daemon({"s": origin.url}) as daemon, Terminal(daemon, 80, 24) as terminal:
        terminal.shows("healthy")
        daemon.stop()
        terminal.shows("looking again")
        daemon.start()
        terminal.until(lambda said: "healthy" in said and "looking again" not in said)
        terminal.press(b"q")
        assert terminal.ends() == 0


def test_once_for_a_pipe(daemon: Daemon) -> None:
    daemon.path("s", "set/a-1.bin")
    ran = daemon.cli("top")
    assert (ran.status, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    assert ran.out.splitlines()[0].startswith("cachedaemon ")
    assert "sources" in ran.out
    assert daemon.cli("top", "--once").out.splitlines()[1].startswith("shards ")


def test_a_snapshot_a_line_for_programs(daemon: Daemon) -> None:
    said = json.loads(daemon.cli("top", "--once", "--json").out)
    assert {"cache", "transfers", "plans", "sources", "map", "points"} <= set(said)
    command = [COMMAND, "top", "--json", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ats = [json.loads(child.stdout.readline())["at"] for _ in range(3)]
        assert ats == sorted(ats)
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(ValueError):
            child.communicate(timeout=20)
    assert child.returncode == 130


def test_nobody_there_is_the_same_as_for_every_command(folder: str) -> None:
    ran = subprocess.run(
        [COMMAND, "top", "--once", "--socket", f"{folder}/none.sock"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 3
    assert len(ran.stderr.splitlines()) == 1
