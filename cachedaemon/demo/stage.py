"""The origin, the daemon and the trainers of one demo, and what can be counted about them."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from cachedaemon.demo.children import Children, DemoFailed
from cachedaemon.demo.origin import COUNTS
from cachedaemon.demo.trainer import Told, Work
from cachedaemon_client.connection import Connection, call

SOURCE = "images"
SILENCE = 60.0
"""Seconds without a word from any trainer after which the demo gives up."""
START = 30.0
"""Seconds that a process has to begin."""
RECKONED = 10.0
"""Seconds that the daemon has to notice that all plans have ended, and to reckon what the least would have been."""


@dataclass(frozen=True)
class Counts:
    """What the origin has served."""

    requests: int
    bytes: int
    transfers: int

    def __sub__(self, before: Counts) -> Counts:
        """What it served since then."""
        return Counts(self.requests - before.requests, self.bytes - before.bytes, self.transfers - before.transfers)


@dataclass
class Ran:
    """What came of one way to read."""

    told: list[Told]
    origin: Counts
    peak: int = 0
    """Most shards that were seen in the cache at once."""
    regret: float | None = None
    """Bytes that came over the least that any cache of this size could do with; only the daemon reckons it."""
    errors: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples that were read."""
        return sum(one.samples for one in self.told)

    @property
    def wrong(self) -> int:
        """Samples whose bytes were not those of the data set."""
        return sum(one.wrong for one in self.told)

    @property
    def seconds(self) -> float:
        """Until the last trainer was done."""
        return max(one.seconds for one in self.told)

    @property
    def waited(self) -> float:
        """Part of their time that the trainers waited, 0 to 1."""
        return sum(one.waited for one in self.told) / sum(one.seconds for one in self.told)

    @property
    def hits(self) -> float | None:
        """Part of the shards that were local when they were opened, 0 to 1."""
        opened = sum(one.opened for one in self.told)
        return sum(one.hits for one in self.told) / opened if opened else None

    def epoch(self, number: int) -> float:
        """Seconds that an epoch took, over all trainers."""
        ends = [0.0, *(max(one.epochs[i] for one in self.told) for i in range(number + 1))]
        return ends[-1] - ends[-2]


def start_origin(children: Children, folder: Path, latency: float, rate: float) -> int:
    """Its port."""
    child = children.start("-m", "cachedaemon.demo.origin", str(folder), str(latency), str(rate))
    said = child.stdout.readline() if child.stdout else ""
    if not said.strip().isdigit():
        raise children.failure("the origin does not start")
    return int(said)


def counts(port: int) -> Counts:
    """What the origin has served so far."""
    link = HTTPConnection("127.0.0.1", port, timeout=START)
    with contextlib.closing(link):
        link.request("GET", COUNTS)
        return Counts(**json.loads(link.getresponse().read()))


def start_daemon(children: Children, config: Path, socket: str) -> subprocess.Popen[str]:
    """A daemon that answers at `socket`."""
    child = children.start("-m", "cachedaemon.demo.tied", "-m", "cachedaemon", "serve", "--config", str(config))
    link = Connection(socket)
    end = time.monotonic() + START
    while True:
        try:
            call(link, "GET", "/v1/hello", wait=0.2)
        except OSError:
            if child.poll() is not None or time.monotonic() > end:
                raise children.failure("the daemon does not start") from None
        else:
            link.close()
            return child


class Team:
    """The trainers of one way to read."""

    def __init__(self, children: Children, works: list[Work]) -> None:
        self._children = children
        self._said: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._trainers = [children.start("-m", "cachedaemon.demo.trainer", json.dumps(asdict(work))) for work in works]
        self.told = [Told() for _ in works]
        for rank, trainer in enumerate(self._trainers):
            threading.Thread(target=self._hear, args=(rank, trainer), daemon=True).start()

    def _hear(self, rank: int, trainer: subprocess.Popen[str]) -> None:
        for line in trainer.stdout or ():
            self._said.put((rank, json.loads(line)))
        self._said.put((rank, None))

    def run(self, look: Callable[[list[Told]], None]) -> list[Told]:
        """Let all begin at once; `look` sees how far they are."""
        for _ in self._trainers:
            self._next("begin")
        for trainer in self._trainers:
            with contextlib.suppress(BrokenPipeError):  # one that ended says so below
                self._begin(trainer)
        while not all(one.done for one in self.told):
            rank, said = self._next("end")
            self.told[rank] = Told(**said | {"epochs": tuple(said["epochs"])})
            look(self.told)
        for trainer in self._trainers:
            if trainer.wait(SILENCE) != 0:
                raise self._children.failure("a trainer failed")
        return self.told

    @staticmethod
    def _begin(trainer: subprocess.Popen[str]) -> None:
        if trainer.stdin is not None:
            trainer.stdin.write("go\n")
            trainer.stdin.flush()

    def _next(self, what: str) -> tuple[int, Any]:
        try:
            rank, said = self._said.get(timeout=SILENCE)
        except queue.Empty:
            raise DemoFailed(f"the trainers said nothing for {SILENCE:.0f} s: they do not {what}") from None
        if said is None and not self.told[rank].done:
            self._trainers[rank].wait(SILENCE)
            raise self._children.failure(f"trainer {rank} failed")
        return (rank, said) if said is not None else self._next(what)


class Cap:
    """Looks at how many shards the cache has, all the while."""

    def __init__(self, socket: str) -> None:
        self._link = Connection(socket)
        self.peak = 0

    def look(self) -> int:
        """How many there are now."""
        shards = int(self._status()["cache"]["shards"])
        self.peak = max(self.peak, shards)
        return shards

    def regret(self) -> float | None:
        """What came over the least that could have, once all plans have ended."""
        end = time.monotonic() + RECKONED
        while (said := self._status())["plans"] or said["cache"]["regret"] is None:
            if time.monotonic() > end:
                return None
            time.sleep(0.05)
        return float(said["cache"]["regret"])

    def _status(self) -> Any:
        return call(self._link, "GET", "/v1/status", wait=5.0)
