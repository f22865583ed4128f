"""`exec`: paths in place, leases until the program's end, its exit status and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=4, grace="300ms") as one:
        for number in range(6):
            origin.put(f"img-{number}.bin", 1000 + number)
        yield one


@contextmanager
def _running(daemon: Daemon, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`exec` with these words, once its program has said a line."""
    command = [COMMAND, "exec", "--socket", str(daemon.socket), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def test_one_place_takes_all_paths(daemon: Daemon) -> None:
    ran = daemon.cli("exec", "s", "img-1.bin", "img-0.bin", "--", "printf", "%s\n", "before", "{}", "after")
    assert ran.status == 0, ran.err
    assert ran.out.split() == [
        "before",
        str(daemon.path("s", "img-1.bin")),
        str(daemon.path("s", "img-0.bin")),
        "after",
    ]


def test_as_many_places_as_keys_take_one_each(daemon: Daemon) -> None:
    ran = daemon.cli("exec", "s", "img-1.bin", "img-0.bin", "--", "printf", "%s\n", "{}", "between", "{}", "x{}")
    assert ran.out.split() == [str(daemon.path("s", "img-1.bin")), "between", str(daemon.path("s", "img-0.bin")), "x{}"]


@pytest.mark.parametrize("program", [["cat"], ["cat", "{}", "{}", "{}"], ["cat", "x{}"]])
def test_another_number_of_places_is_a_usage_error(program: list[str], daemon: Daemon) -> None:
    ran = daemon.cli("exec", "s", "img-0.bin", "img-1.bin", "--", *program)
    assert ran.status == 2
    assert "{}" in ran.err


def test_the_program_has_words_of_its_own_after_the_dashes(daemon: Daemon) -> None:
    ran = daemon.cli("exec", "s", "img-0.bin", "--", "echo", "--help", "--", "--socket", "{}")
    assert ran.out == f"--help -- --socket {daemon.path('s', 'img-0.bin')}\n"


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)])
def test_the_exit_status_is_the_programs(script: str, status: int, daemon: Daemon) -> None:
    assert daemon.cli("exec", "s", "img-0.bin", "--", "sh", "-c", script, "{}").status == status


def test_what_cannot_be_started_is_told_as_env_does(daemon: Daemon) -> None:
    absent = daemon.cli("exec", "s", "img-0.bin", "--", "no-such-program", "{}")
    folder = daemon.cli("exec", "s", "img-0.bin", "--", str(daemon.home), "{}")
    assert (absent.status, folder.status) == (127, 126)
    assert "no-such-program" in absent.err
    assert len(absent.err.splitlines()) == len(folder.err.splitlines()) == 1


def test_trouble_with_the_shards_is_125(daemon: Daemon) -> None:
    many = [f"img-{number}.bin" for number in range(5)]
    for words, says in (
        (("s", "none.bin"), "none.bin"),
        (("nosuch", "a"), "nosuch"),
        (("s", *many), "cap is 4"),
        (("s", "a", "--socket", str(daemon.home / "nobody.sock")), "nobody.sock"),
    ):
        ran = daemon.cli("exec", *words, "--", "echo", "{}")
        assert (ran.status, ran.out) == (125, "")
        assert says in ran.err
        assert len(ran.err.splitlines()) == 1


def test_the_shards_are_leased_until_the_program_ends(daemon: Daemon) -> None:
    with _running(daemon, "s", "img-0.bin", "--", "sh", "-c", "echo ready; exec sleep 60", "{}") as child:
        until(lambda: daemon.evict("s", "img-0.bin").code == "leased", 10, "a refusal")
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    until(lambda: daemon.evict("s", "img-0.bin").status in (204, 404), 20, "the lease's end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_go_on_to_the_program(number: signal.Signals, daemon: Daemon) -> None:
    script = f"trap 'echo caught; exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with _running(daemon, "s", "img-0.bin", "--", "sh", "-c", script, "{}") as child:
        child.send_signal(number)
        out, _ = child.communicate(timeout=20)
    assert (child.returncode, out) == (9, "caught\n")


def test_a_terminals_ctrl_c_reaches_the_program_once(daemon: Daemon) -> None:
    """The terminal signals the whole foreground group: exec must not send the same signal again."""
    leader, follower = os.openpty()
    script = (
        "import signal, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\nend = time.monotonic() + 60\n"
        "while not seen and time.monotonic() < end: time.sleep(0.05)\ntime.sleep(0.5); print(len(seen))"
    )
    command = [COMMAND, "exec", "s", "img-0.bin", "--socket", str(daemon.socket), "--", "python3", "-c", script, "{}"]
    child = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.write(leader, b"\x03")
        out, err = child.communicate(timeout=60)
    os.close(leader)
    os.close(follower)
    assert (child.returncode, out, err) == (0, "1\n", "")


def test_the_program_starts_with_the_usual_signals(daemon: Daemon) -> None:
    """What exec blocks and Python ignores for itself must not reach the program (SIGPIPE among them)."""
    ran = daemon.cli("exec", "s", "img-0.bin", "--", "grep", "-h", "^Sig\\(Blk\\|Ign\\)", "/proc/self/status", "{}")
    # Signals 32 and 33 are the C library's own, and its posix_spawn leaves them ignored.
    masks = [int(line.split()[1], 16) & 0x7FFFFFFF for line in ran.out.splitlines()]
    assert masks == [0, 0]


def test_the_program_inherits_no_descriptor(daemon: Daemon) -> None:
    ran = daemon.cli("exec", "s", "img-0.bin", "--", "sh", "-c", "ls /proc/self/fd; readlink /proc/self/fd/*", "{}")
    assert "shards" not in ran.out
