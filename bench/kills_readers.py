"""Who reads while `kills.py` kills: readers that go on for as long as it lasts, and a nursery whose children are killed.

All of them compare every byte with what the shard must hold, and look that a shard is where it was for as long as they
lease it. What is wrong goes to one file, a line each, which outlives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import random
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import ROOT

from cachedaemon_client import ShardCache, aio
from tests.fakes import content, packing
from tests.fakes.origin import shard_name

SOURCES = {"plain": "bin", "indexed": "zip", "unpacked": "zip"}
"""Each with the ending of its shards."""
READERS, TRAINERS, WORKERS = 5, 2, 2
"""Children of the nursery: readers, trainers, and the workers of each trainer."""
WAIT = 300.0
"""Seconds that a shard is waited for: what fails before that is no matter of a slow machine."""
PROGRAM = f"sys.path.append({str(ROOT / 'bench')!r})\nimport kills_readers\n"
"""How a reader's program begins."""
HELD = 0.1
"""Seconds at the most that a shard is leased for without being read."""
_SUBREAPER = 36  # prctl(2), PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Data:
    """So many shards of each source, of so many bytes; archives of so many members."""

    shards: int = 24
    size: int = 200_000
    members: int = 80
    member_size: int = 2_500

    def keys(self, source: str) -> list[str]:
        """All keys of a source."""
        return [shard_name(number, SOURCES[source]) for number in range(self.shards)]


@functools.cache
def _members(data: Data, key: str) -> dict[str, bytes]:
    """What is in an archive, as the origin makes it."""
    return packing.image_like(data.members, int(key[6:11]), data.member_size)


def is_whole(data: Data, source: str, key: str, path: Path) -> bool:
    """Whether a published shard holds exactly what it must."""
    if source == "plain":
        return content.matches(path, key, data.size)
    if source == "indexed":
        return path.read_bytes() == packing.zip_bytes(_members(data, key))
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return files == _members(data, key)


def _is_right(data: Data, source: str, shard: Any) -> bool:
    """Whether a leased shard holds what it must, read as a trainer reads it, and still lies where it was opened."""
    if source == "indexed":
        right = {name: shard.read(name) for name in shard.members} == _members(data, shard.key)
    else:
        right = is_whole(data, source, shard.key, shard.path)
    return right and os.stat(shard.path).st_ino == os.fstat(shard._descriptor).st_ino  # noqa: SLF001 - the lease


class Notes:
    """Files of what went wrong, of plans, and a byte for each read: what those who are killed have done is there too.

    One `write` a line, so that the lines of several processes do not mix.
    """

    def __init__(self, folder: Path) -> None:
        """Appends."""
        self._wrong, self._plans, self._reads = (
            os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for name in ("wrong", "plans", "reads")
        )

    def wrong(self, source: str, key: str) -> None:
        """Bytes that are not those of the shard."""
        self._say({"what": "wrong bytes", "of": f"{source}/{key}"})

    def failed(self, source: str, cause: Exception) -> None:
        """A read that ended in an error."""
        self._say({"what": "failed read", "of": source, "cause": f"{type(cause).__name__}: {cause}"})

    def planned(self, name: str) -> None:
        """A plan whose owner has its file."""
        os.write(self._plans, f"{name}\n".encode())

    def read(self) -> None:
        """One shard was read and compared."""
        os.write(self._reads, b".")

    def _say(self, line: dict[str, object]) -> None:
        os.write(self._wrong, json.dumps({"pid": os.getpid(), **line}).encode() + b"\n")


class Reading:
    """One process that reads, in the ways that trainers read."""

    def __init__(self, data: Data, notes: Notes, socket: str, seed: int) -> None:
        """Asks the daemon at `socket`."""
        self.data, self.notes, self.chance = data, notes, random.Random(seed)
        self.caches = {source: ShardCache(source, socket=socket, wait=WAIT) for source in SOURCES}
        self.socket, self.reads = socket, 0

    def some(self, ways: list[Callable[[str], Iterator[Any]]]) -> None:
        """A few reads of one source, in one of the ways."""
        source = self.chance.choice(list(SOURCES))
        try:
            for shard in self.chance.choice(ways)(source):
                self.check(source, shard)
        except Exception as cause:  # noqa: BLE001 - any error is what is counted
            self.notes.failed(source, cause)

    def check(self, source: str, shard: Any) -> None:
        """Read all of a leased shard; sometimes again after a while, for as long as which it must stay what it is."""
        for _ in range(self.chance.choice([1, 1, 2])):
            if not _is_right(self.data, source, shard):
                self.notes.wrong(source, shard.key)
            self.notes.read()
            self.reads += 1
            time.sleep(self.chance.uniform(0.0, HELD))

    def _picked(self, source: str, count: int) -> list[str]:
        return self.chance.sample(self.data.keys(source), count)

    def one(self, source: str) -> Iterator[Any]:
        """A shard by its name."""
        with self.caches[source].open(*self._picked(source, 1)) as shard:
            yield shard

    def by_plan(self, source: str) -> Iterator[Any]:
        """Several in an order that is known to the daemon."""
        with self.caches[source].plan(self._picked(source, 8), holds=2) as plan:
            self.notes.planned(plan.id)
            yield from plan

    def as_ready(self, source: str) -> Iterator[Any]:
        """Several as they come."""
        yield from self.caches[source].as_ready(self._picked(source, 4))

    def on_a_loop(self, source: str) -> Iterator[Any]:
        """Several at once, with the client for asyncio."""
        for shard in asyncio.run(self._together(source)):
            with shard:
                yield shard

    async def _together(self, source: str) -> list[Any]:
        async with aio.ShardCache(source, socket=self.socket, wait=WAIT) as cache:
            return await asyncio.gather(*(cache.open(key) for key in self._picked(source, 3)))

    def close(self) -> None:
        """Nothing is leased or announced any more."""
        for cache in self.caches.values():
            cache.close()


