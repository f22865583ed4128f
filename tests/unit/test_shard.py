"""A shard that threads and forked children share: whose bytes they get, and whose lease it is. A daemon is not needed."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cachedaemon_client import lease, process
from cachedaemon_client.errors import DaemonUnavailable
from cachedaemon_client.folder import OpenFolder
from cachedaemon_client.local import Local
from cachedaemon_client.members import MemberReader
from cachedaemon_client.shard import Shard
from tests.contract.archives.running import index, zip_of

KEY = "a.zip"
MEMBERS = {f"m{number}": bytes([number]) * 3000 for number in range(4)}


class Source:
    """What a shard asks of its cache. `renew` puts the shard there anew, as the daemon does."""

    source = "s"
    archives = "index"

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.place = folder / "shards" / "s" / KEY
        self.table = folder / "members" / "s" / KEY
        self.place.parent.mkdir(parents=True)
        self.table.parent.mkdir(parents=True)
        self.renewed = 0
        self.before: Callable[[], object] = lambda: None
        self.publish()

    def publish(self) -> None:
        """A new file at the shard's path, and its table."""
        beside = self.place.with_name("new.zip")
        beside.write_bytes(zip_of(MEMBERS))
        self.table.unlink(missing_ok=True)
        index(beside, self.table)
        if self.place.is_dir():
            self.place.rmdir()
        beside.rename(self.place)

    def open(self) -> Shard:
        shard = Shard(self, KEY, str(self.place), True)  # type: ignore[arg-type]
        shard._descriptor, shard._stat = lease.take(str(self.place))
        return shard

    def renew(self, key: str) -> Shard:
        assert key == KEY
        self.before()
        self.renewed += 1
        self.publish()
        return self.open()

    def leases(self) -> int:
        """Descriptors of this process that keep a lock on what is, or was, the shard."""
        found = 0
        for number in os.listdir("/proc/self/fd"):
            try:
                is_shard = os.readlink(f"/proc/self/fd/{number}").startswith(str(self.place))
                found += is_shard and "lock:" in Path(f"/proc/self/fdinfo/{number}").read_text()
            except FileNotFoundError:  # the listing's own
                continue
        return found


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    process.folders.add(f"{tmp_path}/")
    yield Source(tmp_path)
    process.folders.discard(f"{tmp_path}/")


def together(*works: Callable[[], object]) -> list[object]:
    """What each gave or raised, begun at one moment in threads."""
    start = threading.Barrier(len(works))
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        start.wait(30)
        try:
            results[number] = works[number]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_close_by_another_thread_during_a_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease ends at once; the read gets its own bytes, though the number would be another file's by now."""
    shard = source.open()
    others: list[int] = []
    assert shard.read("m0") == MEMBERS["m0"]

    def closing() -> None:
        shard.close()
        assert source.leases() == 0
        others.extend(os.open("/dev/zero", os.O_RDONLY) for _ in range(4))

    def pread(*given: int) -> bytes:
        thread = threading.Thread(target=closing)
        thread.start()
        thread.join(30)
        return os.pread(*given)

    monkeypatch.setattr("cachedaemon_client.members.pread", pread)
    assert shard.read("m1") == MEMBERS["m1"]
    monkeypatch.undo()
    for number in others:
        os.close(number)
    with pytest.raises(ValueError, match="closed"):
        shard.read("m1")


def test_a_forked_child_cannot_read_a_member_that_was_opened_before(source: Source) -> None:
    """The number of the parent's descriptor is another file's in the child soon."""
    with source.open() as shard:
        file = shard.open("m1")
        if (child := os.fork()) == 0:
            end = 1
            try:
                for _ in range(8):
                    os.open("/dev/zero", os.O_RDONLY)
                file.read(10)
            except ValueError:
                end = 0
            finally:
                os._exit(end)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.read() == MEMBERS["m1"]


def test_threads_that_share_a_truncated_shard_renew_it_once(source: Source) -> None:
    for _ in range(5):
        shard, before = source.open(), source.renewed
        assert shard.read("m0") == MEMBERS["m0"]
        os.truncate(source.place, 50)
        assert together(*[lambda: shard.read("m3")] * 4) == [MEMBERS["m3"]] * 4  # noqa: B023 - called at once
        assert source.renewed == before + 1
        assert source.leases() == 2  # the lease, and the reader's copy of its descriptor
        shard.close()
        assert source.leases() == 0


