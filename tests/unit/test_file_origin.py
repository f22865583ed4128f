"""The file origin beyond the suite: what a url may be, settling, a mount's own errors, threads that hang."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.conformance.reading import read_all
from cachedaemon.errors import CacheDaemonError, Changed, Missing, OriginRefused, OriginUnavailable, Overloaded
from cachedaemon.origins import Origin
from tests.fakes import content
from tests.fakes.fusefs import FuseFs, fuse_fs
from tests.fakes.waiting import family

pytestmark = pytest.mark.asyncio

NOW: dict[str, object] = {"settle": 0}


@pytest.fixture(scope="module")
def fuse() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, fuse_fs(Path(folder)) as mount:
        yield mount


@pytest.fixture
def mount(fuse: FuseFs) -> Iterator[FuseFs]:
    """With k.bin in it, and no faults before and after."""
    content.write(fuse.folder / "k.bin", "k", 3 << 20)
    yield fuse
    fuse.turn()


def helpers() -> list[int]:
    return [pid for pid in family(os.getpid()) if "mounts.helper" in Path(f"/proc/{pid}/cmdline").read_text()]


def helper() -> int:
    """The only one there is."""
    [found] = helpers()
    return found


async def read_at_last(origin: Origin, key: str) -> bytes:
    """However long a helper takes to start, and a mount to come to itself, beyond a short stall limit."""
    async with asyncio.timeout(20):
        while True:
            with suppress(OriginUnavailable):
                return await read(origin, key)


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def kind(url: str, key: str, settings: dict[str, object] = NOW, **fetch: object) -> type[CacheDaemonError]:
    async with opened(url, settings, **fetch) as origin:
        with pytest.raises(CacheDaemonError) as error:
            await read(origin, key)
    return type(error.value)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("{}/set/", "img-1.zip"),
        ("{}/set", "img-1.zip"),
        ("{}/set/img-", "1.zip"),
        ("{}/set/img-{{key}}.zip", "1"),
        ("{}/{{key}}/img-1.zip", "set"),
        ("{}/s%65t/", "img-1.zip"),
    ],
)
async def test_what_a_url_may_be(folder: Path, url: str, key: str) -> None:
    """A folder, with or without its slash, a folder and the begin of a name, or a pattern."""
    (folder / "set").mkdir()
    (folder / "set/img-1.zip").write_bytes(b"one")
    where = "file://" + url.format(folder)
    async with opened(where, NOW) as origin:
        assert await read(origin, key) == b"one"
        with pytest.raises(Missing):
            await read(origin, "no" + key)
        (folder / "set").rename(folder / "gone")
        with pytest.raises((OriginUnavailable, Missing)) as error:
            await read(origin, key)
        if url != "{}/{{key}}/img-1.zip":  # there the folder is part of the key
            assert error.type is OriginUnavailable
    if url == "{}/set/img-":
        (folder / "gone").rename(folder / "set")
        async with opened(where, NOW) as origin:
            assert await origin.keys() == ["1.zip"]


async def test_listing_leaves_out_what_is_no_key(folder: Path) -> None:
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/b.bin").write_bytes(b"")
    (folder / "a.bin").write_bytes(b"")
    (folder / "link.bin").symlink_to("a.bin")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "fifo")
    (folder / os.fsdecode(b"not-\xff-utf8")).write_bytes(b"")
    async with opened(f"file://{folder}/", NOW) as origin:
        assert await origin.keys() == ["a.bin", "link.bin", "sub/deep/b.bin"]


async def test_a_long_listing_is_no_stall(mount: FuseFs) -> None:
    """Each folder takes a while, all together longer than the stall limit."""
    for number in range(12):
        (mount.folder / f"many/{number}").mkdir(parents=True, exist_ok=True)
        (mount.folder / f"many/{number}/x").write_bytes(b"")
    mount.turn(delay=0.15, ops=["readdir"])
    async with opened(f"file://{mount.path}/many/", NOW, stall_timeout="1500ms") as origin:
        assert len(await origin.keys()) == 12


@pytest.mark.parametrize("odd", ["fifo", "socket", "device", "folder", "loop"])
async def test_what_is_no_regular_file_is_refused_at_once(folder: Path, odd: str) -> None:
    """C-76: the open of a FIFO that nobody writes to would hang its thread for ever."""
    (folder / "good").write_bytes(b"x")
    if odd == "fifo":
        os.mkfifo(folder / odd)
    elif odd == "folder":
        (folder / odd).mkdir()
    else:
        (folder / odd).symlink_to({"socket": "/dev/log", "device": "/dev/zero", "loop": "loop"}[odd])
    if odd == "socket":
        os.unlink(folder / odd)
        import socket

        with socket.socket(socket.AF_UNIX) as link:
            link.bind(str(folder / odd))
    async with opened(f"file://{folder}/", {**NOW, "concurrency": 1}) as origin:
        for _ in range(3):
            with pytest.raises(OriginRefused):
                async with asyncio.timeout(10):
                    await read(origin, odd)
        assert await read(origin, "good") == b"x", "no thread is stuck"


async def test_a_young_file_is_waited_for(folder: Path) -> None:
    """Somebody may still be writing: it is read once it has been left alone for `settle`."""
    path = folder / "k.bin"
    path.write_bytes(b"half")
    async with opened(f"file://{folder}/", {"settle": "500ms"}) as origin:
        task = asyncio.create_task(read(origin, "k.bin"))
        done, _ = await asyncio.wait([task], timeout=0.1)
        assert not done
        path.write_bytes(b"whole")
        assert await task == b"whole"
        assert time.time() - path.stat().st_mtime >= 0.5
        os.utime(path, (0, time.time() + 1e6))
        assert await read(origin, "k.bin") == b"whole", "a time far in the future says nothing"


@pytest.mark.parametrize("grow", [True, False])
async def test_a_file_written_while_it_is_read_has_changed(folder: Path, grow: bool) -> None:  # noqa: FBT001
    content.write(folder / "k.bin", "k", 5 << 20)

    def write() -> None:
        with (folder / "k.bin").open("ab" if grow else "r+b") as file:
            file.write(b"more")

    async with opened(f"file://{folder}/", NOW) as origin:
        with pytest.raises(Changed):
            await read(origin, "k.bin", write)


async def test_a_part_is_of_the_file_that_was_opened(folder: Path) -> None:
    """C-04: not of one that took its name, with as many bytes and the same time; once the first is back, it is."""
    path = folder / "k.bin"
    content.write(path, "k", 5 << 20)
    async with opened(f"file://{folder}/", NOW) as origin, stream_of(origin, "k.bin") as stream:
        when = path.stat().st_mtime_ns
        path.rename(folder / "first")
        with pytest.raises(Missing):
            await read_part(stream, 10, 20)
        content.write(path, "k", 5 << 20, seed=2)
        os.utime(path, ns=(when, when))
        with pytest.raises(Changed):
            await read_part(stream, 10, 20)
        (folder / "first").rename(path)
        assert await read_part(stream, 10, 20) == content.data("k", 20)[10:]


async def test_a_size_that_means_nothing_is_not_believed() -> None:
    """A file that shows no bytes and has some, as those of /proc do, or one on a network mount with a stale state."""
    async with opened("file:///proc/self/", NOW) as origin:
        with pytest.raises(Changed, match="more than the 0 bytes"):
            await read(origin, "status")


async def test_resumed_by_parts_while_the_first_read_hangs(mount: FuseFs) -> None:
    """With room for one transfer: what hangs holds a thread, and the part that goes on has another."""
    async with opened(f"file://{mount.path}/", {**NOW, "concurrency": 1}, stall_timeout="500ms") as origin:
        await read_at_last(origin, "k.bin")
        async with stream_of(origin, "k.bin") as stream:
            mount.turn(hang=True, ops=["read"])
            with pytest.raises(Overloaded):
                await read_all(stream)
            mount.turn()
            assert await read_part(stream, 1 << 20, 3 << 20) == content.data("k", 3 << 20)[1 << 20 :]


@pytest.mark.parametrize(
    ("errno", "expected"),
    [
        *((name, OriginUnavailable) for name in ("EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "ENODEV")),
        *((name, OriginRefused) for name in ("EACCES", "EPERM")),
    ],
)
@pytest.mark.parametrize("op", ["open", "read"])
async def test_errors_of_the_mount_are_told_apart(
    mount: FuseFs, errno: str, expected: type[CacheDaemonError], op: str
) -> None:
    """C-19. ETIMEDOUT is Python's TimeoutError: it is the mount's answer and no stall, also where there is no limit."""
    mount.turn(errno=errno, ops=[op])
    for limit in ("60s", "0"):
        assert await kind(f"file://{mount.path}/", "k.bin", stall_timeout=limit) is expected
    mount.turn()
    async with opened(f"file://{mount.path}/", NOW) as origin:
        assert await read(origin, "k.bin") == content.data("k", 3 << 20)


async def test_a_mount_whose_server_died_is_unavailable_also_for_what_is_not_there(folder: Path) -> None:
    with fuse_fs(folder) as mount:
        mount.kill9()
        for key in ("k.bin", "none.bin"):
            assert await kind(f"file://{mount.path}/", key) is OriginUnavailable


async def test_a_hung_mount_keeps_its_threads_and_no_more(mount: FuseFs) -> None:
    """Threads are bounded, calls that nobody waits for are never made, late results are closed."""
    url, settings = f"file://{mount.path}/", {**NOW, "concurrency": 3}
    async with opened(url, settings, stall_timeout="200ms") as origin:
        await read_at_last(origin, "k.bin")
        base = len(os.listdir("/proc/self/fd"))
        mount.turn(hang=True)
        for _ in range(10):
            said = await asyncio.gather(*(read(origin, "k.bin") for _ in range(6)), return_exceptions=True)
            assert {type(one) for one in said} == {Overloaded}
        assert threads_of(helper()) <= 1 + 2 * 3
        before = mount.turn()["open"]
        assert await read_at_last(origin, "k.bin") == content.data("k", 3 << 20)
        async with asyncio.timeout(20):
            while len(os.listdir("/proc/self/fd")) > base:  # noqa: ASYNC110 - threads close, no event tells
                await asyncio.sleep(0.02)
        assert mount.turn()["open"] - before <= 7, "of 60 opens only those that threads had begun were made"


async def test_a_helper_that_dies_is_started_again(folder: Path) -> None:
    """Killed in mid-transfer (by the kernel, say, for want of memory): that try fails, the next one does not."""
    content.write(folder / "k.bin", "k", 5 << 20)

    def kill() -> None:
        os.kill(helper(), signal.SIGKILL)

    async with opened(f"file://{folder}/", NOW) as origin:
        for _ in range(3):
            with pytest.raises(OriginUnavailable):
                await read(origin, "k.bin", kill)
            async with asyncio.timeout(20):
                while helpers():  # noqa: ASYNC110 - its last socket closes after its pipes, and no event tells
                    await asyncio.sleep(0.005)
                assert await read(origin, "k.bin") == content.data("k", 5 << 20)


async def test_many_given_up_requests_do_not_gather_in_the_helper(mount: FuseFs) -> None:
    """It drops those that nobody waits for; its descriptors stay bounded while the mount hangs."""
    async with opened(f"file://{mount.path}/", {**NOW, "concurrency": 2}, stall_timeout="60s") as origin:
        await read(origin, "k.bin")
        mount.turn(hang=True)
        for _ in range(30):
            tasks = [asyncio.create_task(read(origin, "k.bin")) for _ in range(20)]
            await asyncio.wait(tasks, timeout=0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert len(os.listdir(f"/proc/{helper()}/fd")) < 250
        mount.turn()
        async with asyncio.timeout(20):
            assert await read(origin, "k.bin") == content.data("k", 3 << 20)


async def test_a_read_that_is_slow_makes_progress(mount: FuseFs) -> None:
    """A MiB takes longer than the stall limit, each read of it does not."""
    mount.turn(delay=0.3, ops=["read"])
    async with opened(f"file://{mount.path}/", NOW, stall_timeout="2500ms") as origin:
        assert await read(origin, "k.bin") == content.data("k", 3 << 20)


async def test_a_folder_that_is_there_and_one_that_is_not(folder: Path) -> None:
    """Without a key: not there, empty as an unmounted one is, a begin of names that nothing has."""
    (folder / "set").mkdir()
    (folder / "set/img-1.zip").write_bytes(b"x")
    (folder / "empty").mkdir()
    for place in ("set/", "set", "set/img-", "set/{key}.zip", "{key}/img-1.zip"):
        async with opened(f"file://{folder}/{place}", NOW) as origin:
            await origin.look()
    for place in ("gone/", "empty/", "set/pic-", "gone/{key}.zip"):
        async with opened(f"file://{folder}/{place}", NOW) as origin:
            with pytest.raises(OriginUnavailable) as error:
                await origin.look()
            assert str(error.value).startswith(f"source s ({folder}/{place}): ")


async def test_a_look_at_a_mount_that_hangs_ends(mount: FuseFs) -> None:
    async with opened(f"file://{mount.path}/", NOW, stall_timeout="300ms") as origin:
        await read_at_last(origin, "k.bin")
        mount.turn(hang=True)
        with pytest.raises(OriginUnavailable, match="does not answer"):
            await origin.look()
        mount.turn()
