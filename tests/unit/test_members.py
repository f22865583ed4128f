"""The member table and its reader: names, bytes, views, files, places, and every way in which a table may not fit."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import io
import mmap
import os
import random
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client.member_table import HEADER_SIZE, Header, slots_for
from cachedaemon_client.members import Damaged, MemberReader, StaleTable, Truncated
from tests.contract.archives.running import ODD, index, link, reader, tar_of, zip_of

METHODS = {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}
MEMBERS = {f"{name}/{size}.bin": random.Random(size).randbytes(size) for name in METHODS for size in (0, 1, 5000)}


def mixed_zip() -> bytes:
    """Members of every method, named by it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in MEMBERS.items():
            archive.writestr(zipfile.ZipInfo(name), content, METHODS[name.split("/", 1)[0]])
    return buffer.getvalue()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "shard.zip"
    path.write_bytes(mixed_zip())
    index(path, tmp_path / "table")
    return path


@pytest.fixture
def shard(archive: Path) -> Iterator[MemberReader]:
    with reader(archive, archive.with_name("table")) as found:
        yield found


# ---- names


def test_members_are_a_sequence_of_names_in_archive_order(shard: MemberReader) -> None:
    names = list(MEMBERS)
    assert list(shard.members) == names
    assert len(shard.members) == len(names)
    assert [shard.members[0], shard.members[-1], shard.members[2:5]] == [names[0], names[-1], names[2:5]]
    assert list(reversed(shard.members)) == names[::-1]
    assert [shard.members.index(name) for name in names] == list(range(len(names)))
    assert shard.members.count(names[0]) == 1
    assert random.Random(0).sample(shard.members, 3) == random.Random(0).sample(names, 3)


def test_what_is_no_member(shard: MemberReader) -> None:
    for name in ("missing", "", "\udcff\ud800", 7, None, b"stored/1.bin"):
        assert name not in shard.members
        with pytest.raises(ValueError, match="is not a member"):
            shard.members.index(name)
    with pytest.raises(ValueError, match="is not a member"):
        shard.members.index("stored/0.bin", 1)
    with pytest.raises(IndexError):
        shard.members[len(MEMBERS)]


@pytest.mark.parametrize("way", ["read", "view", "open", "locate", "size"])
def test_an_unknown_member_is_an_error_that_names_it_and_the_shard(
    way: str, shard: MemberReader, archive: Path
) -> None:
    with pytest.raises(KeyError, match=r"no member 'missing' in .*shard\.zip"):
        getattr(shard, way)("missing")
    for number in (len(MEMBERS), -len(MEMBERS) - 1):
        with pytest.raises(IndexError):
            getattr(shard, way)(number)


def test_a_name_with_a_lone_surrogate_is_simply_unknown(shard: MemberReader) -> None:
    with pytest.raises(KeyError):
        shard.read("\ud800")


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 1000])
def test_every_name_is_found_whatever_the_number_of_members(count: int, tmp_path: Path) -> None:
    members = {f"{number:x}": b"%d" % number for number in range(count)}
    (tmp_path / "a.zip").write_bytes(zip_of(members))
    assert index(tmp_path / "a.zip", tmp_path / "table") == count
    with reader(tmp_path / "a.zip", tmp_path / "table") as shard:
        assert {name: shard.read(name) for name in members} == members
        assert not any(f"{number:x}" in shard.members for number in range(count, 2 * count + 2))
    assert slots_for(count) >= 2 * count


# ---- bytes


@pytest.mark.parametrize("name", MEMBERS)
def test_every_way_gives_the_same_bytes(name: str, shard: MemberReader) -> None:
    number, content = list(MEMBERS).index(name), MEMBERS[name]
    for which in (name, number, number - len(MEMBERS)):
        assert shard.read(which) == content
        assert bytes(shard.view(which)) == content
        assert shard.size(which) == len(content)
        with shard.open(which) as file:
            assert file.read() == content


def test_a_place_is_where_the_bytes_are(shard: MemberReader, archive: Path) -> None:
    path, offset, length = shard.locate("stored/5000.bin")
    assert path == archive
    assert archive.read_bytes()[offset : offset + length] == MEMBERS["stored/5000.bin"]


