"""Beside others: mosaicml-streaming, litdata and webdataset read the same samples through caches of half their size.

    scripts/rivals
    python bench/rivals.py [--rivals cachedaemon,litdata] [--settings job,ranks,jobs] [--shards 48] [--members 50] [--size 20000]

Samples lie at one slow origin in the form that each wants, shards of the same number of samples; each rival runs in an
environment of its own (.tools/rivals), with the torch of this one. Settings: one job of one rank; 8 ranks on a node; two
independent jobs that share a cache. "x least" is bytes from the origin over the least that any cache of that size could
have fetched: each sample once, and (1 - c) of them in each further epoch, even where a second job reads them too. What was
chosen for each is in rivals_sides.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from rivals_data import FORMS, ROOT, WRONG, Data
from rivals_sides import Task
from side_by_side import Daemon, NotMeasured, folder, main, table

from tests.fakes import disk

HERE = Path(__file__).parent
BLOCK = 4096
CONNECTIONS = 16
SLACK = 1 << 16
"""Bytes of each cap for what a rival counts besides shards, its index."""
LONGEST = 400.0
"""Seconds after which a job has hung."""
NO_SHARING = {"mosaicml-streaming", "litdata"}
"""A second job on one folder is refused by the former, and with the latter both waited until they gave up: each job has a
folder of its own, with its part of the cap."""


@dataclass(frozen=True)
class Setting:
    """Who reads on the node."""

    title: str
    jobs: int
    ranks: int
    workers: int
    epochs: int


SETTINGS = {
    "job": Setting("one job: 1 rank x 4 workers, 4 epochs", 1, 1, 4, 4),
    "ranks": Setting("one job: 8 ranks x 2 workers, 4 epochs", 1, 8, 2, 4),
    "jobs": Setting("two independent jobs, each 1 rank x 4 workers, 3 epochs, one cache", 2, 1, 4, 3),
}


@dataclass(frozen=True)
class Outcome:
    """What a rival did in a setting."""

    rival: str
    sent: int
    """Bytes from the origin."""
    gets: int
    together: int
    """Transfers that began while the same shard was being transferred."""
    least: float
    """Bytes that any cache of this size has to fetch."""
    uses: int
    """Shards times epochs times jobs."""
    given: int
    """Samples."""
    seconds: float
    lost: int
    doubled: int
    errors: list[str]
    peak: float
    """Bytes on disk over the cap."""

    @property
    def row(self) -> list[str]:
        """For the table."""
        return [
            self.rival,
            f"{self.sent / 1e6:.0f}",
            f"{self.sent / self.least:.2f}",
            f"{max(0.0, 1 - self.gets / self.uses):.2f}",
            f"{self.given / self.seconds:,.0f}" if self.seconds else "-",
            f"{self.together}",
            f"{self.peak:.2f}",
            f"{len(self.errors)}",
            f"{self.lost}",
            f"{self.doubled}",
        ]


HEAD = ["", "MB", "x least", "hits", "samples/s", "twice at once", "peak/cap", "errors", "lost", "doubled"]


# --- the origin, and what lies there


def python_of(rival: str) -> str:
    """The interpreter that has it."""
    if rival == "cachedaemon":
        return sys.executable
    path = ROOT / ".tools" / "rivals" / rival / "bin" / "python"
    if not path.exists():
        raise NotMeasured(f"{rival} is not installed: scripts/rivals")
    return str(path)


class Shelf:
    """The origin with all forms of the samples."""

    def __init__(self, home: Path, data: Data) -> None:
        self.home, self.data = home, data
        self._stack = contextlib.ExitStack()

    def pack(self, rival: str) -> None:
        """Write one form, by that rival's own means."""
        (self.home / rival).mkdir()
        sizes = map(str, (self.data.shards, self.data.members, self.data.size))
        subprocess.run(
            [python_of(rival), HERE / "rivals_data.py", rival, self.home / rival, *sizes],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if (found := len(self.sizes(rival))) != self.data.shards:
            raise NotMeasured(f"{rival} made {found} shards of what should be {self.data.shards}")

    def sizes(self, rival: str) -> list[int]:
        """Bytes of each of its shards."""
        return [path.stat().st_size for path in (self.home / rival).iterdir() if path.suffix != ".json"]

    def cap(self, rival: str) -> int:
        """Bytes that half of its shards take on a disk."""
        return self.data.shards // 2 * (-(-max(self.sizes(rival)) // BLOCK) * BLOCK) + SLACK

    def least(self, rival: str, epochs: int) -> float:
        """Bytes that any cache of half of the shards has to fetch."""
        return sum(self.sizes(rival)) * (1 + (epochs - 1) / 2)

    def __enter__(self) -> Self:
        """Serving what was packed."""
        command = [sys.executable, HERE / "rivals_origin.py", self.home]
        process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.kill)
        self.port = int(process.stdout.readline()) if process.stdout else 0
        return self

    def __exit__(self, *_: object) -> None:
        """Ended."""
        self._stack.close()

    def url(self, rival: str) -> str:
        """Prefix of its shards."""
        return f"http://127.0.0.1:{self.port}/{rival}/"

    def counts(self) -> dict[str, int]:
        """What was asked for since the last look."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/counts", timeout=10) as answer:
            return dict(json.load(answer))


# --- jobs


class Job:
    """One job's processes, from start to end."""

    def __init__(self, task: Task, home: Path) -> None:
        self.task, self.home = task, home
        home.mkdir()
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [python_of(task.rival), HERE / "rivals_read.py", json.dumps(asdict(task)), str(home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._timer = threading.Timer(LONGEST, self._kill)
        self._timer.start()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def ready(self) -> None:
        """Wait until all its ranks have their loaders."""
        out = self._process.stdout
        while out and (line := out.readline()) and line != "ready\n":
            pass

    def go(self) -> None:
        """Begin."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write("go\n")
                self._process.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """Wait for its end; what each rank saw."""
        if self._process.stdout:
            self._process.stdout.read()
        status = self._process.wait()
        self._timer.cancel()
        self._kill()  # workers that outlived it
        said = [json.loads(path.read_text()) for path in sorted(self.home.glob("*.json"))]
        missing = self.task.ranks - len(said)
        why = f"ended by signal {-status}" if status < 0 else f"{missing} ranks said nothing"
        return [*said, *([{"epochs": [], "error": why}] if missing else [])]


@contextlib.contextmanager
def places(rival: str, shelf: Shelf, jobs: int, home: Path) -> Iterator[tuple[list[str], list[Path], int]]:
    """For each job its cache, the folders whose disk use counts, and a job's cap."""
    cap = shelf.cap(rival)
    if rival == "cachedaemon":
        source = {"url": shelf.url(rival), "concurrency": CONNECTIONS}
        with Daemon({"s": source}, max_shards=shelf.data.shards // 2, max_bytes=cap) as daemon:
            yield [str(daemon.socket)] * jobs, [daemon.cache / area for area in disk.AREAS], cap
        return
    shared = rival not in NO_SHARING
    folders = [home / f"cache-{0 if shared else job}" for job in range(jobs)]
    for place in set(folders):
        place.mkdir()
    yield list(map(str, folders)), sorted(set(folders)), cap if shared else cap // jobs


class Peak:
    """The most bytes that folders had at once; a file that is renamed counts once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.bytes = 0
        self._folders = folders
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.bytes = max(self.bytes, disk.blocks(*self._folders))

    def __enter__(self) -> Self:
        """Looking."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Looked."""
        self._ended.set()
        self._thread.join()


# --- one rival in one setting


def measure(rival: str, setting: Setting, shelf: Shelf) -> Outcome:
    """Run its jobs, all at once."""
    with folder("/tmp") as home, places(rival, shelf, setting.jobs, home) as (locals_, folders, cap):
        base = Task(
            rival=rival,
            url=shelf.url(rival),
            local="",
            cap=cap,
            ranks=setting.ranks,
            workers=setting.workers,
            epochs=setting.epochs,
            seed=0,
            **asdict(shelf.data),
        )
        shelf.counts()
        with Peak(folders) as peak:
            said = run_jobs([replace(base, local=local, seed=17 * job) for job, local in enumerate(locals_)], home)
        counts = shelf.counts()
    lost, doubled, wrong = missing_and_double(said, setting, shelf.data)
    ranks = [rank for job in said for rank in job]
    errors = [rank["error"] for rank in ranks if rank["error"]] + ["wrong bytes"] * wrong
    began = [rank["began"] for rank in ranks if "ended" in rank]
    ended = [rank["ended"] for rank in ranks if "ended" in rank]
    return Outcome(
        rival=rival,
        **counts,
        least=shelf.least(rival, setting.epochs),
        uses=shelf.data.shards * setting.epochs * setting.jobs,
        given=sum(len(epoch) for rank in ranks for epoch in rank["epochs"]),
        seconds=max(ended) - min(began) if ended else 0.0,
        lost=lost,
        doubled=doubled,
        errors=errors,
        peak=peak.bytes / shelf.cap(rival),
    )


def run_jobs(tasks: list[Task], home: Path) -> list[list[dict[str, Any]]]:
    """For each job what its ranks saw. They are made ready one after the other, and begin together."""
    jobs = []
    for number, task in enumerate(tasks):
        jobs.append(Job(task, home / f"job-{number}"))
        jobs[-1].ready()
    for job in jobs:
        job.go()
    return [job.end() for job in jobs]


def missing_and_double(said: list[list[dict[str, Any]]], setting: Setting, data: Data) -> tuple[int, int, int]:
    """Samples that a job did not see in an epoch, saw again in it, and saw with other bytes; over all jobs and epochs."""
    lost = doubled = wrong = 0
    for job in said:
        for number in range(setting.epochs):
            seen = Counter(one for rank in job for epoch in rank["epochs"][number : number + 1] for one in epoch)
            wrong += seen.pop(WRONG, 0)
            lost += data.samples - len(seen)
            doubled += seen.total() - len(seen)
    return lost, doubled, wrong


def run() -> None:
    """All settings, all rivals in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rivals", default=",".join(FORMS))
    options.add_argument("--settings", default=",".join(SETTINGS))
    options.add_argument("--shards", type=int, default=48)
    options.add_argument("--members", type=int, default=50)
    options.add_argument("--size", type=int, default=20_000)
    chosen = options.parse_args()
    rivals = chosen.rivals.split(",")
    with folder("/tmp") as home:
        shelf = Shelf(home, Data(chosen.shards, chosen.members, chosen.size))
        for rival in rivals:
            shelf.pack(rival)
        with shelf:
            for name in chosen.settings.split(","):
                report(SETTINGS[name], [measure(rival, SETTINGS[name], shelf) for rival in rivals])


def summary(error: str) -> str:
    """Its kind and its last line, which of a worker's error is what happened."""
    return f"{error.partition(':')[0]}: {error.strip().splitlines()[-1]}"


def report(setting: Setting, outcomes: list[Outcome]) -> None:
    """Print a setting's table, and each error once."""
    print(f"{setting.title} (load average {os.getloadavg()[0]:.0f})")
    table(HEAD, [outcome.row for outcome in outcomes])
    for outcome in outcomes:
        for error, times in Counter(outcome.errors).items():
            print(f"    {outcome.rival}, {times} times: {summary(error)}")
    print(flush=True)


if __name__ == "__main__":
    main(run)
