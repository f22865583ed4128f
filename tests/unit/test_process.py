"""What a forked child does with what its parent holds, whoever forked."""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from cachedaemon_client import ShardCache, lease, process
from cachedaemon_client.shard import Shard
from tests.fakes.waiting import until
from tests.unit.scripted import scripted

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CACHE: Any = SimpleNamespace(archives="opaque", source="s")


@pytest.fixture
def shard(folder: Path) -> Iterator[Path]:
    process.folders.add(f"{folder}/")
    path = folder / "shard"
    path.write_bytes(b"bytes")
    yield path
    process.folders.discard(f"{folder}/")


def opened(path: Path) -> Shard:
    shard = Shard(CACHE, path.name, str(path), True)
    shard._descriptor, shard._stat = lease.take(str(path))
    return shard


def locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def raw_fork() -> int:
    """fork(2) that Python is not told of, as a library may do."""
    return int(ctypes.PyDLL(None).fork())


FORKS = pytest.mark.parametrize("fork", [os.fork, raw_fork], ids=["os.fork", "raw"])


def in_child(fork: Callable[[], int], work: Callable[[], object]) -> Callable[[], None]:
    """Run in a forked child, which then waits; what is returned ends it. AssertionError when `work` failed."""
    ready, done = os.pipe(), os.pipe()
    if (child := fork()) == 0:
        try:
            os.write(ready[1], b"y" if work() in {None, True} else b"n")
            os.close(done[1])
            os.read(done[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    said = os.read(ready[0], 1)

    def end() -> None:
        for descriptor in (ready[0], *done):
            os.close(descriptor)
        os.waitpid(child, 0)

    if said != b"y":
        end()
        raise AssertionError(f"the child said {said!r}")
    return end


def test_a_child_has_none_of_its_parent_s_leases(shard: Path) -> None:
    """So that they end with the parent's close, however long the child lives."""
    held = opened(shard)
    end = in_child(os.fork, lambda: not any(is_on(number, shard) for number in os.listdir("/proc/self/fd")))
    assert locked(shard), "the child's ending of its copy unlocked nothing"
    held.close()
    assert not locked(shard)
    end()


def is_on(number: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}") == str(path)
    except FileNotFoundError:
        return False


@FORKS
def test_a_child_s_close_does_not_unlock(shard: Path, fork: Callable[[], int]) -> None:
    held = opened(shard)

    def child() -> bool:
        closed = held.closed
        held.close()
        del globals()["_kept"]
        return closed

    globals()["_kept"] = opened(shard)  # one that is collected in the child
    end = in_child(fork, child)
    assert locked(shard)
    globals().pop("_kept").close()
    assert locked(shard)
    assert not held.closed
    held.close()
    end()
    assert not locked(shard)


@FORKS
def test_a_child_s_own_lease_is_its_own(shard: Path, fork: Callable[[], int]) -> None:
    """It is one with the parent's shard open too, and ends with the child's close."""
    held = opened(shard)

    def child() -> bool:
        own = opened(shard)
        good = not own.closed and own.size == 5
        own.close()
        good = good and own.closed
        process.settle()  # as every call to the daemon does
        again = opened(shard)
        good = good and not again.closed
        again.close()
        return good

    end = in_child(fork, child)
    assert locked(shard)
    held.close()
    end()
    assert not locked(shard)


def test_a_child_closes_no_descriptor_that_is_no_lease(shard: Path, folder: Path) -> None:
    """The numbers of its parent's leases may be other files' in the child."""
    held, other = opened(shard), os.open(shard, os.O_RDONLY)
    plain = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    def child() -> bool:
        new = os.open("/dev/null", os.O_RDONLY)  # gets the lease's number
        held.close()
        return all(os.fstat(number) for number in (other, plain, new))  # type: ignore[misc]

    in_child(os.fork, child)()
    held.close()
    os.close(other)
    os.close(plain)


def test_leases_of_a_deleted_or_renamed_shard_are_found_too(shard: Path) -> None:
    """Here the shard is renamed and deleted while it is leased, as somebody could by hand."""
    held = opened(shard)
    shard.rename(shard.with_name("trash"))
    shard.with_name("trash").unlink()
    number = held._descriptor
    end = in_child(os.fork, lambda: not os.path.exists(f"/proc/self/fd/{number}"))
    held.close()
    end()


def test_epochs_of_many_generations_differ(shard: Path) -> None:
    """Each child of a child has a number of its own; a lease of its grandparent's is not taken for its own."""
    held = opened(shard)

    def deeper(left: int) -> bool:
        if held._epoch == process.alive[0] or process.epoch[0] != process.alive[0]:
            return False
        if not left:
            return True
        child = os.fork()
        if child == 0:
            os._exit(0 if deeper(left - 1) else 1)
        return os.waitpid(child, 0)[1] == 0

    in_child(os.fork, lambda: deeper(5))()
    held.close()


@pytest.mark.slow
def test_hundreds_of_forks_while_a_thread_opens(shard: Path) -> None:
    """Whenever it happens, no child keeps a lease, and none takes one away."""
    stop, failures = threading.Event(), []

    def use() -> None:
        while not stop.is_set():
            held = opened(shard)
            if not locked(shard):
                failures.append("unlocked while open")
            held.close()

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    children, (alive, end) = [], os.pipe()
    try:
        for _ in range(300):
            if (pid := os.fork()) == 0:
                os.close(end)
                os.read(alive, 1)  # until the parent closes its end
                os._exit(0)
            children.append(pid)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert not locked(shard), "300 children live, and none has a lease"
    os.close(end)
    os.close(alive)
    for pid in children:
        os.waitpid(pid, 0)


def test_a_fork_in_a_thread(shard: Path) -> None:
    held, found = opened(shard), []

    def work() -> None:
        end = in_child(os.fork, lambda: held.closed)
        found.append(locked(shard))
        held.close()
        found.append(locked(shard))
        end()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, False]


def test_all_last_words_together_take_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a daemon is silent, however many clients it has; another daemon hears all of its own."""
    monkeypatch.setattr(process, "farewells", WeakSet[Any]())
    quiet = threading.Event()
    with scripted(folder / "a", lambda _: (quiet.wait(30), None)[1]) as silent, scripted(folder / "b") as heard:
        clients = [ShardCache("s", socket=folder / name) for name in "aaaaaaba"]
        for client in clients:
            client._uses.append((client.socket[-1], time.monotonic()))
        began = time.monotonic()
        process._farewell()
        assert time.monotonic() - began < 3
        until(lambda: heard.uses() == ["b"], 10)
        until(lambda: silent.uses() == ["a"] * 7, 10)
        quiet.set()
