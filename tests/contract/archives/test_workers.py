"""The worker processes: killed, cancelled, out of time, out of memory, out of room, lying; nothing is ever left."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cachedaemon.archives import kind_of
from cachedaemon.archives.process import Worker, to_its_end
from cachedaemon.archives.tree import tree_digest
from cachedaemon.archives.workers import Limits, Modes, Unpacking, Workers
from cachedaemon.errors import BadArchive, CacheDaemonError, NoSpace, Stopping
from cachedaemon.model import Need
from tests.contract.archives.running import MODES, ODD, files, stamp, tar_of, zip_of

LIMITS = Limits(100_000, 1 << 30, 30)
MEMBERS = {f"d{number % 7}/{number:04d}.bin": bytes([number % 251]) * 5000 for number in range(600)}


def children() -> set[int]:
    """Processes below this one that have not ended, by the kernel's word."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if "archives.worker" in command(pid)}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Look until something holds; fails when it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.002)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(MEMBERS))
    return path


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[Workers]:
    found = Workers(limits=LIMITS, most=2)
    before = len(os.listdir("/proc/self/fd"))
    yield found
    await found.close()
    assert children() == set()
    # uvloop opens /dev/null once, for all processes that it will ever start.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)


async def unpack(workers: Workers, archive: Path, folder: Path, modes: Modes = MODES) -> list[Need]:
    """Unpack to the end."""
    kind = kind_of(archive.name)
    assert kind is not None
    return [need async for need in workers.unpack(kind, archive, folder, modes)]


async def drained(unpacking: Unpacking) -> str:
    """The digest of a folder, unpacked without a look at what it needs."""
    async for _ in unpacking:
        pass
    return unpacking.result.digest


def environment(pid: int) -> set[str]:
    """Names of a process's environment variables."""
    return {entry.split("=", 1)[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry}


def allocated(folder: Path) -> int:
    """Allocated bytes of the files below a folder, which need not exist."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.bin"))


def left(folder: Path) -> list[str]:
    """What lies in a folder besides the archive."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("a.")]


@pytest.mark.asyncio
async def test_one_worker_serves_job_after_job(workers: Workers, archive: Path, tmp_path: Path) -> None:
    for number in range(3):
        assert await workers.index("zip", archive, tmp_path / f"t{number}", stamp(archive), verify=True) == len(MEMBERS)
        digest = await drained(workers.unpack("zip", archive, tmp_path / f"f{number}", MODES))
        assert digest == await asyncio.to_thread(tree_digest, tmp_path / f"f{number}")
        assert len(children()) == 1
    assert await asyncio.to_thread(files, tmp_path / "f2") == MEMBERS


@pytest.mark.asyncio
async def test_a_worker_starts_while_its_archive_comes(workers: Workers, archive: Path, tmp_path: Path) -> None:
    """However many are expected, one waits at the most; and whoever asks while it starts gets that one."""
    for number in range(2):
        for _ in range(5):
            workers.expect()
        assert await workers.index("zip", archive, tmp_path / f"t{number}", stamp(archive), verify=True) == len(MEMBERS)
        (one,) = children()
    os.kill(one, signal.SIGKILL)
    await until(lambda: not workers._warm[0].alive)
    workers.expect()
    await until(lambda: len(children()) == 1)
    workers.expect()
    await workers.close()
    workers.expect()
    assert children() == set()


@pytest.mark.asyncio
async def test_expected_workers_are_no_more_than_allowed_and_do_not_gather(
    workers: Workers, archive: Path, tmp_path: Path
) -> None:
    jobs = [
        asyncio.create_task(workers.index("zip", archive, tmp_path / f"t{number}", stamp(archive), verify=True))
        for number in range(2)
    ]
    while not all(job.done() for job in jobs):
        workers.expect()
        assert len(children()) <= 2
        await asyncio.sleep(0.002)
    for _ in range(3):
        for worker in workers._warm:
            os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: not any(worker.alive for worker in workers._warm))
        workers.expect()
        await until(lambda: any(worker.alive for worker in workers._warm))
        assert len(workers._warm) == 1


