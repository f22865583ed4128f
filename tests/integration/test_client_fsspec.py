"""`shardcache://` as fsspec and its users see it: what opens, what is leased, what a listing means, what is refused."""

from __future__ import annotations

import asyncio
import errno
import gc
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from cachedaemon_client import DaemonUnavailable, OriginFailed, ShardMissing, SourceUnknown, WaitExpired
from cachedaemon_client.filesystem import ShardCacheFileSystem
from tests.fakes import packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin, Status

TEXT = b"one\ntwo\nthree\n"
KEYS = ["plain.txt", "deep/er/a.txt", "deep/er/b.txt", "deep/c.txt", "odd %20?#&+.txt"]
WAIT = 20


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for key in KEYS:
            one.put(key, data=TEXT)
        one.put("a.zip", data=packing.zip_bytes({"in/x.txt": TEXT, "in/y.txt": b"y"}))
        one.put("refused.txt", data=TEXT, always=Status(403))
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    sources = {"s": origin.url, "unpacked": {"url": origin.url, "archives": "unpack"}}
    with Daemon({**sources, "again": {"url": origin.url, "revalidate": "always"}}, max_shards=20) as one:
        yield one


@pytest.fixture
def files(daemon: Daemon, origin: Origin) -> ShardCacheFileSystem:
    """The file system, with nothing local and nothing counted yet."""
    for row in daemon.shards():
        daemon.evict(row["source"], row["key"])
    origin.zero()
    return fsspec.filesystem("shardcache", socket=str(daemon.socket), wait=WAIT)


def leased(daemon: Daemon) -> list[str]:
    return [row["key"] for row in daemon.shards() if row["leased"]]


# --- reading


def test_a_url_is_opened_and_leased_until_it_is_closed(
    daemon: Daemon, origin: Origin, files: ShardCacheFileSystem
) -> None:
    with fsspec.open("shardcache://s/plain.txt", socket=str(daemon.socket)) as file:
        assert (file.size, file.readline(), file.seek(-6, 2), file.read()) == (14, b"one\n", 8, b"three\n")
        assert leased(daemon) == ["plain.txt"]
        assert daemon.evict("s", "plain.txt").code == "leased"
        assert Path(file.name).read_bytes() == TEXT
    assert leased(daemon) == []
    assert file.closed
    with fsspec.open("shardcache://s/plain.txt", "rt", socket=str(daemon.socket)) as text:
        assert text.read().splitlines() == ["one", "two", "three"]
    assert origin["plain.txt"].gets == 1


def test_a_file_that_is_dropped_ends_its_lease_without_a_warning(daemon: Daemon, files: ShardCacheFileSystem) -> None:
    """Pyarrow, for one, never closes what it reads."""
    file = files.open("s/plain.txt")
    assert leased(daemon) == ["plain.txt"]
    del file
    gc.collect()
    assert leased(daemon) == []


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_taken_as_they_are(files: ShardCacheFileSystem, key: str) -> None:
    assert files.cat_file(f"shardcache://s/{key}") == TEXT
    assert files.cat_file(f"/s/{key}") == TEXT
    assert files.unstrip_protocol(files.info(f"s/{key}")["name"]) == f"shardcache://s/{key}"


def test_parts_of_shards(files: ShardCacheFileSystem, origin: Origin) -> None:
    path = "s/plain.txt"
    assert files.cat_file(path, 4, 7) == b"two"
    assert files.cat_file(path, -6, -1) == b"three"
    assert files.cat_ranges([path] * 3, [0, 4, 8], [3, 7, 13]) == [b"one", b"two", b"three"]
    assert (files.head(path, 3), files.tail(path, 6)) == (b"one", b"three\n")
    assert origin.gets == 1


def test_a_copy_and_a_path(daemon: Daemon, files: ShardCacheFileSystem, folder: Path) -> None:
    files.get("s/plain.txt", str(folder / "copy.txt"))
    assert (folder / "copy.txt").read_bytes() == TEXT
    with files.local_path("s/plain.txt") as path:
        assert path.read_bytes() == TEXT
        assert leased(daemon) == ["plain.txt"]
    assert leased(daemon) == []


def test_members_by_chaining(daemon: Daemon, files: ShardCacheFileSystem, origin: Origin) -> None:
    """`zip://` holds the lease for as long as it has the archive open."""
    to = {"socket": str(daemon.socket), "wait": WAIT}
    with fsspec.open("zip://in/x.txt::shardcache://s/a.zip", shardcache=to) as file:
        assert file.read() == TEXT
        assert leased(daemon) == ["a.zip"]
    archive = fsspec.filesystem("zip", fo="shardcache://s/a.zip", target_options=to)
    assert sorted(archive.find("")) == ["in/x.txt", "in/y.txt"]
    assert leased(daemon) == ["a.zip"]
    del archive, file
    gc.collect()
    assert leased(daemon) == []
    assert origin["a.zip"].gets == 1


