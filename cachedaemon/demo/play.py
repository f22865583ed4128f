"""The demo from beginning to end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from cachedaemon.demo import dataset, report, show, stage
from cachedaemon.demo.children import Children, DemoFailed
from cachedaemon.demo.dataset import DataSet
from cachedaemon.demo.stage import SOURCE, Ran
from cachedaemon.demo.trainer import Told, Work

WAYS = ("daemon", "shards", "samples")
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SOCKET_MOST = 107  # bytes, unix(7)


@dataclass(frozen=True)
class Shape:
    """How much of everything. The same limits hold for all ways to read."""

    shards: int = 16
    samples: int = 80
    size: int = 30_000
    cap: int = 12
    """Shards that the cache may hold: not all of them."""
    latency: float = 0.05
    rate: float = 4e6
    """Bytes per second of one connection to the origin."""
    trainers: int = 4
    epochs: int = 2
    batch: int = 16
    step: float = 0.08
    """Seconds. All trainers together then want three quarters of what eight connections give: once, not four times."""
    seed: int = 7


Make = Callable[[Path, Shape], DataSet]


def make(folder: Path, shape: Shape) -> DataSet:
    """The data set of this shape."""
    return dataset.make(folder, shards=shape.shards, samples=shape.samples, size=shape.size, seed=shape.seed)


def run(*, keep: bool = False, shape: Shape | None = None, make: Make = make) -> int:
    """Play it; the exit status: 0, or 1 when a trainer read wrong bytes. Leaves nothing behind, however it ends."""
    console = Console()
    with ExitStack() as stack:
        stack.enter_context(_signals())
        home = stack.enter_context(_home())
        children = stack.enter_context(Children(home, _environ()))
        stack.callback(_deaf)
        demo = Demo(console, home, children, shape or Shape())
        runs = demo.play(make)
        wrong = demo.tell(runs)
        if keep and not wrong:
            demo.wait()
    if wrong:
        raise DemoFailed(wrong)
    return 0


class Demo:
    """One run of it."""

    def __init__(self, console: Console, home: Path, children: Children, shape: Shape) -> None:
        self._console = console
        self._home = home
        self._children = children
        self._shape = shape
        self._socket = str(home / "cachedaemon.sock")
        self._http = _free_port()
        self._keys: list[str] = []

    # ---- the parts

    def play(self, make: Make) -> dict[str, Ran]:
        """Make the data, start everything, and read in all ways."""
        shape = self._shape
        data = make(self._home / "data", shape)
        data.save(self._home / "manifest.json")
        self._keys = list(data.shards)
        port = stage.start_origin(self._children, data.folder, shape.latency, shape.rate)
        self._say_what(data)
        stage.start_daemon(self._children, self._config(port), self._socket)
        work = Work(
            way="", manifest=str(self._home / "manifest.json"), source=SOURCE, socket=self._socket, port=port,
            seed=shape.seed, epochs=shape.epochs, rank=0, ranks=shape.trainers, batch=shape.batch, step=shape.step,
        )  # fmt: skip
        return {way: self._read(replace(work, way=way), data.samples * shape.epochs) for way in WAYS}

    def _config(self, port: int) -> Path:
        path = self._home / "cachedaemon.toml"
        path.write_text(
            f'[cache]\ndir = "{self._home}/cache"\nmax_shards = {self._shape.cap}\nmin_free = 0\n'
            f'[server]\nsocket = "{self._socket}"\nhttp = "127.0.0.1:{self._http}"\n'
            f'[log]\nlevel = "warning"\n'
            f'[sources.{SOURCE}]\nurl = "http://127.0.0.1:{port}/"\n'
        )
        return path

    def _read(self, work: Work, total: int) -> Ran:
        """All trainers, reading in one way."""
        cap = stage.Cap(self._socket) if work.way == "daemon" else None
        before = stage.counts(work.port)
        team = stage.Team(self._children, [replace(work, rank=rank) for rank in range(work.ranks)])
        with show.line(self._console, report.TITLES[work.way], total) as line:

            def look(told: list[Told]) -> None:
                line.show(told, f", {cap.look()} local" if cap else "")

            told = team.run(look)
        ran = Ran(told, stage.counts(work.port) - before)
        if cap is not None:
            ran.peak, ran.regret = cap.peak, cap.regret()
        return ran

    # ---- words

    def _say_what(self, data: DataSet) -> None:
        shape = self._shape
        show.say(
            self._console,
            f"{len(data.shards)} zip shards of {shape.samples} samples ({data.bytes / 1e6:.0f} MB) lie on a slow server: "
            f"{shape.latency * 1000:.0f} ms a request, {shape.rate / 1e6:.0f} MB/s a connection.",
            f"{shape.trainers} trainers read {shape.epochs} shuffled epochs; a training step of "
            f"{shape.step * 1000:.0f} ms follows every {shape.batch} samples.",
            f"The daemon's cache may hold {shape.cap} shards.",
        )

    def tell(self, runs: dict[str, Ran]) -> str | None:
        """Print the table; what was wrong with the samples, if anything was."""
        shape = self._shape
        self._console.print()
        self._console.print(report.table(runs, shape.shards, shape.cap, shape.epochs))
        report.explain(self._console)
        expected = shape.shards * shape.samples * shape.epochs
        for way, ran in runs.items():
            if ran.wrong:
                return f"{report.TITLES[way]}: {ran.wrong} of {ran.samples} samples had wrong bytes"
            if ran.samples != expected:
                return f"{report.TITLES[way]}: {ran.samples} samples were read, {expected} were due"
        return None

    def wait(self) -> None:
        """Leave everything running until Ctrl-C."""
        self._console.print(
            f"""
It is all still running. In another terminal:

  export CACHEDAEMON_SOCKET={self._socket}
  {Path(sys.executable).with_name("cachedaemon")} status
  curl --unix-socket {self._socket} http://localhost/v1/status
  curl http://127.0.0.1:{self._http}/metrics

In a browser: http://127.0.0.1:{self._http}/

  {sys.executable}
  >>> from cachedaemon_client import ShardCache
  >>> cache = ShardCache("{SOURCE}", socket="{self._socket}")
  >>> with cache.open("{self._keys[0]}") as shard:
  ...     print(shard.path, len(shard.members), len(shard.read(0)))

Ctrl-C ends it and removes everything.""",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            self._console.print()


# ---- surroundings


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does, unless they are ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in ENDS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _deaf() -> None:
    """From here on things are cleaned up, and nothing may end that half way."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _home() -> Iterator[Path]:
    """A temporary folder; in /tmp where the usual place would make the socket's path too long."""
    folder = tempfile.mkdtemp(prefix="cachedaemon-demo-")
    if len(os.fsencode(f"{folder}/cachedaemon.sock")) > SOCKET_MOST:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="cachedaemon-demo-", dir="/tmp")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def _environ() -> dict[str, str]:
    """Ours, without settings of another daemon."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CACHEDAEMON_")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
