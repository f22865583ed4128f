"""`prefetch`: where its keys come from, its progress, and what it says when not all shards came."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
from typing import TYPE_CHECKING, Literal

import pytest

from tests.fakes import readers
from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(12):
            one.put(f"img-{number:02d}.bin", 1000)
            one.put(f"new-{number:02d}.bin", 1000)
        yield one


@pytest.fixture
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=8, grace="200ms") as one:
        yield one


def _here(daemon: Daemon) -> set[str]:
    return {row["key"] for row in daemon.shards("s")}


def test_keys_from_everywhere_come_in_order(daemon: Daemon) -> None:
    (daemon.home / "list").write_text("img-02.bin\n\nimg-03.bin\n")
    words = ["img-01.bin", "--from", "list", "--template", "img-{04..05}.bin", "--template", "img-06.bin"]
    ran = daemon.cli("prefetch", "s", *words, "--wait")
    assert (ran.status, ran.err) == (0, "")
    assert "6 of 6" in ran.out
    assert _here(daemon) == {f"img-{number:02d}.bin" for number in range(1, 7)}


def test_keys_from_standard_input(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s", "--from", "-", "--wait", "--json", stdin="img-00.bin\nimg-01.bin")
    said = json.loads(ran.out)
    assert (said["state"], said["total"], said["done"], said["bytes"]) == ("done", 2, 2, 2000)


def test_an_empty_list_is_a_job_of_nothing(daemon: Daemon) -> None:
    """A list that was named and is empty must not turn into "all that the origin lists"."""
    ran = daemon.cli("prefetch", "s", "--from", "-", "--wait")
    assert ran.status == 0, ran.err
    assert _here(daemon) == set()


def test_without_wait_it_only_begins(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s", "img-00.bin", "--json")
    assert ran.status == 0
    assert daemon.api("GET", f"/v1/jobs/{json.loads(ran.out)['job']}").status == 200


def test_no_key_is_all_that_the_origin_lists(folder: Path) -> None:
    (folder / "set").mkdir()
    for name in ("a.bin", "b.bin"):
        (folder / "set" / name).write_bytes(b"x")
        os.utime(folder / "set" / name, (0, 0))
    with Daemon({"s": f"file://{folder}/set/"}) as daemon:
        assert daemon.cli("prefetch", "s", "--wait").status == 0
        assert _here(daemon) == {"a.bin", "b.bin"}


def test_no_key_for_an_origin_without_a_list_is_a_usage_error(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s")
    assert ran.status == 2
    assert "cannot list" in ran.err


def test_a_shard_that_fails_is_named(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s", "img-00.bin", "none-1.bin", "none-2.bin", "--wait")
    assert ran.status == 1
    assert len(ran.err.splitlines()) == 1
    assert re.search(r"failed: 1 of 3 shards here; 2 failed: .*none-[12]\.bin.* \(and 1 more\)", ran.err)


def test_more_than_fits_ends_as_partial_and_says_why(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s", "--template", "img-{00..11}.bin", "--wait")
    assert ran.status == 1
    assert "partial: 8 of 12 shards here: the rest would displace what nobody has read yet\n" in ran.err


def test_partial_comes_first_then_what_failed(daemon: Daemon) -> None:
    ran = daemon.cli("prefetch", "s", "none.bin", "--template", "img-{00..11}.bin", "--wait")
    assert ran.status == 1
    assert re.search(r"partial: 8 of 13 shards here: .* read yet; 1 failed: .*none\.bin", ran.err), ran.err


def test_one_shard_is_no_shards(daemon: Daemon) -> None:
    assert re.search(r"done, 1 of 1 shard here, 1\.00 kB$", daemon.cli("prefetch", "s", "img-00.bin", "--wait").out)
    assert "cache      1 shard (cap: 8)" in daemon.cli("status").out


def test_ctrl_c_ends_the_waiting_and_not_the_job(origin: Origin, daemon: Daemon) -> None:
    origin.put("slow.bin", 1000, gate=(gate := Gate(500)))
    command = [COMMAND, "prefetch", "s", "slow.bin", "--wait", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert gate.reached.wait(20)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    said = re.fullmatch(r"cachedaemon: job (\w+) goes on in the daemon\n", err)
    assert said is not None, err
    gate.open()
    assert daemon.job(said[1])["state"] == "done"


# ---- terminals


def _on_a_terminal(daemon: Daemon, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output (a pipe), and what a terminal on standard error saw."""
    return _seen_on_a_terminal((*words, "--socket", str(daemon.socket)), b"", lambda: None)