def test_each_version_of_a_shard_that_changes(daemon: Daemon, origin: Origin, files: ShardCacheFileSystem) -> None:
    """A file that is open keeps its bytes; digest and content of the path are the new ones."""
    origin.put("changing.txt", data=b"before", etag='"1"')
    before = files.info("again/changing.txt")
    with files.open("again/changing.txt") as file:
        origin.put("changing.txt", data=b"later on", etag='"2"')
        assert files.cat_file("again/changing.txt") == b"later on"
        assert file.read() == b"before"
    after = files.info("again/changing.txt")
    assert (before["size"], after["size"]) == (6, 8)
    assert before["etag"].startswith("xxh3-128:")
    assert before["etag"] != after["etag"]


# --- looking


def test_a_listing_tells_what_is_local_and_fetches_nothing(files: ShardCacheFileSystem, origin: Origin) -> None:
    assert files.ls("", detail=False) == ["again", "s", "unpacked"]
    assert files.ls("s") == []
    for key in KEYS[:3]:
        files.cat_file(f"s/{key}")
    assert files.ls("shardcache://s") == [
        {"name": "s/deep", "size": 0, "type": "directory"},
        {"name": "s/plain.txt", "size": 14, "type": "file"},
    ]
    assert files.ls("s/deep/er/a.txt", detail=False) == ["s/deep/er/a.txt"]
    assert files.find("s/deep") == files.glob("s/deep/*/*.txt") == ["s/deep/er/a.txt", "s/deep/er/b.txt"]
    assert list(files.walk("s/deep")) == [("s/deep", ["er"], []), ("s/deep/er", [], ["a.txt", "b.txt"])]
    for absent in ("s/deep/c.txt", "s/dee", "s/nothing"):
        with pytest.raises(FileNotFoundError):
            files.ls(absent)
    assert origin.gets == 3


def test_a_listing_of_many_pages(files: ShardCacheFileSystem) -> None:
    for key in KEYS:
        files.cat_file(f"s/{key}")
    assert [row["key"] for row in files._local("s", "", 2)] == sorted(KEYS)


def test_info_brings_what_is_not_local(files: ShardCacheFileSystem, origin: Origin) -> None:
    assert files.info("s/deep/c.txt") | {"etag": ""} == {"name": "s/deep/c.txt", "size": 14, "type": "file", "etag": ""}
    assert origin["deep/c.txt"].gets == 1
    assert files.info("s/deep")["type"] == files.info("s")["type"] == files.info("")["type"] == "directory"
    assert (files.isdir("s/deep"), files.isfile("s/plain.txt"), files.size("s/plain.txt")) == (True, True, 14)
    assert (files.exists("s/none.txt"), files.isfile("s/none.txt"), files.isdir("s/none.txt")) == (False,) * 3
    assert origin.gets == 2


def test_an_unpacked_shard_is_no_file(daemon: Daemon, files: ShardCacheFileSystem) -> None:
    assert files.info("unpacked/a.zip")["type"] == files.ls("unpacked")[0]["type"] == "other"
    with pytest.raises(IsADirectoryError):
        files.open("unpacked/a.zip")
    assert leased(daemon) == []
    with files.local_path("unpacked/a.zip") as path:
        assert (path / "in/x.txt").read_bytes() == TEXT


# --- failures


def test_only_an_absence_is_told_as_one(files: ShardCacheFileSystem, folder: Path) -> None:
    """FileNotFoundError comes from the origin's word alone: zarr, for one, takes it for a chunk of zeros."""
    with pytest.raises(ShardMissing) as missing:
        files.open("s/none.txt")
    assert isinstance(missing.value, FileNotFoundError)
    for look in (files.open, files.exists, files.isfile, files.isdir, files.info):
        with pytest.raises(OriginFailed):
            look("s/refused.txt")
    for look in (files.open, files.exists, files.ls, files.find, files.info):
        with pytest.raises(SourceUnknown) as unknown:
            look("nowhere/a.txt")
        assert not isinstance(unknown.value, OSError)
    alone = ShardCacheFileSystem(socket=str(folder / "none.sock"), wait=0)
    for look in (alone.open, alone.exists, alone.isfile, alone.isdir, alone.ls, alone.find):
        with pytest.raises(DaemonUnavailable) as away:
            look("s/plain.txt")
        assert isinstance(away.value, ConnectionError)


def test_what_does_not_come_in_time(daemon: Daemon, files: ShardCacheFileSystem, origin: Origin) -> None:
    hasty = fsspec.filesystem("shardcache", socket=str(daemon.socket), wait=0)
    with pytest.raises(WaitExpired) as late:
        hasty.open("s/plain.txt")
    assert isinstance(late.value, TimeoutError)
    assert origin.gets == 0


def test_a_source_is_no_file(files: ShardCacheFileSystem) -> None:
    with pytest.raises(IsADirectoryError):
        files.open("shardcache://s")


