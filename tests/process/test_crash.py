"""Kills at any moment, and what is published meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import content, disk, packing
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Object, Origin
from tests.fakes.waiting import until

MIB = 1 << 20
SIZE = 300_000
MEMBERS = 40
SHARDS = 12


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        yield made


def _members(name: str) -> dict[str, bytes]:
    return {f"{n}.jpg": content.data(f"{name}/{n}", 5000) for n in range(MEMBERS)}


def _is_right(path: Path) -> bool:
    """The bytes of a file, or all members of an unpacked folder."""
    if path.is_dir():
        wanted = _members(path.name)
        return {p.name: p.read_bytes() for p in path.iterdir()} == wanted
    if path.name.endswith(".zip"):
        return path.read_bytes() == packing.zip_bytes(_members(path.name))
    return content.matches(path, path.name, SIZE)


class Load:
    """Clients that ask for everything, over and over, until told to stop."""

    def __init__(self, daemon: Daemon, pool: ThreadPoolExecutor) -> None:
        self._daemon = daemon
        self._going = True
        self._runs = [pool.submit(self._ask, seed) for seed in range(4)]

    def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        while self._going:
            source = chance.choice(["plain", "unpacked", "indexed"])
            name = f"{chance.randrange(SHARDS)}.{'bin' if source == 'plain' else 'zip'}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._daemon.acquire(source, name, 2)

    def stop(self) -> None:
        self._going = False
        for run in self._runs:
            run.result()


@pytest.mark.parametrize("moments", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_kill_9_at_any_moment(origin: Origin, moments: int) -> None:
    """C-38: it starts by itself, nothing partial is visible, no helper lives on, the counters are those of the disk."""
    chance = random.Random(20)
    for n in range(SHARDS):
        origin.put(f"{n}.bin", SIZE, bps=4 * MIB)
        origin.put(f"{n}.zip", data=packing.zip_bytes(_members(f"{n}.zip")), bps=4 * MIB)
    sources = {
        "plain": {"url": origin.url},
        "unpacked": {"url": origin.url, "archives": "unpack"},
        "indexed": {"url": origin.url},
    }
    with Daemon(sources, max_shards=6, grace="50ms") as daemon, ThreadPoolExecutor(4) as pool:
        for _ in range(moments):
            load = Load(daemon, pool)
            try:
                until(lambda: daemon.status()["fetches"] or not daemon.alive, 20)
                with contextlib.suppress(AssertionError):  # a moment of its own, not a state that is waited for
                    until(lambda: False, chance.uniform(0.0, 0.6))
                daemon.kill9()
            finally:
                load.stop()
            until(lambda: not daemon.children(), 10, "the end of the helpers")
            for shard in disk.published(daemon.cache):
                assert _is_right(daemon.cache / "shards" / shard), f"{shard} is not whole"
            daemon.start()
            assert disk.leftovers(daemon.cache) == [] or until(lambda: not disk.leftovers(daemon.cache), 10)
            daemon.audit()
        assert "is not the daemon's" not in daemon.log
        assert "Traceback" not in daemon.log


def test_leftovers_of_a_kill_need_no_cleaning(origin: Origin) -> None:
    """C-38: a stale socket, locks and a pid that belongs to another process now."""
    origin.put("a.bin", SIZE)
    with Daemon({"s": origin.url}) as daemon:
        daemon.path("s", "a.bin")
        daemon.kill9()
        assert daemon.socket.exists()
        (daemon.cache / "daemon.lock").write_text(f"{os.getpid()}\n")
        beside = daemon.home / f".{Path(f'{daemon.socket}.lock').stat().st_ino}"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(beside))
        daemon.start()
        assert not beside.exists()
        assert daemon.acquire("s", "a.bin").body["result"] == "hit"


# --- publishing ----------------------------------------------------------------------------------------------------


def test_a_transfer_that_failed_with_no_byte_leaves_no_empty_file(origin: Origin) -> None:
    """C-35."""
    shard = origin.put("a.bin", SIZE, cut=[0])
    gate = shard.gate = Gate(0)
    gate.open()
    with Daemon({"s": origin.url}) as daemon:
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", SIZE)
        assert shard.gets == 2


@pytest.mark.parametrize("at", [0, 1, SIZE // 2, SIZE - 1])
def test_nothing_is_at_the_final_path_before_it_is_complete(origin: Origin, at: int) -> None:
    """C-35: the path appears only whole, and after failures for good not at all."""
    gate = Gate(at)
    origin.put("a.bin", SIZE, gate=gate)
    origin.put("b.bin", SIZE, cut_always=at, ranges="no")  # or two halves would make a whole
    with Daemon({"s": origin.url}, fetch={"retries": 1}) as daemon, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(daemon.path, "s", "a.bin")
        assert gate.reached.wait(20)
        assert disk.published(daemon.cache) == []
        gate.open()
        assert content.matches(asked.result(), "a.bin", SIZE)
        answer = daemon.acquire("s", "b.bin")
        assert answer.code == "origin_unavailable"
        assert str(SIZE) in answer.body["error"]["message"]
        assert disk.published(daemon.cache) == ["s/a.bin"]
        daemon.audit()


SIZES = [0, 1, *(size + more for size in (65_536, MIB, 8 * MIB) for more in (-1, 0, 1))]


def test_sizes_around_every_block(origin: Origin, folder: Path) -> None:
    """C-37: also from a mounted folder; 0 bytes are a valid file."""
    origin.default(lambda name: Object(name, int(name.removesuffix(".bin"))))
    for size in SIZES:
        content.write(folder / f"{size}.bin", f"{size}.bin", size)
    with Daemon({"http": origin.url, "file": f"file://{folder}/"}, max_shards=0, max_bytes="200MB") as daemon:
        for source in ("http", "file"):
            for size in SIZES:
                path = daemon.path(source, f"{size}.bin")
                assert content.matches(path, f"{size}.bin", size), (source, size)
        daemon.audit()
        daemon.restart()
        for size in SIZES:
            assert daemon.acquire("http", f"{size}.bin").body["result"] == "hit"


def test_an_unframed_or_chunked_body_of_any_size(origin: Origin) -> None:
    """C-37: a size that is not known beforehand is found, an exact multiple of the read block too."""
    for size in SIZES:
        origin.put(f"{size}.bin", size, framing="chunked")
    with Daemon({"s": origin.url}, max_shards=0, max_bytes="200MB") as daemon:
        for size in SIZES:
            assert content.matches(daemon.path("s", f"{size}.bin"), f"{size}.bin", size), size
        daemon.audit()
