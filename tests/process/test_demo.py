"""The demo, in small: it ends with a table of what it counted, and leaves nothing behind however it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from cachedaemon.demo import order, report, show
from cachedaemon.demo.children import Children
from cachedaemon.demo.stage import Counts, Ran, counts, start_origin
from cachedaemon.demo.trainer import Told
from tests.fakes.daemon import COMMAND
from tests.fakes.waiting import family, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = "Shape(shards=5, samples=12, size=4000, cap=3, latency=0.01, rate=1e6, trainers=3, step=0.001)"
LONG = "Shape(shards=5, samples=12, size=4000, cap=3, latency=0.3, rate=1e5, trainers=3, step=0.1)"
PROGRAM = """
import dataclasses, sys
import cachedaemon.demo as demo
from cachedaemon.cli import main
from cachedaemon.demo import Shape, play
real = demo.run
def make(folder, shape):
    data = play.make(folder, shape)
    if {spoil}:
        samples = next(iter(data.shards.values()))
        samples[0] = samples[0]._replace(sha256="0" * 64)
    return data
demo.run = lambda keep: real(keep=keep, shape={shape}, make=make)
main({words!r})
"""


@contextmanager
def _demo(folder: Path, *words: str, shape: str = SMALL, spoil: bool = False) -> Iterator[subprocess.Popen[str]]:
    """`cachedaemon demo`, with this shape; its temporary folders lie in `folder`."""
    program = PROGRAM.format(shape=shape, spoil=spoil, words=["demo", *words])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "CACHEDAEMON_CACHE__MAX_SHARDS": "no number"},
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def _nothing_left(folder: Path, children: list[int]) -> None:
    assert list(folder.iterdir()) == []
    until(lambda: not [pid for pid in children if _lives(pid)], 10, f"the end of {children}")


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _heard(child: subprocess.Popen[str], words: str) -> str:
    """What it says until a line with these words."""
    said = ""
    for line in child.stdout or ():
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended: {said}{child.stderr.read() if child.stderr else ''}")


def test_it_ends_with_a_table_of_what_was_counted(folder: Path) -> None:
    with _demo(folder) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    rows = {line[:28].strip(): line[28:].split() for line in out.splitlines()}
    assert all(float(rate.replace(",", "")) > 0 for rate in rows["samples per second"])
    assert rows["in epoch 1"]
    assert rows["in epoch 2"]
    # 3 trainers fetch each of 5 shards in 2 epochs; one request for each of 60 samples an epoch; the daemon fetches
    # each shard once, and those that its cap of 3 made go again.
    assert rows["transfers per shard"][1:] == ["6.00", "-"]
    assert 1.4 <= float(rows["transfers per shard"][0]) <= 4
    assert rows["requests to the origin"][1:] == ["30", "120"]
    assert 0.8 <= float(rows["bytes / least possible"][0]) <= 2, "once a plan has ended the daemon reckons it"
    assert re.search(r"most shards on the disk\s+3 \(cap: 3\)", out)
    assert all(re.fullmatch(r"\d+%", part) for part in rows["time the trainers waited"])
    assert re.fullmatch(r"\d+%", rows["shards local when opened"][0])
    _nothing_left(folder, [])


@pytest.mark.slow
def test_wrong_bytes_are_a_failure(folder: Path) -> None:
    with _demo(folder, spoil=True) as child:
        out, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "samples per second" in out
    assert re.fullmatch(r"cachedaemon: with the daemon: 2 of 120 samples had wrong bytes\n", err)
    _nothing_left(folder, [])


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_the_middle_leaves_nothing(number: signal.Signals, folder: Path) -> None:
    with _demo(folder, shape=LONG) as child:
        _heard(child, "samples/s")
        children = family(child.pid)
        child.send_signal(number)
        child.send_signal(number)
        _, err = child.communicate(timeout=30)
    assert len(children) >= 5
    assert (child.returncode, err) == (130, "")
    _nothing_left(folder, children)


@pytest.mark.slow
def test_a_trainer_that_dies_is_told_in_one_line(folder: Path) -> None:
    with _demo(folder, shape=LONG) as child:
        _heard(child, "samples/s")
        children = family(child.pid)
        trainer = next(pid for pid in children if b"demo.trainer" in _command(pid))
        os.kill(trainer, signal.SIGKILL)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert re.fullmatch(r"cachedaemon: trainer \d failed: .*\n", err)
    _nothing_left(folder, children)


def _command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.mark.slow
def test_its_processes_end_with_it_when_it_is_killed(folder: Path) -> None:
    with _demo(folder, shape=LONG) as child:
        _heard(child, "samples/s")
        children = family(child.pid)
        child.kill()
    until(lambda: not [pid for pid in children if _lives(pid)], 20, f"the end of {children}")


def test_keep_leaves_it_running_as_it_says(folder: Path) -> None:
    with _demo(folder, "--keep") as child:
        said = _heard(child, "Ctrl-C ends it")
        socket = re.search(r"export CACHEDAEMON_SOCKET=(\S+)", said)
        assert socket is not None
        ran = subprocess.run(
            [COMMAND, "status", "--json", "--socket", socket[1]], capture_output=True, timeout=30, check=True
        )
        assert json.loads(ran.stdout)["cache"]["max_shards"] == 3
        page = re.search(r"curl (http://\S+)", said)
        assert page is not None
        assert b"cachedaemon_shards" in urllib.request.urlopen(page[1], timeout=30).read()
        # The snippet as it is printed, prompts removed.
        snippet = "".join(line[6:] + "\n" for line in said.splitlines() if re.match(r"  (>>>|\.\.\.) ", line))
        shown = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=30, check=True)
        assert re.fullmatch(r"/\S+/images-\d+\.zip 12 \d+\n", shown.stdout)
        children = family(child.pid)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, "")
    _nothing_left(folder, children)


@pytest.mark.slow
def test_a_long_temporary_folder_is_no_obstacle(folder: Path) -> None:
    """A socket's path has at most 107 bytes."""
    deep = folder / ("x" * 100)
    deep.mkdir()
    with _demo(deep) as child:
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert list(deep.iterdir()) == []