@pytest.mark.asyncio
async def test_who_closes_waits_for_a_worker_that_starts(workers: Workers) -> None:
    workers.expect()
    await workers.close()
    assert children() == set()


@pytest.mark.asyncio
async def test_no_more_workers_than_allowed(workers: Workers, archive: Path, tmp_path: Path) -> None:
    jobs = [unpack(workers, archive, tmp_path / f"f{number}") for number in range(6)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(children()))
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*jobs)
    watcher.cancel()
    assert most == 2


@pytest.mark.asyncio
async def test_a_worker_holds_nothing_of_ours(workers: Workers, archive: Path, tmp_path: Path) -> None:
    """No descriptor but its pipes, inheritable ones of ours included, and no environment."""
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    await workers.index("zip", archive, tmp_path / "t", stamp(archive), verify=False)
    (pid,) = children()
    links = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    os.close(read_end)
    os.close(write_end)
    assert set(links) == {"0", "1", "2"}
    assert links["2"] == "/dev/null"
    assert await asyncio.to_thread(environment, pid) == {"PYTHONPATH", "PYTHONUTF8"}


@pytest.mark.asyncio
async def test_room_is_asked_for_before_it_is_used(workers: Workers, tmp_path: Path) -> None:
    """Each step of a compressed tar waits for its permission; a zip says all it needs at once."""
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(*MEMBERS.items()), 1))
    folder = tmp_path / "f"
    needs: list[Need] = []
    async with workers.unpack("tar.gz", tmp_path / "a.tar.gz", folder, MODES) as unpacking:
        async for need in unpacking:
            used = await asyncio.to_thread(allocated, folder)
            assert used <= (needs[-1].bytes if needs else 0)
            needs.append(need)
        used = await asyncio.to_thread(allocated, folder)
        assert unpacking.result.blocks == used <= needs[-1].bytes
    assert len(needs) > 3
    assert all(a.bytes <= b.bytes and a.inodes <= b.inodes for a, b in itertools.pairwise(needs))
    assert needs[-1].inodes >= len(MEMBERS) + 8
    assert unpacking.result.size == sum(map(len, MEMBERS.values()))
    assert unpacking.result.members == len(MEMBERS)


@pytest.mark.asyncio
async def test_a_zip_needs_what_its_directory_says(workers: Workers, archive: Path, tmp_path: Path) -> None:
    assert await unpack(workers, archive, tmp_path / "f") == [Need(8192 * len(MEMBERS), len(MEMBERS) + 7 + 1)]


@pytest.mark.asyncio
async def test_whoever_stops_leaves_nothing(workers: Workers, archive: Path, tmp_path: Path) -> None:
    async with workers.unpack("zip", archive, tmp_path / "f", MODES) as unpacking:
        async for _ in unpacking:
            break
    assert left(tmp_path) == []
    assert children() == set()
    with pytest.raises(AttributeError):
        _ = unpacking.result
    assert [need async for need in unpacking] == []
    await unpack(workers, archive, tmp_path / "f")


@pytest.mark.asyncio
async def test_cancelled_at_any_moment(workers: Workers, archive: Path, tmp_path: Path) -> None:
    """When the cancelled call has returned, its process and its output are gone already."""
    began = time.perf_counter()
    await unpack(workers, archive, tmp_path / "whole")
    span = time.perf_counter() - began
    for part in range(15):
        job = asyncio.create_task(unpack(workers, archive, tmp_path / "f"))
        await asyncio.sleep(span * part / 15)
        job.cancel()
        try:
            await job
        except asyncio.CancelledError:
            assert left(tmp_path) == ["whole"]
            assert children() == set()
        else:
            (tmp_path / "f").rename(tmp_path / "trash")
            await asyncio.to_thread(subprocess.run, ["rm", "-r", tmp_path / "trash"], check=True)


