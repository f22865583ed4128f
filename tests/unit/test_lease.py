"""The lease protocol between readers and whoever evicts, on real files."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from cachedaemon_client import lease
from tests.fakes import content
from tests.fakes.disk import is_locked
from tests.fakes.readers import spawn


@pytest.fixture(params=["file", "folder"])
def shard(request: pytest.FixtureRequest, folder: Path) -> Path:
    path = folder / "shard"
    path.mkdir() if request.param == "folder" else path.write_bytes(b"bytes")
    return path


def test_a_lease_is_a_shared_lock_on_what_is_at_the_path(shard: Path) -> None:
    one, seen = lease.take(str(shard))
    other, _ = lease.take(str(shard))
    assert (seen.st_dev, seen.st_ino) == (shard.stat().st_dev, shard.stat().st_ino)
    with pytest.raises(lease.Busy):
        lease.take_exclusive(str(shard))
    lease.give_back(one)
    assert is_locked(shard)
    lease.give_back(other)
    assert not is_locked(shard)


def test_a_name_below_an_open_folder(shard: Path) -> None:
    folder = os.open(shard.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor, _ = lease.take(shard.name, folder)
        assert is_locked(shard)
        lease.give_back(descriptor)
    finally:
        os.close(folder)


def test_a_descriptor_is_not_inherited_by_programs(shard: Path) -> None:
    descriptor, _ = lease.take(str(shard))
    assert not os.get_inheritable(descriptor)
    lease.give_back(descriptor)


def test_what_is_being_evicted_is_busy(shard: Path) -> None:
    evictor, _ = lease.take_exclusive(str(shard))
    with pytest.raises(lease.Busy):
        lease.take(str(shard))
    lease.give_back(evictor)
    lease.give_back(lease.take(str(shard))[0])


class Moving:
    """A path whose shard is renamed after it was opened, and before it is looked at again."""

    def __init__(self, path: Path, then: bytes | None = None) -> None:
        self.path, self.then, self.looks = path, then, 0

    def __fspath__(self) -> str:
        self.looks += 1
        if self.looks == 2:
            self.path.rename(self.path.with_name("trash"))
            if self.then is not None:
                self.path.write_bytes(self.then)
        return str(self.path)


@pytest.mark.parametrize("then", [None, b"others"])
def test_a_lock_that_came_too_late_is_no_lease(shard: Path, then: bytes | None) -> None:
    """The shard was evicted after the open: nothing is at the path any more, or another shard."""
    before = descriptors()
    with pytest.raises(lease.Gone):
        lease.take(Moving(shard, then))  # type: ignore[arg-type]
    assert descriptors() == before
    assert not is_locked(shard.with_name("trash"))


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def put_nothing(path: Path) -> None:
    assert not path.exists()


def put_link(path: Path) -> None:
    path.with_name("target").write_bytes(b"elsewhere")
    path.symlink_to("target")


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("put", [put_nothing, os.mkfifo, put_link, put_socket])
def test_what_is_no_shard_is_gone(folder: Path, put: object) -> None:
    """At once: a FIFO's open would wait for a writer. And nothing stays open."""
    path = folder / "shard"
    put(path)  # type: ignore[operator]
    before = descriptors()
    with pytest.raises(lease.Gone):
        lease.take(str(path))
    with pytest.raises(lease.Gone):
        lease.take(str(path / "below"))
    assert descriptors() == before


def test_ending_a_lease_ends_it_for_copies_too(shard: Path) -> None:
    """A program that is being started holds copies for a moment: they keep nothing."""
    descriptor, _ = lease.take(str(shard))
    copy = os.dup(descriptor)
    lease.give_back(descriptor)
    assert not is_locked(shard)
    os.close(copy)


def test_a_plan_s_file_is_held_though_the_daemon_looks_at_it(folder: Path) -> None:
    path = folder / "plan"
    path.touch()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_locked(path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            lease.give_back(lease.hold_plan(str(path)))
    finally:
        stop.set()
        looking.join()
    with pytest.raises(lease.Gone):
        lease.hold_plan(str(folder / "none"))


READER = """
from cachedaemon_client import lease
path, taken, missed, wrong = ARG["path"], 0, 0, 0
say("ready")
while not os.path.exists(ARG["over"]):
    try:
        fd, seen = lease.take(path)
    except (lease.Gone, lease.Busy):
        missed += 1
        continue
    number = int.from_bytes(os.pread(fd, 8, 0), "little")
    again = open(path, "rb").read()
    wrong += len(again) != seen.st_size or again[:8] != os.pread(fd, 8, 0) or again[8:] != again[:8] * (len(again) // 8 - 1)
    taken += 1
    lease.give_back(fd)
say([taken, missed, wrong])
"""


def test_no_reader_sees_a_shard_go(folder: Path) -> None:
    """3 readers, and an evictor that publishes the next shard at the same path as soon as it got rid of one."""
    path, over, evicted = folder / "shard", folder / "over", 0
    publish(folder, path, 0)
    with spawn(None, READER, [{"path": path, "over": over}] * 3) as readers:
        for reader in readers:
            assert reader.line() == "ready"
        began = time.monotonic()
        while time.monotonic() < began + 4.0 or (evicted <= 50 and time.monotonic() < began + 90.0):
            try:
                descriptor, _ = lease.take_exclusive(str(path))
            except lease.Busy:
                continue
            path.rename(folder / "trash")
            lease.give_back(descriptor)
            (folder / "trash").unlink()
            evicted += 1
            publish(folder, path, evicted)
        over.touch()
        said = [reader.rest()[-1] for reader in readers]
    assert evicted > 50
    assert all(taken > 50 and wrong == 0 for taken, _, wrong in said), (said, evicted)


def publish(folder: Path, path: Path, number: int) -> None:
    (folder / "staging").write_bytes(number.to_bytes(8, "little") * (100 + number % 50))
    (folder / "staging").rename(path)


def test_an_inode_that_is_held_is_not_given_to_another(folder: Path) -> None:
    """What makes the comparison exact."""
    path = folder / "shard"
    content.write(path, "a", 100)
    descriptor, seen = lease.take(str(path))
    path.unlink()
    for number in range(200):
        other = folder / str(number)
        other.touch()
        assert other.stat().st_ino != seen.st_ino
    lease.give_back(descriptor)