def _seen_on_a_terminal(words: Sequence[str], sign: bytes, then: Callable[[], None]) -> tuple[int, str, str]:
    """The same; once the terminal has seen `sign` (a regular expression), `then` is called."""
    leader, follower = os.openpty()
    with subprocess.Popen(
        [COMMAND, *words],
        stdout=subprocess.PIPE, stderr=follower, text=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as child:  # fmt: skip
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # EIO: the other end is closed
                break
            seen += piece
            if re.search(sign, seen):
                then()
        out = child.stdout.read() if child.stdout else ""
    os.close(leader)
    return child.returncode, out, seen.decode(errors="replace")


def test_prefetch_shows_a_bar_on_a_terminal(daemon: Daemon) -> None:
    status, out, seen = _on_a_terminal(daemon, "prefetch", "s", "--template", "img-{00..03}.bin", "--wait")
    assert status == 0
    assert "4 of 4" in out
    assert "4/4" in seen


def test_verify_shows_a_bar_on_a_terminal(daemon: Daemon) -> None:
    for number in range(4):
        daemon.path("s", f"img-{number:02d}.bin")
    status, out, seen = _on_a_terminal(daemon, "verify", "s")
    assert (status, out) == (0, "4 shards checked, 4.00 kB: 0 damaged, 0 fetched again, 0 failed\n")
    assert "4/4" in seen


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("words", [["prefetch", "--wait"], ["get"], ["exec"]])
def test_a_bar_moves_with_the_bytes_of_one_shard(
    origin: Origin, daemon: Daemon, words: list[str], framing: Literal["length", "chunked"]
) -> None:
    """Also where the origin does not say how many there will be: the shard goes on when some MB of it have been seen."""
    gate = Gate(6_000_000)
    origin.put("big.bin", 10_000_000, gate=gate, framing=framing)
    command, *options = words
    program = ["--", "true", "{}"] if command == "exec" else []
    words = [command, "s", "big.bin", *options, "--socket", str(daemon.socket), *program]
    status, _, seen = _seen_on_a_terminal(words, rb" [1-6]\.\d\d MB", gate.open)
    assert status == 0, seen[-300:]
    assert "10.0 MB" in seen


def test_get_shows_a_bar_and_prints_paths_only(daemon: Daemon) -> None:
    status, out, seen = _on_a_terminal(daemon, "get", "s", "img-00.bin", "img-01.bin")
    assert status == 0
    assert out.splitlines() == [str(daemon.path("s", key)) for key in ("img-00.bin", "img-01.bin")]
    assert "2/2" in seen
    assert str(daemon.cache) not in seen


# ---- watch


def test_watch_tells_of_shards_across_a_restart(daemon: Daemon) -> None:
    snippet = """
import subprocess
child = subprocess.Popen(ARG, stdout=subprocess.PIPE, text=True)
for line in child.stdout: say(json.loads(line))
"""
    command = [COMMAND, "watch", "--socket", str(daemon.socket)]
    with readers.Reader(daemon, snippet, command) as reader:
        assert _told_of(daemon, reader, "img")["event"] == "ready"
        assert daemon.restart() == 0
        assert _told_of(daemon, reader, "new")["source"] == "s"


def _told_of(daemon: Daemon, reader: readers.Reader, kind: str) -> dict[str, str]:
    """What `watch` says of such a shard. It listens from now on, so that they come until it hears of one, 12 where 8 fit."""
    for number in range(100):
        daemon.path("s", f"{kind}-{number % 12:02d}.bin")
        with contextlib.suppress(AssertionError):
            told: dict[str, str] = reader.line(0.3)
            if told["key"].startswith(kind):
                return told
    raise AssertionError(f"watch says nothing: {reader.errors}")


def test_ctrl_c_ends_watch_quietly(daemon: Daemon) -> None:
    command = [COMMAND, "watch", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        for number in range(12):
            daemon.path("s", f"img-{number:02d}.bin")
            if select.select([child.stdout], [], [], 1)[0]:
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert json.loads(out.splitlines()[0])["event"] == "ready"
    assert (child.returncode, err) == (130, "")


def test_a_prefetch_displaces_nothing_that_it_names(daemon: Daemon) -> None:
    """What is here already counts as just used; the shard that was not used for the longest time among the others goes."""
    assert daemon.cli("prefetch", "s", "--template", "img-{00..07}.bin", "--wait").status == 0
    for number in range(8):
        daemon.path("s", f"img-{number:02d}.bin")
    until(lambda: daemon.cli("prefetch", "s", "img-08.bin", "img-00.bin", "--wait").status == 0, 20, "the grace's end")
    assert _here(daemon) == {f"img-{number:02d}.bin" for number in (0, *range(2, 9))}