def test_threads_that_read_first_at_once_share_one_reader(source: Source) -> None:
    for _ in range(20):
        shard = source.open()
        assert together(*[lambda: shard.read("m2")] * 4) == [MEMBERS["m2"]] * 4  # noqa: B023 - called at once
        shard.close()
    assert source.leases() == 0


def test_a_shard_closed_while_it_is_renewed_stays_closed(source: Source) -> None:
    shard = source.open()
    os.truncate(source.place, 50)
    source.before = lambda: together(shard.close)
    with pytest.raises(ValueError, match="closed"):
        shard.read("m1")
    assert shard.closed
    assert source.leases() == 0


def test_a_renewal_that_fails_is_tried_again_by_the_next_read(source: Source) -> None:
    def gone() -> None:
        raise DaemonUnavailable("no daemon", code="unavailable", source="s")

    with source.open() as shard:
        os.truncate(source.place, 50)
        source.before = gone
        for _ in range(2):
            with pytest.raises(DaemonUnavailable):
                shard.read("m1")
        assert not shard.closed
        source.before = lambda: None
        assert shard.read("m1") == MEMBERS["m1"]
    assert source.leases() == 0


def test_a_damaged_table_is_mended_before_a_wrong_byte_is_read(source: Source) -> None:
    data = bytearray(source.table.read_bytes())
    data[128] ^= 64  # the first member's offset
    with source.table.open("r+b") as file:
        file.write(data)
    with source.open() as shard:
        assert shard.read("m0") == MEMBERS["m0"]
    assert source.renewed == 1


def test_a_fifo_in_the_tables_place_is_mended(source: Source) -> None:
    source.table.unlink()
    os.mkfifo(source.table)
    with source.open() as shard:
        assert shard.read("m0") == MEMBERS["m0"]


def test_a_folder_in_the_archives_place_is_mended(source: Source) -> None:
    source.place.unlink()
    source.place.mkdir()
    with source.open() as shard:
        assert shard.read("m0") == MEMBERS["m0"]
    assert source.renewed == 1


def test_a_lease_that_was_closed_by_its_number_is_closed_without_an_error(source: Source) -> None:
    shard = source.open()
    os.close(shard._descriptor)
    shard.close()
    assert shard.closed


def test_an_interrupt_at_any_call_while_a_shard_is_opened_leaves_no_lease(source: Source) -> None:
    """Signal handlers run where functions begin, that of Ctrl-C raises. Errors of the collector are errors here."""
    cache: Local[Any] = Local("s", socket=source.root / "none", cache_dir=source.root)
    cache._paths["a.zip"] = (KEY, str(source.place), OpenFolder.of(str(source.place.parent)))
    cache.open("a.zip").close()
    reached = [interrupted(number, lambda: cache.open("a.zip")) for number in range(1, 4)]
    gc.collect()
    assert source.leases() == 0
    assert reached == ["open", "__init__", "take"]


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted(number: int, work: Callable[[], object]) -> str:
    """The function that began as this number within a work, and was interrupted there."""
    where: list[str] = []

    def trace(frame: FrameType, _: str, __: object) -> None:
        where.append(frame.f_code.co_name)
        if len(where) == number + 1:  # the first is that of `work` itself
            raise Interrupt

    gc.disable()  # what the collector calls would be counted too, and swallow the interrupt
    sys.settrace(trace)
    try:
        work()
    except Interrupt:
        return where[-1]
    finally:
        sys.settrace(None)
        gc.enable()
    return ""


def test_views_and_files_hold_no_lock(source: Source) -> None:
    shard = source.open()
    view, file = shard.view("m1"), shard.open("m2")
    shard.close()
    with source.place.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert view == MEMBERS["m1"]
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_no_descriptor_is_left(source: Source) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with source.open() as shard:
            assert shard.read("m1") == MEMBERS["m1"]
            shard.view("m1").release()
        reader = MemberReader(descriptor := os.open(source.place, os.O_RDONLY), source.place, source.table)
        os.close(descriptor)
        assert reader.read("m1") == MEMBERS["m1"]
        reader.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