@pytest.mark.asyncio
async def test_cancelled_twice(workers: Workers, archive: Path, tmp_path: Path) -> None:
    """A second cancellation during the clean-up does not cut it short."""
    job = asyncio.create_task(unpack(workers, archive, tmp_path / "f"))
    await until((tmp_path / "f").exists)
    job.cancel()
    await asyncio.sleep(0)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert left(tmp_path) == []
    assert children() == set()


@pytest.mark.asyncio
async def test_a_killed_worker_is_replaced_once(workers: Workers, archive: Path, tmp_path: Path) -> None:
    job = asyncio.create_task(unpack(workers, archive, tmp_path / "f"))
    await until((tmp_path / "f").exists)
    (first,) = children()
    os.kill(first, signal.SIGKILL)
    assert len(await job) == 1
    assert await asyncio.to_thread(files, tmp_path / "f") == MEMBERS
    assert first not in children()


@pytest.mark.asyncio
async def test_killed_twice_is_the_archives_fault(workers: Workers, archive: Path, tmp_path: Path) -> None:
    """As when the kernel kills for want of memory: that will not go better a third time."""
    job = asyncio.create_task(unpack(workers, archive, tmp_path / "f"))
    killed: set[int] = set()
    while len(killed) < 2:
        await until(lambda: not children() <= killed)
        for pid in children() - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    with pytest.raises(BadArchive, match="killed twice") as refused:
        await job
    assert refused.value.reason == "limit"
    assert left(tmp_path) == []


@pytest.mark.asyncio
async def test_a_warm_worker_that_was_killed_meanwhile(workers: Workers, archive: Path, tmp_path: Path) -> None:
    for number in range(3):
        await workers.index("zip", archive, tmp_path / f"t{number}", stamp(archive), verify=False)
        for pid in children():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.asyncio
async def test_time_is_limited(tmp_path: Path) -> None:
    """Waiting for room does not count as work."""
    (tmp_path / "a.tar").write_bytes(tar_of(*((f"{number}", b"") for number in range(20_000))))
    workers = Workers(limits=Limits(100_000, 1 << 30, 0.2), most=1)
    with pytest.raises(BadArchive, match=r"more than 0\.2 s") as refused:
        await unpack(workers, tmp_path / "a.tar", tmp_path / "f")
    assert refused.value.reason == "limit"
    assert left(tmp_path) == []
    assert children() == set()
    await workers.close()


@pytest.mark.asyncio
async def test_waiting_for_room_is_not_limited(archive: Path, tmp_path: Path) -> None:
    workers = Workers(limits=LIMITS, most=1)
    unpacking = workers.unpack("zip", archive, tmp_path / "f", MODES)
    async for _ in unpacking:
        before = unpacking._call._left
        await asyncio.sleep(0.3)
        assert unpacking._call._left == before
    assert unpacking.result.members == len(MEMBERS)
    await workers.close()


