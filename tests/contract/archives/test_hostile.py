"""Kinds of trouble beyond the odd archives: each refused with its reason, or read right, by both ways of reading."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from cachedaemon.archives import kind_of
from cachedaemon.archives.catalog import Bounds
from cachedaemon.errors import BadArchive
from tests.contract.archives.running import files, index, link, reader, refusal, tar_of, unpack, zip_of


def info(name: str, form: bytes) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = form
    return made


def zip_with(name: str, mode: int, content: bytes = b"") -> bytes:
    """A zip of one member with a Unix mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = zipfile.ZipInfo(name)
        member.create_system, member.external_attr = 3, mode << 16
        archive.writestr(member, content)
    return buffer.getvalue()


def pax(name: str, **headers: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.pax_headers = headers
    return made


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in data
    return data.replace(old, new)


FILE = ("a.bin", b"a" * 700)
PLAIN = zip_of({"a.bin": b"a" * 700, "b.bin": b"b" * 900})
LONG = "s" * 255

REFUSED: dict[str, tuple[str, bytes]] = {
    # names
    "absolute.zip": ("path-escape", zip_of({"/etc/passwd": b"x"})),
    "absolute.tar": ("path-escape", tar_of(("/etc/passwd", b"x"))),
    "drive.zip": ("path-escape", zip_of({"C:evil.txt": b"x"})),
    "drive_backslash.zip": ("path-escape", zip_of({"C:\\evil.txt": b"x"})),
    "drive.tar": ("path-escape", tar_of(("C:/evil.txt", b"x"))),
    "dotdot_inside.zip": ("path-escape", zip_of({"a/../b": b"x"})),
    "dotdot_backslash.zip": ("path-escape", zip_of({"a\\..\\..\\b": b"x"})),
    "dotdot_inside.tar": ("path-escape", tar_of(("a/../b", b"x"))),
    "nul.zip": ("bad-name", patched(zip_of({"aXb": b"x"}), b"aXb", b"a\0b")),
    "nul_in_pax.tar": ("bad-name", patched(tar_of((f"{'d' * 99}/X", b"x")), b"d/X\n", b"d/\0\n")),
    "empty.zip": ("bad-name", zip_of({"": b"x"})),
    "long_segment.tar": ("bad-name", tar_of((LONG + "x", b"x"))),
    "long_path.tar": ("bad-name", tar_of(("/".join([LONG] * 17), b"x"))),
    "deep.tar": ("bad-name", tar_of(("d/" * 300 + "f", b"x"))),
    "bad_utf8.zip": ("bad-name", patched(zip_of({"é.bin": b"x"}), "é.bin".encode(), b"\xc3\xff.bin")),
    # conflicts
    "twice.tar": ("name-conflict", tar_of(FILE, FILE)),
    "twice_by_dot.tar": ("name-conflict", tar_of(FILE, ("./a.bin", b"x"))),
    "file_below_file.tar": ("name-conflict", tar_of(("a", b"x"), ("a/b", b"x"))),
    "file_over_folder.tar": ("name-conflict", tar_of(("a/b", b"x"), ("a", b"x"))),
    "folder_over_file.tar": ("name-conflict", tar_of(("a", b"x"), info("a", tarfile.DIRTYPE))),
    # links
    "link_out.tar": ("link-escape", tar_of(link("l", "../x"))),
    "link_absolute.tar": ("link-escape", tar_of(link("l", "/etc/passwd"))),
    "link_chain_out.tar": ("link-escape", tar_of(link("a", "b"), link("b", "d/.."), link("d", "e/.."), FILE)),
    "link_by_folder_out.tar": ("link-escape", tar_of(("d/e/f", b"x"), link("up", "d/e"), link("l", "up/../../../x"))),
    "link_loop.tar": ("link-escape", tar_of(link("a", "b"), link("b", "a"))),
    "link_to_itself.tar": ("link-escape", tar_of(link("a", "a"))),
    "below_inner_link.tar": ("link-escape", tar_of(("d/f", b"x"), link("l", "d"), ("l/g", b"x"))),
    "link_out.zip": ("link-escape", zip_with("l", 0o120777, b"../../x")),
    "link_empty.zip": ("bad-name", zip_with("l", 0o120777)),
    "hard_missing.tar": ("corrupt", tar_of(link("h", "missing", hard=True))),
    "hard_later.tar": ("corrupt", tar_of(link("h", "a.bin", hard=True), FILE)),
    "hard_out.tar": ("link-escape", tar_of(FILE, link("h", "../a.bin", hard=True))),
    "hard_absolute.tar": ("link-escape", tar_of(FILE, link("h", "/etc/shadow", hard=True))),
    "hard_to_folder.tar": ("corrupt", tar_of(("d/f", b"x"), link("h", "d", hard=True))),
    # kinds
    "fifo.tar": ("special-file", tar_of(info("p", tarfile.FIFOTYPE))),
    "block.tar": ("special-file", tar_of(info("p", tarfile.BLKTYPE))),
    "fifo.zip": ("special-file", zip_with("p", 0o010644)),
    "socket.zip": ("special-file", zip_with("p", 0o140644)),
    "unknown_type.tar": ("unsupported", tar_of(info("p", b"M"))),
    # zip framing
    "junk_behind.zip": ("corrupt", PLAIN + b"junk"),
    "method.zip": ("unsupported", patched(PLAIN, PLAIN[8:10] + PLAIN[10:14], b"\x61\0" + PLAIN[10:14])),
    # tar framing
    "junk_behind.tar": ("corrupt", tar_of(FILE) + b"junk"),
    "two_tars.tar": ("corrupt", tar_of(FILE) + tar_of(("b.bin", b"b"))),
    "no_end.tar": ("truncated", tar_of(FILE)[:1536]),
    "bad_checksum.tar": ("corrupt", patched(tar_of(FILE, ("b.bin", b"b")), b"b.bin", b"c.bin")),
    "empty_file.tar": ("not-an-archive", b""),
    "empty_file.zip": ("not-an-archive", b""),
    "pax_bad_size.tar": ("corrupt", tar_of(pax("a", size="12x"))),
    "pax_negative_size.tar": ("corrupt", tar_of(pax("a", size="-5"))),
    "pax_huge_size.tar": ("corrupt", tar_of(pax("a", size="9" * 30))),
    "pax_past_end.tar": ("truncated", tar_of(pax("a", size="99999999"))),
    "pax_map_out.tar": ("corrupt", tar_of(pax("a", **{"GNU.sparse.map": "0,99", "GNU.sparse.size": "50"}))),
    "pax_map_odd.tar": ("corrupt", tar_of(pax("a", **{"GNU.sparse.map": "0,1,2", "GNU.sparse.size": "50"}))),
}


def nested_tail() -> bytes:
    """A zip cut right behind a stored inner zip: its end record ends the file, and is not this archive's."""
    inner = zip_of({"wrong.bin": b"w" * 50})
    whole = zip_of({"first.bin": b"f" * 50, "inner.zip": inner})
    return whole[: whole.index(inner) + len(inner)]


REFUSED["nested_tail.zip"] = ("truncated", nested_tail())


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    reason, data = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    assert refusal(tmp_path / name, tmp_path) == (reason, reason)


def overlapping() -> bytes:
    """The second member's central entry points into the first one's data, where a whole local entry lies."""
    inner = zip_of({"b.bin": b"b" * 100})
    local = inner[: inner.index(b"PK\1\2")]
    outer = zip_of({"a.bin": local})
    central, end = outer.index(b"PK\1\2"), outer.rindex(b"PK\5\6")
    start = inner.index(b"PK\1\2")
    record = bytearray(inner[start : inner.rindex(b"PK\5\6")])
    struct.pack_into("<L", record, 42, outer.index(local))
    directory = outer[central:end] + bytes(record)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(directory), central, 0)
    return outer[:central] + directory + tail


