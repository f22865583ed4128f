"""The examples of watched folders, run as they are."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = [f"{number}.bin" for number in range(6)]


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    (folder / "drop").mkdir()
    source = {"url": f"file://{folder}/drop/", "watch": True, "settle": "100ms"}
    with Daemon({"in": source}, max_shards=3) as made:
        yield made


def download(folder: Path) -> threading.Thread:
    """A downloader at work."""

    def work() -> None:
        for key in KEYS:
            content.write(folder / f"{key}.part", key, 10_000)
            (folder / f"{key}.part").rename(folder / key)

    made = threading.Thread(target=work)
    made.start()
    return made


def run(daemon: Daemon, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**daemon.environ(), "CACHEDAEMON_SOCKET": str(daemon.socket)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    command = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False, cwd=daemon.home
    )


def sha256(key: str) -> str:
    return hashlib.sha256(content.data(key, 10_000)).hexdigest()


def test_a_pool_of_processes(daemon: Daemon, folder: Path) -> None:
    work = download(folder / "drop")
    ran = run(daemon, "watch_folder.py", "in", str(folder / "results"), "--workers", "2", "--idle", "4")
    work.join()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == KEYS
    results = [json.loads(path.read_text()) for path in sorted((folder / "results").iterdir())]
    assert results == [{"key": key, "size": 10_000, "sha256": sha256(key)} for key in KEYS]


@pytest.mark.slow
def test_a_second_run_goes_on_where_the_first_one_ended(daemon: Daemon, folder: Path) -> None:
    download(folder / "drop").join()
    (folder / "results").mkdir()
    (folder / "results" / "0.bin.json").write_text("kept")
    ran = run(daemon, "watch_folder.py", "in", str(folder / "results"), "--workers", "1", "--idle", "4")
    assert sorted(ran.stdout.split()) == KEYS[1:]
    assert (folder / "results" / "0.bin.json").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("qcg") is None, reason="qcg-pilotjob is not installed")
def test_jobs_of_qcg_pilotjob(daemon: Daemon, folder: Path) -> None:
    work = download(folder / "drop")
    words = ("in", str(folder / "results"), "--idle", "5", "--nodes", "2", "--", "sha256sum", "{}")
    ran = run(daemon, "qcg_watch.py", *words)
    work.join()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [f"{key} SUCCEED" for key in KEYS]
    assert [(folder / "results" / f"{key}.out").read_text().split()[0] for key in KEYS] == [sha256(key) for key in KEYS]
    until(lambda: not leftovers(folder), 10, "the end of its processes")


def leftovers(folder: Path) -> str:
    """Processes whose command line names the folder."""
    return subprocess.run(["pgrep", "-f", f"{folder}/results"], capture_output=True, text=True, check=False).stdout
