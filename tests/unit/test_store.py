"""The store: what it moves aside, deletes, counts and says of its health."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.errors import NoSpace, StartError
from cachedaemon.model import Meta, Need, Ref
from cachedaemon.store import SourceMark, disk, files, removal, start
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.trouble import LASTS, Trouble
from cachedaemon_client import lease
from tests.unit.store_kit import MARK, opened, publish, whole

LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])


# --- deleting ------------------------------------------------------------------------------------------------------


def _deep(top: Path, levels: int) -> None:
    """A tree whose paths are longer than any path that the kernel takes."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o000, dir_fd=below))
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("levels", [1, 50, 200])
def test_a_deep_tree_is_counted_and_deleted(folder: Path, levels: int) -> None:
    """200 levels are what an archive may have; the path is five times as long as PATH_MAX then."""
    _deep(folder / "top", levels)
    assert removal.allocated(str(folder / "top")).inodes == 1 + 2 * levels
    removal.delete(str(folder / "top"))
    assert os.listdir(folder) == []


def test_a_wide_tree_with_odd_modes_links_and_special_files(folder: Path) -> None:
    """Nothing is followed, nothing outside is touched, whatever the modes are."""
    outside, top = folder / "outside", folder / "top"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    for n in range(20):
        (top / f"{n}/inner").mkdir(parents=True)
        for m in range(50):
            (top / f"{n}/inner/{m}").write_text("x")
        (top / f"{n}/link").symlink_to(outside)
        os.link(outside / "precious", top / f"{n}/hard")
        os.mkfifo(top / f"{n}/pipe")
        (top / f"{n}/inner").chmod(0o000)
        (top / f"{n}").chmod(0o500)
    removal.delete(str(top))
    assert os.listdir(folder) == ["outside"]
    assert (outside / "precious").read_text() == "precious"


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "nothing"])
def test_what_is_no_folder_is_deleted_too(folder: Path, kind: str) -> None:
    path = folder / "one"
    {
        "file": path.touch,
        "link": lambda: path.symlink_to("/etc"),
        "fifo": lambda: os.mkfifo(path),
        "nothing": lambda: None,
    }[kind]()
    assert removal.reap(str(path))
    assert os.listdir(folder) == []


