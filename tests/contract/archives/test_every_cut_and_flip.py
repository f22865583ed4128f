"""Generated archives, every place to cut one and every byte to flip: right bytes or a refusal, nothing else."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon.archives.tree import tree_digest
from cachedaemon.errors import BadArchive
from tests.contract.archives.running import files, index, reader, tar_of, unpack, zip_of

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
SEGMENT = st.text(st.characters(codec="utf-8", exclude_characters="\0/\\:", exclude_categories=["Cs"]), min_size=1)
NAME = st.lists(
    SEGMENT.filter(lambda text: text not in (".", "..") and len(text.encode()) < 256), min_size=1, max_size=3
)
SMALL = {"a.bin": bytes(range(200)), "sub/b.txt": b"text " * 40, "c": b""}


def consistent(names: list[str]) -> bool:
    """No member lies below another."""
    return not any(name.startswith(f"{other}/") for name in names for other in names)


MEMBERS = st.dictionaries(NAME.map("/".join), st.binary(max_size=3000), max_size=6).filter(
    lambda members: consistent(list(members))
)


@contextmanager
def place(name: str, data: bytes) -> Iterator[Path]:
    """A file in a folder of its own, since hypothesis runs a test many times."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        yield Path(folder) / name


def check_read(archive: Path, members: dict[str, bytes]) -> None:
    table = archive.with_name("table")
    assert index(archive, table) == len(members)
    with reader(archive, table) as shard:
        assert list(shard.members) == list(members)
        assert [shard.read(name) for name in members] == list(members.values())
        assert [bytes(shard.view(number)) for number in range(len(members))] == list(members.values())


def check_unpacked(archive: Path, members: dict[str, bytes]) -> None:
    folder = archive.with_name("folder")
    result, _ = unpack(archive, folder)
    assert files(folder) == members
    assert result["size"] == sum(map(len, members.values()))
    assert result["digest"] == tree_digest(folder)


@settings(max_examples=60)
@given(members=MEMBERS, methods=st.lists(st.sampled_from(METHODS), min_size=6, max_size=6), streamed=st.booleans())
def test_any_zip_is_read_right(members: dict[str, bytes], methods: list[int], streamed: bool) -> None:  # noqa: FBT001
    buffer = io.BytesIO()
    if streamed:  # sizes behind the data
        buffer.seekable = lambda: False  # type: ignore[method-assign]
    with zipfile.ZipFile(buffer, "w") as archive:
        for (name, content), method in zip(members.items(), methods, strict=False):
            archive.writestr(zipfile.ZipInfo(name), content, method)
    with place("a.zip", buffer.getvalue()) as path:
        check_read(path, members)
        check_unpacked(path, members)


@settings(max_examples=60)
@given(members=MEMBERS, form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_any_tar_is_read_right(members: dict[str, bytes], form: int) -> None:
    data = tar_of(*members.items(), form=form)
    with place("a.tar", data) as path:
        check_read(path, members)
    for name, packed in (("a.tar", data), ("a.tgz", gzip.compress(data)), ("a.tzst", zstandard.compress(data))):
        with place(name, packed) as path:
            check_unpacked(path, members)


@settings(max_examples=150)
@given(
    data=st.binary(max_size=2000), start=st.sampled_from([b"", b"PK\3\4", b"PK\5\6", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
)
def test_junk_is_refused(data: bytes, start: bytes) -> None:
    for name in ("a.zip", "a.tar", "a.tar.gz", "a.tar.zst"):
        with place(name, start + data) as path:
            reasons(path, {})


def reasons(path: Path, members: dict[str, bytes]) -> list[str]:
    """Read in every way that the kind has; what is not refused has to be right as far as it goes."""
    found = []
    for check in [index_right, unpack_right] if path.suffix in (".zip", ".tar") else [unpack_right]:
        try:
            check(path, members)
        except BadArchive as error:
            found.append(error.reason)
    return found


def index_right(path: Path, members: dict[str, bytes]) -> None:
    index(path, path.with_name("table"))
    with reader(path, path.with_name("table")) as shard:
        for name in shard.members:
            assert shard.read(name) in members.values()


def unpack_right(path: Path, members: dict[str, bytes]) -> None:
    folder = path.with_name("folder")
    unpack(path, folder)
    for found in folder.rglob("*"):
        if found.is_file():
            assert found.read_bytes() in members.values()


PACKED = {
    "stored.zip": zip_of(SMALL),
    "deflated.zip": zip_of(SMALL, zipfile.ZIP_DEFLATED),
    "a.tar.gz": gzip.compress(tar_of(*SMALL.items(), form=tarfile.USTAR_FORMAT)),
    "a.tar.zst": zstandard.ZstdCompressor(write_checksum=True).compress(tar_of(*SMALL.items())),
    "a.tar": tar_of(*SMALL.items(), form=tarfile.USTAR_FORMAT).rstrip(b"\0") + bytes(1024),
}


@pytest.mark.parametrize("name", PACKED)
def test_every_cut_is_refused(name: str) -> None:
    """Cut anywhere, an archive is never taken for a whole one. A tar may lack half of its end mark."""
    data = PACKED[name]
    step = 1 if len(data) < 1200 else 7
    whole = len(data) - 512 if name == "a.tar" else len(data)
    for length in range(0, whole, step):
        with place(name, data[:length]) as path:
            found = reasons(path, {})
            assert len(found) == (1 if name.startswith("a.tar.") else 2), length
            assert set(found) <= {"truncated", "corrupt", "not-an-archive"}, length


@pytest.mark.parametrize("name", [name for name in PACKED if name != "a.tar"])
@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_no_flipped_byte_gives_wrong_bytes(name: str, bits: int) -> None:
    data = PACKED[name]
    for at in range(len(data)):
        with place(name, data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]) as path:
            reasons(path, SMALL)


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_no_flipped_byte_of_a_tar_header_passes(bits: int) -> None:
    """A tar has checksums for its headers only; bytes 154 and 155 end the checksum's own field."""
    data = PACKED["a.tar"]
    for at in range(512):
        with place("a.tar", data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]) as path:
            found = reasons(path, SMALL)
            assert len(found) == 2 or at in (154, 155), at


@settings(max_examples=200)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["stored.zip", "deflated.zip"])
def test_no_patched_bytes_give_wrong_ones(name: str, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(PACKED[name])
    for at, patch in changes:
        start = at % len(data)
        data[start : start + len(patch)] = patch
    with place(name, bytes(data)) as path:
        reasons(path, SMALL)