def test_members_that_share_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(overlapping())
    assert refusal(tmp_path / "a.zip", tmp_path) == ("overlap", "overlap")


@pytest.mark.parametrize("declared", [699, 701, 0])
def test_a_deflated_member_of_another_size_than_declared(declared: int, tmp_path: Path) -> None:
    """Both headers agree on a size that the data does not have."""
    data = zip_of({"a.bin": b"a" * 700}, zipfile.ZIP_DEFLATED)
    (tmp_path / "a.zip").write_bytes(data.replace(struct.pack("<L", 700), struct.pack("<L", declared)))
    assert refusal(tmp_path / "a.zip", tmp_path) == ("corrupt", "corrupt")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_bomb_inflates_no_further_than_declared(method: int, tmp_path: Path) -> None:
    """64 MiB declared as 700 bytes: refused, and nothing of that size is ever written."""
    size = 64 << 20
    data = zip_of({"a.bin": bytes(size)}, method)
    (tmp_path / "a.zip").write_bytes(data.replace(struct.pack("<L", size), struct.pack("<L", 700)))
    assert refusal(tmp_path / "a.zip", tmp_path) == ("corrupt", "corrupt")
    assert sum(path.stat().st_size for path in (tmp_path / "folder").rglob("*") if path.is_file()) <= 700


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.zst"])
@pytest.mark.parametrize("bounds", [Bounds(2, 1 << 30), Bounds(100, 2999)])
def test_limits_hold(name: str, bounds: Bounds, tmp_path: Path) -> None:
    members = [(f"{number}.bin", b"x" * 1000) for number in range(3)]
    (tmp_path / name).write_bytes(packed(name, members))
    with pytest.raises(BadArchive, match=r"allowed|more than") as refused:
        unpack(tmp_path / name, tmp_path / "folder", bounds=bounds)
    assert refused.value.reason == "limit"