def test_a_folder_waits_for_its_reader(folder: Path) -> None:
    """One that was moved away from a reader stays until that one has gone."""
    (folder / "tree").mkdir()
    (folder / "tree/member").touch()
    reader = os.open(folder / "tree", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    assert not removal.reap(str(folder / "tree"))
    assert (folder / "tree/member").exists()
    os.close(reader)
    assert removal.reap(str(folder / "tree"))


@LOOP
@pytest.mark.parametrize("way", ["evict", "discard", "publish"])
async def test_a_trash_that_was_removed_keeps_nothing_in_its_place(folder: Path, way: str) -> None:
    """It is the target that is missing, not the shard."""
    root, ref, name = folder / "cache", Ref("s", "a.bin"), "a.bin"
    async with opened(root) as (store, _):
        shard = await publish(store, name)
        old = os.stat(root / "shards/s" / name).st_ino
        os.rmdir(root / "trash")
        if way == "evict":
            assert await store.reap(await store.evict(ref, name, shard.stamp))
        elif way == "discard":
            moved = await store.discard(ref, name)
            assert moved is not None
            assert moved[1] == await asyncio.to_thread(removal.allocated, moved[0]) != Need(0, 0)
        else:
            await publish(store, name)
            assert os.stat(root / "trash" / os.listdir(root / "trash")[0]).st_ino == old
        assert whole(root) == ([name] if way == "publish" else [])


@LOOP
@pytest.mark.parametrize("other", ["file", "held", "closed", "folder", "link"])
async def test_what_was_exchanged_is_not_evicted_as_the_shard(folder: Path, other: str) -> None:
    """Whoever holds it, and whatever it is: the caller has it discarded."""
    root, ref, name = folder / "cache", Ref("s", "a.bin"), "a.bin"
    place = root / "shards/s" / name
    async with opened(root) as (store, _):
        shard = await publish(store, name)
        os.rename(place, folder / "kept")
        if other == "folder":
            await asyncio.to_thread(place.mkdir)
        elif other == "link":
            os.symlink(folder / "kept", place)
        else:
            await asyncio.to_thread(place.write_text, "foreign")
            os.chmod(place, 0 if other == "closed" else 0o644)
        reader = os.open(place, os.O_RDONLY) if other == "held" else -1
        if other == "held":
            fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(lease.Gone):
            await store.evict(ref, name, shard.stamp)
        assert await asyncio.to_thread(os.path.lexists, place)
        assert await store.discard(ref, name) is not None
        assert not await asyncio.to_thread(os.path.lexists, place)
        if other == "held":
            os.close(reader)


# --- publishing ----------------------------------------------------------------------------------------------------


@LOOP
@pytest.mark.parametrize("foreign", ["file", "folder", "link"])
async def test_what_stands_in_a_shards_place_goes_to_trash(folder: Path, foreign: str) -> None:
    """It would be served as the shard. It is reported, so that it is deleted."""
    root = folder / "cache"
    async with opened(root) as (store, _):
        place, told = root / "shards/s/a.bin", []
        store.displaced = lambda path, room: told.append((path, room))
        if foreign == "folder":
            await asyncio.to_thread((place / "mine").mkdir, parents=True)
        elif foreign == "file":
            await asyncio.to_thread(place.write_text, "foreign")
        else:
            os.symlink("/etc/passwd", place)
        await publish(store, "a.bin")
        assert whole(root) == ["a.bin"]
        assert len(told) == 1
        path, room = told[0]
        assert room == await asyncio.to_thread(removal.allocated, path)
        assert await store.reap(path)
        assert os.listdir(root / "trash") == []


@LOOP
async def test_every_published_shard_has_an_mtime_of_its_own(folder: Path) -> None:
    """Also after a restart under a clock that was set back: a stale member table never fits."""
    root = folder / "cache"
    async with opened(root) as (store, _):
        stamps = [(await publish(store, f"{n}.bin")).stamp.mtime_ns for n in range(20)]
    future = 4_000_000_000 * 10**9
    os.utime(root / "shards/s/3.bin", ns=(future, future))
    async with opened(root) as (store, _):
        stamps += [(await publish(store, f"{n}.bin")).stamp.mtime_ns for n in range(20, 40)]
    assert len(set(stamps)) == 40
    assert min(stamps[20:]) > future


@LOOP
async def test_modes_of_what_is_published(folder: Path) -> None:
    for group, file_mode, folder_mode in ((None, 0o444, 0o755), (os.getgid(), 0o440, 0o750)):
        root = folder / f"cache-{group}"
        async with opened(root, group=group) as (store, _):
            await publish(store, "a.bin")
            await publish(store, "b.zip", folder=True)
        for path in ("shards/s/a.bin", "meta/s/a.bin.json"):
            assert stat.S_IMODE((root / path).stat().st_mode) == file_mode
        for path in ("", "shards", "shards/s", "shards/s/b.zip", "meta/s", "members/s"):
            assert stat.S_IMODE((root / path).stat().st_mode) == folder_mode


# --- start ---------------------------------------------------------------------------------------------------------


@LOOP
async def test_another_store_on_the_same_directory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.lock, "__kwdefaults__", {"wait": 0.2})
    async with opened(folder / "cache") as (store, _):
        await publish(store, "a.bin")
        before = sorted(os.listdir(folder / "cache/trash"))
        with pytest.raises(StartError, match=rf"pid {os.getpid()}.* uses the cache directory"):
            async with opened(folder / "cache", SourceMark("s", "other", "opaque", direct=True)):
                pass
        assert whole(folder / "cache") == ["a.bin"]
        assert sorted(os.listdir(folder / "cache/trash")) == before


@LOOP
async def test_another_digest_of_a_source_takes_its_shards_and_no_others(folder: Path) -> None:
    """The mark is written last, and a mark that was lost counts as another one."""
    root = folder / "cache"
    other = SourceMark("t", "digest", "opaque", direct=False)
    async with opened(root, MARK, other) as (store, _):
        await publish(store, "a.bin")
        os.rename(root / "shards/s/a.bin", root / "shards/t/b.bin")
        os.rename(root / "meta/s/a.bin.json", root / "meta/t/b.bin.json")
        await publish(store, "a.bin")
    changed = SourceMark("s", "changed", "opaque", direct=True)
    async with opened(root, changed, other) as (store, found):
        assert [one.ref for one in found.found] == [Ref("t", "b.bin")]
        assert any("'s' was configured anew" in line for line in found.warnings)
        assert await store.outdated([changed, other]) == []
    os.unlink(root / "meta/t/.source")
    async with opened(root, changed, other) as (_, found):
        assert found.found == []