@pytest.mark.parametrize("name", ["deflated/5000.bin", "bzip2/5000.bin", "lzma/5000.bin"])
def test_what_is_compressed_has_no_place(name: str, shard: MemberReader) -> None:
    with pytest.raises(io.UnsupportedOperation, match="compressed"):
        shard.locate(name)


def test_a_sparse_member_is_assembled_and_has_no_place(tmp_path: Path) -> None:
    archive = ODD / "tar_sparse_gnu.tar"
    index(archive, tmp_path / "table")
    with reader(archive, tmp_path / "table") as shard:
        assert len(shard.read("sparse.bin")) == len(shard.view("sparse.bin")) == 8192
        assert shard.open("sparse.bin").read(5) == shard.read("sparse.bin")[:5]
        with pytest.raises(io.UnsupportedOperation, match="sparse"):
            shard.locate("sparse.bin")


@pytest.mark.parametrize("name", ["stored/5000.bin", "deflated/5000.bin"])
def test_a_member_as_a_file_can_be_positioned(name: str, shard: MemberReader) -> None:
    content = MEMBERS[name]
    with shard.open(name) as file:
        assert file.seekable()
        assert file.readable()
        assert not file.writable()
        assert [file.read(10), file.tell()] == [content[:10], 10]
        assert [file.seek(-10, os.SEEK_END), file.read()] == [len(content) - 10, content[-10:]]
        assert [file.seek(3), file.seek(4, os.SEEK_CUR), file.read(2)] == [3, 7, content[7:9]]
        assert [file.seek(10_000), file.read()] == [10_000, b""]
        with pytest.raises(ValueError, match="negative seek"):
            file.seek(-1)


def test_a_member_as_a_file_is_what_zipfile_takes(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({"inner.zip": zip_of({"x": b"content"})}))
    index(tmp_path / "a.zip", tmp_path / "table")
    with reader(tmp_path / "a.zip", tmp_path / "table") as shard, zipfile.ZipFile(shard.open("inner.zip")) as inner:
        assert inner.read("x") == b"content"


def test_many_threads_read_at_once(shard: MemberReader) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(400):
            name = chooser.choice(list(MEMBERS))
            if shard.read(name) != MEMBERS[name] or shard.view(name) != MEMBERS[name]:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- closing