def test_nothing_is_written(files: ShardCacheFileSystem, folder: Path) -> None:
    (folder / "new").write_bytes(b"new")
    files.cat_file("s/plain.txt")
    tries: list[tuple[Any, ...]] = [
        *((files.open, "s/new", mode) for mode in ("wb", "w", "ab", "xb", "r+b")),
        (files.pipe, "s/new", b"new"),
        (files.write_text, "s/new", "new"),
        (files.put, str(folder / "new"), "s/new"),
        (files.copy, "s/plain.txt", "s/new"),
        (files.mv, "s/plain.txt", "s/new"),
        (files.rm, "s/plain.txt"),
        (files.rm_file, "s/plain.txt"),
        (files.touch, "s/new"),
        (files.mkdir, "s/new"),
        (files.makedirs, "s/new"),
        (files.rmdir, "s"),
    ]
    for change, *words in tries:
        with pytest.raises(OSError, match="read only: write to where the source is") as refused:
            change(*words)
        assert refused.value.errno == errno.EROFS
    assert files.ls("s", detail=False) == ["s/plain.txt"]


# --- threads, loops, processes


def test_threads_share_an_instance_and_a_transfer(files: ShardCacheFileSystem, origin: Origin) -> None:
    begin = threading.Barrier(8)

    def read(_: int) -> bytes:
        begin.wait(WAIT)
        return bytes(files.cat_file("s/plain.txt"))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {TEXT}
    assert origin["plain.txt"].gets == 1


@pytest.mark.asyncio
async def test_on_a_loop(files: ShardCacheFileSystem, origin: Origin) -> None:
    """By fsspec's own wrapper, which calls in threads."""
    wrapped = AsyncFileSystemWrapper(files, asynchronous=True)
    read = [wrapped._cat_file(f"s/{key}") for key in KEYS]
    assert await asyncio.gather(*read) == [TEXT] * len(KEYS)
    assert (await wrapped._info("s/plain.txt"))["size"] == 14
    assert origin.gets == len(KEYS)


def test_an_instance_that_fsspec_keeps_finds_the_daemon_of_today(
    daemon: Daemon, origin: Origin, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("CACHEDAEMON_SOCKET", str(folder / "none.sock"))
    files = fsspec.filesystem("shardcache", wait=0.01)
    with pytest.raises(DaemonUnavailable):
        files.ls("")
    monkeypatch.setenv("CACHEDAEMON_SOCKET", str(daemon.socket))
    assert fsspec.filesystem("shardcache", wait=0.01) is files
    assert files.ls("", detail=False) == ["again", "s", "unpacked"]


def test_it_is_pickled_by_its_settings(files: ShardCacheFileSystem) -> None:
    files.cat_file("s/plain.txt")
    ShardCacheFileSystem.clear_instance_cache()
    other = pickle.loads(pickle.dumps(files))
    assert other is not files
    assert other == files
    assert other.cat_file("s/plain.txt") == TEXT
    with files.open("s/plain.txt") as file, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(file)


FORKS = """
import fsspec
files = fsspec.filesystem("shardcache")
file = files.open("s/plain.txt")
begun = file.read(4)

def child(number):
    ours = file.read() if number == 0 else b""
    file.close()
    with files.open("s/deep/c.txt") as other:
        return os.write(pipe[1], json.dumps([ours.decode(), other.read().decode()]).encode() + b"\\n")

pipe = os.pipe()
pids = []
for number in range(4):
    if (pid := os.fork()) == 0:
        child(number)
        os._exit(0)
    pids.append(pid)
ended = [os.waitpid(pid, 0)[1] for pid in pids]
say([ended, sorted(json.loads(line) for line in os.read(pipe[0], 1 << 16).splitlines())])
hear()
file.close()
say("closed")
hear()
"""


def test_forked_workers_read_on_and_leave_their_parents_lease(
    daemon: Daemon, files: ShardCacheFileSystem, origin: Origin
) -> None:
    """As workers of a DataLoader do: an instance and a file from before the fork, used and closed in children."""
    with readers.Reader(daemon, FORKS) as parent:
        ended, read = parent.line()
        assert ended == [0] * 4
        assert read == [["", TEXT.decode()]] * 3 + [[TEXT[4:].decode(), TEXT.decode()]]
        assert leased(daemon) == ["plain.txt"]
        assert daemon.evict("s", "plain.txt").code == "leased"
        parent.tell()
        assert parent.line() == "closed"
        assert leased(daemon) == []
    assert origin.gets == 2


def test_fsspec_finds_it_once_the_client_is_installed(daemon: Daemon, files: ShardCacheFileSystem) -> None:
    """By the entry point, with warnings as errors; the client itself brings no fsspec."""
    snippet = """
import warnings
warnings.simplefilter("error")
say("fsspec" in sys.modules)
import fsspec
with fsspec.open("shardcache://s/plain.txt") as file:
    say(file.read().decode())
"""
    assert readers.run(daemon, snippet) == [False, TEXT.decode()]