@LOOP
async def test_a_renewal_that_fails_vouches_for_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration before stays in force and brings more: no later start may take that for the new one's."""
    new = SourceMark("s", "other", "opaque", direct=True)
    async with opened(folder) as (store, _):
        with monkeypatch.context() as patch:
            patch.setattr(start, "vouch", _no_space)
            with pytest.raises(NoSpace):
                await store.renew([new])
        await publish(store, "a")
        assert await store.outdated([new]) == ["s"]
    async with opened(folder, new) as (_, found):
        assert found.found == []


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@LOOP
@pytest.mark.parametrize("kind", ["nfs4", "beegfs", "fuse.sshfs"])
async def test_a_network_file_system_is_refused_and_a_fuse_one_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Refused before anything is made in it."""
    monkeypatch.setattr(start, "file_system", lambda path: kind)
    root = folder / "cache"
    root.mkdir()
    if kind.startswith("fuse"):
        async with opened(root) as (_, found):
            assert any(kind in line for line in found.warnings)
    else:
        with pytest.raises(StartError, match=kind):
            async with opened(root):
                pass
        assert os.listdir(root) == []


def test_the_file_systems_of_this_machine_are_named() -> None:
    assert start.file_system(Path("/proc")) == "proc"
    assert start.file_system(Path("/tmp")) != "unknown"


# --- meta files ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_no_meta_file_ends_a_start(text: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        assert files.read_meta(file.name) is None


@given(
    key=st.text(min_size=1, max_size=50),
    size=st.integers(0, 2**63),
    synced=st.booleans(),
)
def test_a_meta_file_is_read_as_it_was_written(key: str, size: int, *, synced: bool) -> None:
    import tempfile

    meta = Meta(key, size, disk.DIGEST + "0", 4096, 3, 1.5, synced=synced)
    with tempfile.TemporaryDirectory() as folder:
        try:
            files.write_meta(meta, f"{folder}/meta", Modes.for_group(None), used=12.5)
        except UnicodeEncodeError:
            return
        assert files.read_meta(f"{folder}/meta") == meta
        assert os.stat(f"{folder}/meta").st_mtime == 12.5


@pytest.mark.parametrize("wrong", [{"key": 1}, {"size": "1"}, {"digest": None}, {"more": 1}, {"validators": 3}])
def test_a_meta_file_of_other_types_is_none(folder: Path, wrong: dict[str, object]) -> None:
    import json

    said = {"key": "a", "size": 1, "digest": "x", "blocks": 1, "inodes": 3, "fetched": 1.0, "validators": {}}
    (folder / "meta").write_text(json.dumps(said))
    assert files.read_meta(str(folder / "meta")) is not None
    (folder / "meta").write_text(json.dumps({**said, **wrong}))
    assert files.read_meta(str(folder / "meta")) is None


# --- health --------------------------------------------------------------------------------------------------------


def test_trouble_lasts_a_while_and_is_news_once() -> None:
    now = 0.0
    trouble = Trouble(lambda: now)
    assert trouble.report("disk", "broken")
    assert not trouble.report("disk", "broken")
    assert trouble.report("disk", "otherwise broken")
    now = LASTS
    assert trouble.now() == {"disk": "otherwise broken"}
    now = LASTS + 0.1
    assert trouble.now() == {}
    assert trouble.report("disk", "broken")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_shortage_of_the_daemons_is_no_failure_of_the_disk(number: int) -> None:
    text = str(disk.disk_error(OSError(number, os.strerror(number)), "writing"))
    assert errno.errorcode[number] in text
    assert ("disk failed" in text) == (number not in disk.SHORT)


def test_the_layout_keeps_areas_apart(folder: Path) -> None:
    layout = Layout(folder)
    places = [layout.shard("s", "n"), layout.suspect("s", "n"), layout.meta("s", "n"), layout.table("s", "n")]
    assert len(set(places)) == 4