@pytest.mark.slow
def test_an_ordinary_user_can_play_it(folder: Path, as_user: Any) -> None:
    program = PROGRAM.format(shape=SMALL, spoil=False, words=["demo"])
    as_user.own(folder)
    ran = as_user.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(folder)})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_the_whole_of_it_ends_in_time(folder: Path) -> None:
    """As `make run` plays it; 90 s is what a newcomer is asked to wait at the most."""
    ran = subprocess.run(
        [COMMAND, "demo"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    _nothing_left(folder, [])


# ---- its parts


def test_all_that_it_shows_fits_80_columns() -> None:
    """Progress, whole with its time, and words broken only between words."""
    seen = io.StringIO()
    console = Console(file=seen, width=80, force_terminal=True, color_system=None, legacy_windows=False)
    told = [Told(samples=2560, seconds=0.2, waited=0.1, epochs=(0.1, 0.2), opened=8, hits=4)]
    for title in report.TITLES.values():
        with show.line(console, title, 2560) as line:
            line.show(told, ", 12 local")
    runs = {way: Ran(told, Counts(1234, 4_000_000_000, 64), 12) for way in report.TITLES}
    console.print(report.table(runs, 16, 12, 2))
    report.explain(console)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", seen.getvalue())]
    assert max(map(len, lines)) <= 80
    for title in report.TITLES.values():
        assert any(re.search(rf"{title}.* 100 % \d:\d\d:\d\d 12800 samples/s, 12 local", line) for line in lines)
    assert not any("…" in line for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "the origin sent a shard whole, over all trainers and epochs." in words


def test_each_sample_is_one_ranks_once_an_epoch() -> None:
    for epoch in range(3):
        seen = [i for rank in range(4) for i in order.of_samples("a", 50, 1, epoch, slice(rank, None, 4))]
        assert sorted(seen) == list(range(50))


def test_orders_can_be_repeated_and_are_independent() -> None:
    keys = [f"k{number}" for number in range(20)]
    assert order.of_shards(keys, 1, 0) == order.of_shards(reversed(keys), 1, 0)
    assert order.of_shards(keys, 1, 0) != order.of_shards(keys, 1, 1)
    assert order.of_shards(keys, 1, 0) != order.of_shards(keys, 2, 0)
    assert order.of_samples("a", 50, 1, 0, slice(None)) != order.of_samples("b", 50, 1, 0, slice(None))
    # The same on every machine and version: the stream's first values, written down once.
    assert order.of_shards(["a", "b", "c", "d", "e"], 7, 0) == ["a", "b", "e", "d", "c"]


def test_the_origin_serves_whole_objects_and_ranges_and_counts_them(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "a.zip").write_bytes(bytes(range(200)))
    with Children(folder, dict(os.environ)) as children:
        port = start_origin(children, folder / "data", 0.0, 1e9)
        found = Counter[object]()
        for key, headers in (("a.zip", {}), ("a.zip", {"Range": "bytes=10-19"}), ("a.zip", {"Range": "bytes=190-999"})):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{key}", headers=headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                found[answer.status, answer.read()] += 1
        assert found == {
            (200, bytes(range(200))): 1,
            (206, bytes(range(10, 20))): 1,
            (206, bytes(range(190, 200))): 1,
        }
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/none", timeout=30)
        assert counts(port) == Counts(requests=4, bytes=220, transfers=1)