@pytest.mark.asyncio
async def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that may use 40 MiB refuses what needs more, and the next archive is read."""
    monkeypatch.setattr("cachedaemon.archives.workers._MEMORY", 40 << 20)
    monkeypatch.setattr("cachedaemon.archives.workers._MEMORY_EACH", 0)
    names = (f"{number:06d}".rjust(200, "x") for number in range(60_000))
    (tmp_path / "a.zip").write_bytes(zip_of(dict.fromkeys(names, b"")))
    workers = Workers(limits=Limits(1_000_000, 1 << 30, 30), most=1)
    with pytest.raises(BadArchive, match="memory") as refused:
        await workers.index("zip", tmp_path / "a.zip", tmp_path / "t", stamp(tmp_path / "a.zip"), verify=False)
    assert refused.value.reason == "limit"
    assert left(tmp_path) == []
    odd = ODD / "zip_plain.zip"
    assert await workers.index("zip", odd, tmp_path / "t", stamp(odd), verify=True) == 2
    await workers.close()


@pytest.mark.asyncio
@pytest.mark.root
async def test_a_full_disk_is_no_fault_of_the_archive(workers: Workers, archive: Path, tmp_path: Path) -> None:
    small = tmp_path / "a.disk"
    small.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        with pytest.raises(NoSpace, match="No space left"):
            await unpack(workers, archive, small / "f")
        with pytest.raises(NoSpace, match="No space left"):
            await many_tables(workers, archive, small)
        assert not any(path.is_dir() for path in small.iterdir())
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", small], check=True)


async def many_tables(workers: Workers, archive: Path, folder: Path) -> None:
    for number in range(30):
        await workers.index("zip", archive, folder / f"t{number}", stamp(archive), verify=False)


@pytest.mark.asyncio
async def test_the_archive_has_gone(workers: Workers, tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="No such file"):
        await unpack(workers, tmp_path / "missing.zip", tmp_path / "f")


@pytest.mark.asyncio
async def test_the_group_is_given(workers: Workers, archive: Path, tmp_path: Path) -> None:
    await unpack(workers, archive, tmp_path / "f", Modes(0o640, 0o2750, os.getegid()))
    found = (tmp_path / "f/d0").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o2750, os.getegid())
    assert stat.S_IMODE((tmp_path / "f/d0/0000.bin").stat().st_mode) == 0o640


@pytest.mark.asyncio
async def test_after_close_nothing_begins(archive: Path, tmp_path: Path) -> None:
    """One call is under way, others wait for their turn: all of them stop."""
    workers = Workers(limits=LIMITS, most=1)
    begun, closed = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        async for _ in workers.unpack("zip", archive, tmp_path / "f", MODES):
            begun.set()
            await closed.wait()

    calls = [asyncio.create_task(held()) for _ in range(3)]
    await begun.wait()
    await workers.close()
    closed.set()
    assert children() == set()
    assert [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)] == [Stopping] * 3
    with pytest.raises(Stopping):
        await workers.index("zip", archive, tmp_path / "t", stamp(archive), verify=False)
    assert left(tmp_path) == []
    assert children() == set()


LIES = {
    "not JSON": "print('hello', flush=True)",
    "not an object": "print('[1]', flush=True)",
    "a reason that is none": 'print(\'{"bad": {"message": "m", "reason": "r"}}\', flush=True)',
    "a negative need": "print('{\"need\": [-1, 2]}', flush=True)",
    "a count that is no number": 'print(\'{"done": {"members": "1"}}\', flush=True)',
    "nested without end": "print('[' * 100_000, flush=True)",
    "a line without end": "sys.stdout.write('x' * (2 << 20)); sys.stdout.flush()",
    "need and done": 'print(\'{"need": [1, 1], "done": {}}\', flush=True)',
}


@pytest.mark.asyncio
@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_worker_is_ended(
    lie: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was taken over by what it read says whatever it likes: it is refused and killed."""
    code = f"import sys\nsys.stdin.readline()\n{LIES[lie]}\nsys.stdin.read()"
    stand_in(monkeypatch, tmp_path, code)
    workers = Workers(limits=LIMITS, most=1)
    with pytest.raises(BadArchive, match="wrong answer") as refused:
        await unpack(workers, archive, tmp_path / "f")
    assert refused.value.reason == "corrupt"
    assert workers._busy == set()
    assert workers._warm == []
    await workers.close()