def go_on(arg: dict[str, Any], say: Callable[[Any], None], hear: Callable[[], Any]) -> None:
    """A reader that nobody kills: reads until it is told something, then says how often, and goes on when told again."""
    made = Reading(Data(**arg["data"]), Notes(Path(arg["folder"])), os.environ["CACHEDAEMON_SOCKET"], arg["seed"])
    ways = [made.one, made.by_plan, made.as_ready, made.on_a_loop]
    say("reading")
    while True:
        while not select.select([sys.stdin], [], [], 0)[0]:
            made.some([made.one, ways[arg["seed"] % len(ways)]])
        hear()
        made.close()
        say(made.reads)
        if hear() == "end":
            return


# --- those who are killed


class Nursery:
    """Forks readers and trainers with workers, kills one of them when told, and puts another in its place."""

    def __init__(self, arg: dict[str, Any]) -> None:
        """Knows the bytes of all shards, so that its children need not make them."""
        ctypes.CDLL(None).prctl(
            _SUBREAPER, 1, 0, 0, 0
        )  # workers whose trainer was killed become children of this process
        self.data, self.notes = Data(**arg["data"]), Notes(Path(arg["folder"]))
        self.socket, self.chance = os.environ["CACHEDAEMON_SOCKET"], random.Random(arg["seed"])
        for key in self.data.keys("indexed"):
            _members(self.data, key)
        self.alive: dict[str, dict[int, int]] = {"reader": {}, "trainer": {}, "worker": {}}
        """Each with its pidfd: a pid may be somebody else's by the time that it is killed."""
        self.born, self.bears = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.born, False)
        self.own: list[Any] = []

    def fill(self) -> None:
        """As many children as there should be, and a shard that their parent leases, as the parent of workers often does."""
        if not self.own:
            self.reading = Reading(self.data, self.notes, self.socket, self.chance.randrange(1 << 30))
            self.own = [self.reading.caches["plain"].open(self.data.keys("plain")[0])]
        for kind, run, count in (("reader", self._read, READERS), ("trainer", self._train, TRAINERS)):
            while len(self.alive[kind]) < count:
                self._note(kind, self._fork(run))

    def _note(self, kind: str, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.alive[kind][pid] = os.pidfd_open(pid)

    def _fork(self, run: Callable[[int], None]) -> int:
        seed = self.chance.randrange(1 << 30)
        if pid := os.fork():
            return pid
        try:
            run(seed)
        finally:
            os._exit(1)  # nothing of the parent's runs on in a child

    def _read(self, seed: int) -> None:
        """With what the parent has made, or with its own."""
        reading = Reading(self.data, self.notes, self.socket, seed)
        if reading.chance.random() < 0.5:
            reading.caches = self.reading.caches
        while True:
            reading.some([reading.one, reading.by_plan, reading.as_ready])

    def _train(self, seed: int) -> None:
        """Holds a shard, and has workers that read, each in place of one that was killed."""
        self.reading = Reading(self.data, self.notes, self.socket, seed)
        self.reading.some([self._train_with])

    def _train_with(self, source: str) -> Iterator[Any]:
        for shard in self.reading.one(source):
            for _ in range(WORKERS):
                self._fork(self._work)
            while os.wait():
                self._fork(self._work)
            yield shard

    def _work(self, seed: int) -> None:
        os.write(self.bears, struct.pack("i", os.getpid()))
        self._read(seed)

    def kill(self, kind: str) -> None:
        """A reader; or a worker, or the trainer of workers, which are orphans then."""
        self._listen()
        orphans = len(self.alive["worker"]) > WORKERS * TRAINERS
        kinds = [kind] if kind == "reader" or orphans else ["trainer", "worker"]
        self._end(self.chance.choice([(one, pid) for one in kinds for pid in self.alive[one]]))
        self.fill()

    def _listen(self) -> None:
        """Who was born as a worker meanwhile."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self.born, 4096):
                for (pid,) in struct.iter_unpack("i", said):
                    self._note("worker", pid)

    def _end(self, victim: tuple[str, int]) -> None:
        kind, pid = victim
        descriptor = self.alive[kind].pop(pid)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):  # a worker's trainer waits for it
            os.waitpid(pid, 0)

    def clear(self) -> None:
        """Kill all of them, and give back the nursery's own lease."""
        for pid in list(self.alive["trainer"]):  # first, since they have more workers
            self._end(("trainer", pid))
        with contextlib.suppress(ChildProcessError):  # no child is left
            while True:
                self._listen()
                for kind, pids in self.alive.items():
                    for pid in list(pids):
                        self._end((kind, pid))
                os.waitpid(-1, os.WNOHANG)
                select.select([self.born], [], [], 0.01)
        for shard in self.own:
            shard.close()
            self.reading.close()
        self.own = []


def nurse(arg: dict[str, Any], say: Callable[[Any], None], hear: Callable[[], Any]) -> None:
    """The nursery as a process: kills whom it is told to (`reader`, `worker`), or everybody (`clear`), until the end."""
    nursery = Nursery(arg)
    say("ready")
    while told := hear():
        {"clear": nursery.clear, "fill": nursery.fill}.get(told, functools.partial(nursery.kill, told))()
        say("done")
    nursery.clear()