@pytest.mark.parametrize("way", ["read", "view", "open", "locate"])
def test_after_close_nothing_is_read(way: str, archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        shard.close()
        for which in ("stored/1.bin", 1):
            with pytest.raises(ValueError, match="closed"):
                getattr(shard, way)(which)


def test_a_file_ends_with_its_reader(archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        file = shard.open("stored/5000.bin")
    with pytest.raises(ValueError, match="closed"):
        file.read()


@pytest.mark.parametrize("way", ["read", "view", "open"])
def test_a_close_during_a_read_gives_no_other_files_bytes(
    way: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the shard just before the system call, and something else gets a descriptor then."""
    other = archive.with_name("other")
    other.write_bytes(b"?" * archive.stat().st_size)
    fd = os.open(archive, os.O_RDONLY)
    opened: list[int] = []
    shard = MemberReader(fd, archive, archive.with_name("table"))

    def closed_first(call: Callable[..., Any]) -> Callable[..., Any]:
        def after(*given: Any, **named: Any) -> Any:
            if not opened:
                opened.append(-1)
                thread = threading.Thread(target=closing)
                thread.start()
                thread.join()
            return call(*given, **named)

        return after

    def closing() -> None:
        shard.close()
        os.close(fd)
        opened.extend(os.open(other, os.O_RDONLY) for _ in range(4))

    file = shard.open("stored/5000.bin")
    monkeypatch.setattr("cachedaemon_client.members.pread", closed_first(os.pread))
    monkeypatch.setattr("cachedaemon_client.members.os.preadv", closed_first(os.preadv))
    monkeypatch.setattr("cachedaemon_client.members.os.open", closed_first(os.open))
    got = file.read(5000) if way == "open" else bytes(getattr(shard, way)("stored/5000.bin"))
    monkeypatch.undo()
    assert got == MEMBERS["stored/5000.bin"]
    for number in opened[1:]:
        os.close(number)
    with pytest.raises(ValueError, match="closed"):
        shard.read("stored/5000.bin")


def test_names_stay_good_after_close(archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        members = shard.members
    archive.with_name("table").unlink()
    gc.collect()
    assert list(members) == list(MEMBERS)
    assert "stored/1.bin" in members


def test_close_does_not_mind_a_view_and_the_view_stays_good(archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        view = shard.view("stored/5000.bin")
        names = iter(shard.members)
        next(names)
        shard.close()
        shard.close()
    archive.unlink()
    gc.collect()
    assert view == MEMBERS["stored/5000.bin"]
    assert view.readonly


def test_a_view_holds_no_lock(archive: Path) -> None:
    """Ending the lease frees the shard though a view of it is still out."""
    fd, other = os.open(archive, os.O_RDONLY), os.open(archive, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    shard = MemberReader(fd, archive, archive.with_name("table"))
    view = shard.view("stored/5000.bin")
    shard.close()
    os.close(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert view == MEMBERS["stored/5000.bin"]


def test_a_view_is_of_the_leased_file_though_its_path_has_another(archive: Path) -> None:
    """The shard was evicted and fetched again while it was leased."""
    with reader(archive, archive.with_name("table")) as shard:
        archive.rename(archive.with_name("trash"))
        archive.write_bytes(b"another")
        assert shard.view("stored/5000.bin") == MEMBERS["stored/5000.bin"]


def test_no_descriptor_is_left(archive: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with reader(archive, archive.with_name("table")) as shard:
            shard.view("stored/5000.bin").release()
    with pytest.raises(StaleTable), reader(archive, archive):
        pass
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_view_that_cannot_be_made_leaves_no_descriptor(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, and a disk that fails when the two open files are compared."""
    real = os.open

    def without_proc(path: str, flags: int) -> int:
        if path.startswith("/proc"):
            raise FileNotFoundError(path)
        return real(path, flags)

    def failing(*_: int) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with reader(archive, archive.with_name("table")) as shard:
        before = sorted(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr("cachedaemon_client.members.os.open", lambda path, flags: without_proc(str(path), flags))
            patched.setattr("cachedaemon_client.members.os.path.sameopenfile", failing)
            with pytest.raises(OSError, match="Input/output"):
                shard.view("stored/5000.bin")
        assert sorted(os.listdir("/proc/self/fd")) == before


# ---- tables that do not fit


def test_no_table(archive: Path) -> None:
    with pytest.raises(StaleTable, match="cannot be opened"), reader(archive, archive.with_name("missing")):
        pass


@pytest.mark.parametrize("change", ["size", "mtime", "inode"])
def test_a_table_of_another_version_of_the_shard(change: str, archive: Path) -> None:
    seen = archive.stat()
    if change == "size":
        archive.write_bytes(archive.read_bytes() + b"x")
        os.utime(archive, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif change == "mtime":
        os.utime(archive, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    else:
        copy = archive.with_name("copy")
        copy.write_bytes(archive.read_bytes())
        os.utime(copy, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        copy.rename(archive)
    with pytest.raises(StaleTable, match="another version"), reader(archive, archive.with_name("table")):
        pass


def test_every_cut_of_the_table_is_noticed(archive: Path) -> None:
    table = archive.with_name("table")
    data = table.read_bytes()
    for length in range(len(data)):
        table.write_bytes(data[:length])
        with pytest.raises(StaleTable), reader(archive, table):
            pass
    table.write_bytes(data + b"\0")
    with pytest.raises(StaleTable), reader(archive, table):
        pass


def test_every_flip_in_the_header_is_noticed(archive: Path) -> None:
    table = archive.with_name("table")
    data = table.read_bytes()
    used = len(Header.unpack(data).pack().rstrip(b"\0"))
    for at in range(used):
        table.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StaleTable), reader(archive, table):
            pass


@pytest.mark.parametrize("bits", [0x80, 0xFF])
def test_every_flip_behind_the_header_is_noticed(bits: int, archive: Path) -> None:
    """A wrong offset would give another member's bytes without a word."""
    table = archive.with_name("table")
    data = table.read_bytes()
    for at in range(HEADER_SIZE, len(data)):
        table.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
        with pytest.raises(StaleTable, match="CRC"), reader(archive, table):
            pass
    table.write_bytes(data)
    with reader(archive, table) as shard:
        assert shard.read("stored/5000.bin") == MEMBERS["stored/5000.bin"]


def sealed(table: bytes) -> bytes:
    """The same table with the CRC that its content has."""
    return Header.unpack(table)._replace(crc=zlib.crc32(table[HEADER_SIZE:])).pack() + table[HEADER_SIZE:]


@pytest.mark.parametrize("bits", [0x80, pytest.param(0xFF, marks=pytest.mark.slow)])
def test_what_a_table_says_never_reaches_beyond_shard_or_table(bits: int, archive: Path) -> None:
    """Only errors of the documented kinds come out, whoever wrote the table."""
    table = archive.with_name("table")
    data = table.read_bytes()
    for at in range(HEADER_SIZE, len(data)):
        table.write_bytes(sealed(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]))
        with reader(archive, table) as shard:
            for number, name in enumerate(MEMBERS):
                for way, which in ((shard.read, name), (shard.view, number)):
                    with contextlib.suppress(StaleTable, Damaged, Truncated, KeyError, io.UnsupportedOperation):
                        way(which)


def test_a_large_table_is_mapped_and_its_crc_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({f"{number:0200x}": b"%d" % number for number in range(1500)}))
    index(tmp_path / "a.zip", tmp_path / "table")
    checked: dict[tuple[int, ...], None] = {}
    monkeypatch.setattr("cachedaemon_client.member_table._checked", checked)
    for _ in range(2):
        with reader(tmp_path / "a.zip", tmp_path / "table") as shard:
            assert isinstance(shard.members._table.map, mmap.mmap)
            assert shard.read(f"{77:0200x}") == b"77"
        assert len(checked) == 1
    data = bytearray((tmp_path / "table").read_bytes())
    data[HEADER_SIZE] ^= 1
    with (tmp_path / "table").open("r+b") as file:  # in place: the file stays the same, its times do not
        file.write(data)
    with pytest.raises(StaleTable, match="CRC"), reader(tmp_path / "a.zip", tmp_path / "table"):
        pass


def test_a_small_table_that_is_cut_while_it_is_open_ends_nobody(archive: Path) -> None:
    """Were it mapped, the process would die by SIGBUS."""
    with reader(archive, archive.with_name("table")) as shard:
        os.truncate(archive.with_name("table"), 0)
        assert shard.read("stored/5000.bin") == MEMBERS["stored/5000.bin"]


@pytest.mark.parametrize("kind", ["fifo", "folder", "empty"])
def test_what_is_no_table_file_stops_nobody(kind: str, archive: Path) -> None:
    place = archive.with_name("other")
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.touch()
    with pytest.raises(StaleTable), reader(archive, place):
        pass


# ---- shards that do not fit any more


@pytest.mark.parametrize("way", ["read", "view", "open"])
def test_a_shard_that_was_truncated_behind_our_back(way: str, archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        os.truncate(archive, 10)
        for which in ("stored/5000.bin", list(MEMBERS).index("stored/5000.bin")):
            with pytest.raises(Truncated, match="shard"):
                io.BytesIO(getattr(shard, way)(which)) if way != "open" else shard.open(which).read()


def test_a_compressed_member_that_changed_behind_our_back(archive: Path) -> None:
    with reader(archive, archive.with_name("table")) as shard:
        with archive.open("r+b") as file:
            file.write(bytes(archive.stat().st_size))
        for name in ("deflated/5000.bin", "bzip2/5000.bin", "lzma/5000.bin"):
            with pytest.raises(Damaged, match=name):
                shard.read(name)


def test_links_and_their_target_share_a_place(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(("d/f", b"content"), link("l", "d/f")))
    index(tmp_path / "a.tar", tmp_path / "table")
    with reader(tmp_path / "a.tar", tmp_path / "table") as shard:
        assert shard.locate("l") == shard.locate("d/f")


def test_reading_needs_the_standard_library_alone(archive: Path) -> None:
    """In an interpreter without site-packages, bz2 and lzma not even loaded."""
    client = Path(__file__).parents[2] / "client"
    code = f"""
import os, sys
sys.path.insert(0, {str(client)!r})
from cachedaemon_client.members import MemberReader
shard = MemberReader(os.open({str(archive)!r}, os.O_RDONLY), {str(archive)!r}, {str(archive.with_name("table"))!r})
print(len(shard.read("stored/5000.bin")), len(shard.read("deflated/5000.bin")), "lzma" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5000", "5000", "False"]