def stand_in(monkeypatch: pytest.MonkeyPatch, place: Path, code: str) -> None:
    """Another program in the worker's place."""
    (place / "a.program").mkdir()
    (place / "a.program/liar.py").write_text(code)
    environment = {"PYTHONPATH": str(place / "a.program")}
    monkeypatch.setattr("cachedaemon.archives.process._ENVIRONMENT", environment)
    monkeypatch.setattr("cachedaemon.archives.process._MODULE", "liar")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", (BadArchive, "corrupt")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (BadArchive, "limit")),
        ("raise SystemExit(3)", (CacheDaemonError, None)),
    ],
)
async def test_a_worker_that_always_dies(
    code: str, outcome: tuple[type[CacheDaemonError], str | None], archive: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    error, reason = outcome
    stand_in(monkeypatch, tmp_path, code)
    workers = Workers(limits=LIMITS, most=1)
    with pytest.raises(error) as refused:
        await unpack(workers, archive, tmp_path / "f")
    assert getattr(refused.value, "reason", None) == reason
    await workers.close()


@pytest.mark.asyncio
async def test_a_worker_that_was_idle_for_too_long(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the moment in which the next job comes: that is no death that counts."""
    code = f"""
import sys
sys.argv[1:1] = []
from cachedaemon.archives import worker
real, served = worker.Lines.read, []
def read(self, timeout):
    if timeout is not None:
        if served:
            real(self, None)
            raise worker._Ended
        served.append(1)
    return real(self, timeout)
worker.Lines.read = read
sys.path[:0] = {sys.path!r}
worker.main()
"""
    stand_in(monkeypatch, tmp_path, f"import sys\nsys.path[1:1] = {sys.path!r}\n{code}")
    workers = Workers(limits=LIMITS, most=1)
    for number in range(4):
        assert await workers.index("zip", archive, tmp_path / f"t{number}", stamp(archive), verify=False) == len(
            MEMBERS
        )
    await workers.close()


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_idle_worker_ends_by_itself(workers: Workers, archive: Path, tmp_path: Path) -> None:
    await workers.index("zip", archive, tmp_path / "t", stamp(archive), verify=False)
    assert len(children()) == 1
    await until(lambda: children() == set(), 60)


PARENT = """
import asyncio, sys
from pathlib import Path
from cachedaemon.archives.workers import Limits, Modes, Unpacking, Workers
async def main():
    unpacking = Workers(limits=Limits(100_000, 1 << 30, 30), most=1).unpack("zip", Path(sys.argv[1]), Path(sys.argv[2]), Modes(0o440, 0o750))
    async for _ in unpacking:
        print("begun", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def test_no_worker_outlives_its_daemon(archive: Path, tmp_path: Path) -> None:
    """After a kill -9 of the daemon the worker ends by itself, though nobody closed its pipes in order."""
    command = [sys.executable, "-c", PARENT, str(archive), str(tmp_path / "f")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "begun\n"
        (worker,) = map(int, Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split())
        os.kill(worker, signal.SIGSTOP)  # so that it cannot see the end of its input
        daemon.kill()
    end = time.monotonic() + 10
    while "archives.worker" in command_of(worker):
        assert time.monotonic() < end, "the worker lives on"


def command_of(pid: int) -> str:
    """Command line of a process; nothing for one that has ended."""
    return command(pid)


@pytest.mark.asyncio
async def test_to_its_end_keeps_a_cancellation_until_the_work_is_done() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.set()

    task = asyncio.create_task(to_its_end(work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


@pytest.mark.asyncio
async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    for moment in range(8):
        task = asyncio.create_task(Worker.start(1 << 30))
        await asyncio.sleep(moment / 2000)
        task.cancel()
        try:
            worker = await task
        except asyncio.CancelledError:
            pass
        else:
            await worker.end()
        assert children() == set()


def test_every_kind_of_name() -> None:
    expected = {
        "a.zip": "zip", "A.ZIP": "zip", "a.tar": "tar", "a.tar.gz": "tar.gz", "a.tgz": "tar.gz", "a.TAR.ZST": "tar.zst",
        "a.tzst": "tar.zst", "a.gz": None, "zip": None, "a.zip.part": None, "a.tar.bz2": None, "": None,
    }  # fmt: skip
    assert {name: kind_of(name) for name in expected} == expected