def packed(name: str, members: list[tuple[str, bytes]]) -> bytes:
    """An archive of the kind that the name says."""
    if kind_of(name) == "zip":
        return zip_of(dict(members))
    tar = tar_of(*members)
    return {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress}[str(kind_of(name))](tar)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.zst"])
def test_a_tail_of_zeros_without_end_is_limited(name: str, tmp_path: Path) -> None:
    """The bomb lies behind the archive's end mark, where no member declares it."""
    tar = tar_of(FILE) + bytes(64 << 20)
    compress = gzip.compress if name.endswith("gz") else zstandard.compress
    (tmp_path / name).write_bytes(compress(tar))
    with pytest.raises(BadArchive) as refused:
        unpack(tmp_path / name, tmp_path / "folder", bounds=Bounds(10, 1 << 20))
    assert refused.value.reason == "limit"


def test_many_folders_implied_by_few_members_are_limited(tmp_path: Path) -> None:
    members = [(f"{number}/" + "d/" * 150 + "f", b"") for number in range(5)]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    assert refusal(tmp_path / "a.tar", tmp_path, bounds=Bounds(100, 1 << 20)) == ("limit", "limit")


TWO = [("a.bin", b"a" * 700), ("sub/b.bin", b"b" * 900)]
TAR = tar_of(*TWO)
GZIP, ZSTD = gzip.compress(TAR), zstandard.compress(TAR)
FRAMES = zstandard.compress(TAR[:600]) + b"\x50\x2a\x4d\x18\4\0\0\0skip" + zstandard.compress(TAR[600:])
ACCEPTED = {
    "prefix.zip": b"#!/bin/sh\nexit\n" + zip_of(dict(TWO)),
    "comment.zip": zip_of(dict(TWO))[:-2] + b"\5\0hello",
    "dots.tar": tar_of(info("./", tarfile.DIRTYPE), ("./a.bin", TWO[0][1]), ("sub//./b.bin", TWO[1][1])),
    "ustar.tar": tar_of(*TWO, form=tarfile.USTAR_FORMAT),
    "gnu.tar": tar_of(*TWO, form=tarfile.GNU_FORMAT),
    "folder_twice.tar": tar_of(info("sub", tarfile.DIRTYPE), *TWO, info("sub", tarfile.DIRTYPE)),
    "long_padding.tar": TAR + bytes(50_000),
    "members.tar.gz": gzip.compress(TAR[:10]) + gzip.compress(b"") + gzip.compress(TAR[10:]),
    "padded.tgz": GZIP + bytes(1000),
    "plain.tar.zst": TAR,
    "frames.tar.zst": FRAMES,
    "checked.TZST": zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(TAR),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_read_right(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(ACCEPTED[name])
    unpack(tmp_path / name, tmp_path / "folder")
    assert files(tmp_path / "folder") == dict(TWO)
    if kind_of(name) in ("zip", "tar"):
        index(tmp_path / name, tmp_path / "table")
        with reader(tmp_path / name, tmp_path / "table") as shard:
            assert {member: shard.read(member) for member in shard.members} == dict(TWO)


@pytest.mark.parametrize("data", [GZIP, ZSTD, FRAMES, ACCEPTED["checked.TZST"]], ids=["gz", "zst", "frames", "sum"])
def test_junk_behind_a_compressed_stream_is_refused(data: bytes, tmp_path: Path) -> None:
    name = "a.tar.gz" if data is GZIP else "a.tar.zst"
    (tmp_path / name).write_bytes(data + b"junk")
    with pytest.raises(BadArchive) as refused:
        unpack(tmp_path / name, tmp_path / "folder")
    assert refused.value.reason == "corrupt"


def test_a_long_name_of_gnu_and_one_that_is_not_utf8(tmp_path: Path) -> None:
    names = ["n" * 200, "l/" + "m" * 150, "latin-\udce9.bin"]
    (tmp_path / "a.tar").write_bytes(tar_of(*((name, name.encode("utf-8", "replace")) for name in names), form=1))
    index(tmp_path / "a.tar", tmp_path / "table")
    with reader(tmp_path / "a.tar", tmp_path / "table") as shard:
        assert list(shard.members) == names
        assert shard.read(names[2]) == names[2].encode("utf-8", "replace")
    unpack(tmp_path / "a.tar", tmp_path / "folder")
    assert set(files(tmp_path / "folder")) == set(names)


def test_links_within_the_archive_are_members_too(tmp_path: Path) -> None:
    """A link to a folder or to nothing is harmless, and no member."""
    entries = [("d/f", b"content"), link("l", "d/f"), link("d/up", "../l"), link("h", "d/f", hard=True)]
    data = tar_of(*entries, link("folder", "d"), link("nothing", "d/missing"), link("via", "folder/f"))
    (tmp_path / "a.tar").write_bytes(data)
    index(tmp_path / "a.tar", tmp_path / "table")
    with reader(tmp_path / "a.tar", tmp_path / "table") as shard:
        assert {name: shard.read(name) for name in shard.members} == dict.fromkeys(
            ["d/f", "l", "d/up", "h", "via"], b"content"
        )


WALKS = (
    "nodir/../a",
    "a/../a",
    "a/.",
    "a/",
    "d/f/..",
    "d/f/../f",
    "nodir/../l/f",
    "to_a/",
    "to_a/../a",
    "to_d/nodir/../f",
)
RIGHT_WALKS = ("a", "./a", "d/../a", "d/./f", "d//f", "to_d/f", "to_d/../a", "to_d/./f", "to_d//f", "to_a")


def test_a_link_that_walks_through_what_is_no_folder_is_no_member(tmp_path: Path) -> None:
    """Read in place as unpacked, where the kernel walks."""
    links = {f"l{number}": target for number, target in enumerate((*WALKS, *RIGHT_WALKS))}
    base = (("a", b"A"), ("d/f", b"F"), link("to_a", "a"), link("to_d", "d"))
    (tmp_path / "a.tar").write_bytes(tar_of(*base, *(link(*one) for one in links.items())))
    index(tmp_path / "a.tar", tmp_path / "table")
    unpack(tmp_path / "a.tar", tmp_path / "folder")
    with reader(tmp_path / "a.tar", tmp_path / "table") as shard:
        walked = {name: tmp_path / "folder" / name for name in ("a", "d/f", "to_a", "to_d", *links)}
        there = {name: path.read_bytes() for name, path in walked.items() if path.is_file()}
        assert {name: shard.read(name) for name in shard.members} == there
        assert {links[name] for name in links if name in shard.members} == set(RIGHT_WALKS)


@pytest.mark.parametrize("target", ["nodir/../../a", "a/../../x"])
def test_a_link_to_nothing_that_leads_out_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(("a", b"A"), link("l", target)))
    assert refusal(tmp_path / "a.tar", tmp_path) == ("link-escape", "link-escape")


def test_a_link_in_a_zip_is_a_link(tmp_path: Path) -> None:
    buffer = io.BytesIO(zip_with("l", 0o120777, b"a.bin"))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("a.bin", b"content")
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())
    index(tmp_path / "a.zip", tmp_path / "table")
    with reader(tmp_path / "a.zip", tmp_path / "table") as shard:
        assert shard.read("l") == b"content"
    unpack(tmp_path / "a.zip", tmp_path / "folder")
    assert (tmp_path / "folder/l").is_symlink()


def test_names_made_to_collide_are_refused(tmp_path: Path) -> None:
    """CRC-32 is linear: swapping blocks of equal CRC gives as many names of one CRC as one likes."""
    names = colliding(12)
    (tmp_path / "a.tar").write_bytes(tar_of(*((name, b"") for name in names), form=tarfile.USTAR_FORMAT))
    with pytest.raises(BadArchive) as refused:
        index(tmp_path / "a.tar", tmp_path / "table")
    assert refused.value.reason == "limit"


def colliding(bits: int) -> list[str]:
    """2**bits names of one CRC-32, each made of blocks from pairs that leave the same CRC behind."""
    import itertools
    import random
    import zlib

    chooser, pairs, state = random.Random(0), [], 0
    for _ in range(bits):
        seen: dict[int, bytes] = {}
        while True:
            block = chooser.randbytes(4).hex().encode()
            after = zlib.crc32(block, state)
            if seen.setdefault(after, block) != block:
                pairs.append((seen[after].decode(), block.decode()))
                state = after
                break
    return ["".join(blocks) for blocks in itertools.product(*pairs)]
