"""Zip archives: central directory, every local header, and that nothing in the file is claimed twice.

APPNOTE.TXT 6.3.10 is the format. The end record has to end the file: a zip that lies stored inside another one, which
was cut just behind it, would be taken for the whole otherwise.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from cachedaemon.archives.catalog import FILE, FOLDER, SYMLINK, Bounds, Catalog, Entry
from cachedaemon.archives.data import pieces, read_exactly
from cachedaemon.archives.names import PATH_MOST, bad, clean
from cachedaemon_client.inflate import BZIP2, DEFLATED, LZMA, STORED

_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END_SIGN, _END64_SIGN, _PLACE_SIGN = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_CENTRAL_SIGN, _LOCAL_SIGN, _DESCRIPTOR_SIGN = b"PK\1\2", b"PK\3\4", b"PK\7\x08"

_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _PATCHED, _STRONG, _UTF8, _MASKED = 1, 8, 32, 64, 0x800, 0x2000
_UNIX = (3, 19)  # "version made by" of systems whose external attributes hold a mode
_ZIP64_EXTRA, _UNICODE_PATH_EXTRA, _AES_METHOD = 0x0001, 0x7075, 99
_DRIVE = re.compile(rb"[A-Za-z]:")
_CENTRAL_MOST = 64 << 20  # bytes of a central directory, and 512 more for each member allowed


class _Directory(NamedTuple):
    """Where the central directory lies; `shift` is how far the archive begins behind the file's first byte."""

    offset: int
    size: int
    entries: int
    shift: int


class _Record(NamedTuple):
    """One central directory entry, numbers widened."""

    raw: bytes
    name: bytes
    flags: int
    method: int
    crc: int
    stored: int
    size: int
    header: int
    mode: int


def scan(fd: int, bounds: Bounds) -> Catalog:
    """Everything in the archive, checked but for the content of files; raises BadArchive."""
    length = os.fstat(fd).st_size
    directory = _find_directory(fd, length)
    if directory.entries > bounds.members:
        raise bad("limit", None, f"the archive has {directory.entries} members, allowed are {bounds.members}")
    if directory.size > _CENTRAL_MOST + 512 * bounds.members:
        raise bad("limit", None, f"the central directory has {directory.size} bytes")
    records = list(_records(read_exactly(fd, directory.offset, directory.size, None), directory))
    _check_headers_apart(records)
    catalog = Catalog(bounds)
    spans = [_add(fd, catalog, record, directory) for record in records]
    _check_spans_apart(spans, records)
    catalog.finish()
    return catalog


def _find_directory(fd: int, length: int) -> _Directory:
    start = max(0, length - _END.size - _MAX16)
    tail = read_exactly(fd, start, length - start, None)
    at = tail.rfind(_END_SIGN)
    while at >= 0:
        if len(tail) - at >= _END.size and at + _END.size + _END.unpack_from(tail, at)[7] == len(tail):
            return _read_end(fd, start + at, _END.unpack_from(tail, at))
        at = tail.rfind(_END_SIGN, 0, at)
    raise _no_end(fd, tail)


def _no_end(fd: int, tail: bytes) -> Exception:
    at = tail.rfind(_END_SIGN)
    if 0 <= at <= len(tail) - _END.size and at + _END.size + _END.unpack_from(tail, at)[7] < len(tail):
        return bad("corrupt", None, "there are bytes behind the archive's end record")
    if os.pread(fd, 4, 0) in (_LOCAL_SIGN, _END_SIGN, _PLACE_SIGN, _END64_SIGN):
        return bad("truncated", None, "the archive has no end record")
    return bad("not-an-archive", None, "not a zip archive: neither its first bytes nor an end record say so")


def _read_end(fd: int, at: int, end: tuple[int, ...]) -> _Directory:
    _, disk, first_disk, here, count, size, offset, _ = end
    wide = _read_end64(fd, at)
    if wide is not None:
        _check_ends_agree((disk, first_disk, here, count, size, offset), wide[1:])
        at, disk, first_disk, here, count, size, offset = wide
    elif _MAX32 in (size, offset) or count == _MAX16:
        raise bad("corrupt", None, "the zip64 end record is missing")
    if disk or first_disk or here != count:
        raise bad("unsupported", None, "the archive is split over several files")
    shift = at - size - offset
    if shift < 0:
        raise bad("corrupt", None, "the end record does not fit the file")
    if shift and os.pread(fd, 4, 0) == _LOCAL_SIGN:
        raise bad("truncated", None, "the end record belongs to an archive inside this one")
    return _Directory(at - size, size, count, shift)


def _check_ends_agree(narrow: tuple[int, ...], wide: tuple[int, ...]) -> None:
    """The old end record has the same numbers, or all ones where they do not fit."""
    for most, old, new in zip((_MAX16,) * 4 + (_MAX32,) * 2, narrow, wide, strict=True):
        if old not in (most, new):
            raise bad("corrupt", None, "the two end records disagree")


def _read_end64(fd: int, at: int) -> tuple[int, ...] | None:
    """Place, disks, counts, size and offset as the zip64 end record has them; None where there is none."""
    place = os.pread(fd, _END64_PLACE.size, at - _END64_PLACE.size) if at >= _END64_PLACE.size else b""
    if len(place) < _END64_PLACE.size or not place.startswith(_PLACE_SIGN):
        return None
    _, disk, offset, disks = _END64_PLACE.unpack(place)
    if disk or disks > 1:
        raise bad("unsupported", None, "the archive is split over several files")
    before = at - _END64_PLACE.size - _END64.size
    # Bytes in front of the archive shift everything; the record itself lies right before its locator then.
    for where in (offset, before):
        data = os.pread(fd, _END64.size, where) if 0 <= where <= before else b""
        if len(data) == _END64.size and data.startswith(_END64_SIGN):
            _, length, _, _, disk, first_disk, here, count, size, start = _END64.unpack(data)
            if where + length + 12 == at - _END64_PLACE.size:
                return where, disk, first_disk, here, count, size, start
    raise bad("corrupt", None, "the zip64 end record is not where its locator says")


def _records(data: bytes, directory: _Directory) -> Iterator[_Record]:
    at = 0
    for _ in range(directory.entries):
        if len(data) - at < _CENTRAL.size or data[at : at + 4] != _CENTRAL_SIGN:
            raise bad("corrupt", None, "the central directory is damaged")
        fields = _CENTRAL.unpack_from(data, at)
        name_length, extra_length, comment_length = fields[10:13]
        at += _CENTRAL.size
        end = at + name_length + extra_length + comment_length
        if end > len(data):
            raise bad("corrupt", None, "the central directory is damaged")
        raw = data[at : at + name_length]
        yield _record(fields, raw, data[at + name_length : end - comment_length], directory.shift)
        at = end
    if at != len(data):
        raise bad("corrupt", None, "the central directory has more entries than the end record says")


def _record(fields: tuple[int, ...], raw: bytes, extra_data: bytes, shift: int) -> _Record:
    made_by, flags, method, crc, stored, size = fields[1], fields[3], fields[4], fields[7], fields[8], fields[9]
    header, mode = fields[16], fields[15] >> 16 if made_by >> 8 in _UNIX else 0
    extra = _extra(extra_data, raw) if extra_data else {}
    if _MAX32 in (stored, size, header):
        size, stored, header = _widened(extra.get(_ZIP64_EXTRA, b""), (size, stored, header), raw)
    return _Record(raw, _name(raw, flags, extra), flags, method, crc, stored, size, header + shift, mode)


def _extra(data: bytes, raw: bytes) -> dict[int, bytes]:
    """Extra fields by id; padding of fewer than 4 bytes is common and harmless."""
    fields: dict[int, bytes] = {}
    at = 0
    while len(data) - at >= 4:
        kind, length = struct.unpack_from("<2H", data, at)
        if at + 4 + length > len(data):
            if any(data[at:]):
                raise bad("corrupt", raw, "an extra field is longer than its place")
            break
        fields.setdefault(kind, data[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def _widened(extra: bytes, narrow: tuple[int, ...], raw: bytes) -> list[int]:
    """Numbers that did not fit 32 bits, from the zip64 field, in its order."""
    numbers, at = [], 0
    for number in narrow:
        if number == _MAX32:
            if len(extra) - at < 8:
                raise bad("corrupt", raw, "its zip64 field is too short")
            number = int.from_bytes(extra[at : at + 8], "little")  # noqa: PLW2901
            at += 8
        numbers.append(number)
    return numbers


def _name(raw: bytes, flags: int, extra: dict[int, bytes]) -> bytes:
    """The name in UTF-8, with the separators of Windows made plain ones (APPNOTE 4.4.17.1)."""
    unicode_path = extra.get(_UNICODE_PATH_EXTRA, b"")
    if flags & _UTF8:
        name = raw
    elif len(unicode_path) > 5 and unicode_path[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
        name = unicode_path[5:]
    else:
        name = raw.decode("cp437").encode()
    try:
        name.decode()
    except UnicodeDecodeError:
        raise bad("bad-name", raw, "the name is said to be UTF-8 and is not") from None
    if _DRIVE.match(name):
        raise bad("path-escape", name, "the name has a drive letter")
    return name.replace(b"\\", b"/")


def _check_headers_apart(records: list[_Record]) -> None:
    """First of all: what is listed twice is a bomb, whatever else is wrong with it."""
    seen: set[int] = set()
    for record in records:
        if record.header in seen:
            raise bad("overlap", record.name, "its data belongs to another member too")
        seen.add(record.header)


def _check_spans_apart(spans: list[tuple[int, int]], records: list[_Record]) -> None:
    before = 0
    for (start, end), record in sorted(zip(spans, records, strict=True)):
        if start < before:
            raise bad("overlap", record.name, "its data overlaps that of another member")
        before = end


def _add(fd: int, catalog: Catalog, record: _Record, directory: _Directory) -> tuple[int, int]:
    """Check one member against its local header and take it; returns the bytes of the file that it claims."""
    _check_readable(record)
    path = clean(record.name)
    offset, end = _check_local(fd, record, directory.offset)
    form = stat.S_IFMT(record.mode)
    place = Entry(FILE, path, offset, record.stored, record.size, record.crc, record.method)
    if record.name.endswith(b"/") or form == stat.S_IFDIR:
        if record.size:
            raise bad("corrupt", record.name, "a folder with content")
        place = Entry(FOLDER, path)
    elif form == stat.S_IFLNK:
        place = Entry(SYMLINK, path, target=_link_target(fd, place))
    elif form not in (0, stat.S_IFREG):
        raise bad("special-file", record.name, "a device, a pipe or a socket")
    catalog.add(place)
    return record.header, end


def _link_target(fd: int, link: Entry) -> bytes:
    if link.size > PATH_MOST or link.stored > 2 * PATH_MOST:
        raise bad("bad-name", link.path, "the link's target is too long")
    return b"".join(piece for piece in pieces(fd, link) if isinstance(piece, bytes))


def _check_readable(record: _Record) -> None:
    if record.flags & (_ENCRYPTED | _STRONG | _MASKED) or record.method == _AES_METHOD:
        raise bad("encrypted", record.name, "it is encrypted")
    if record.method not in (STORED, DEFLATED, BZIP2, LZMA) or record.flags & _PATCHED:
        raise bad("unsupported", record.name, f"compression method {record.method}")
    if record.method == STORED and record.stored != record.size:
        raise bad("corrupt", record.name, "it is stored, but its two sizes differ")


class _Local(NamedTuple):
    """A local header; `begin` is where the data begins, `numbers` are CRC, stored length and size."""

    raw: bytes
    flags: int
    method: int
    numbers: tuple[int, int, int]
    begin: int


def _read_local(fd: int, record: _Record) -> _Local:
    guess = _LOCAL.size + len(record.raw) + 64
    data = os.pread(fd, guess, record.header)
    if len(data) < _LOCAL.size or not data.startswith(_LOCAL_SIGN):
        raise bad("corrupt", record.name, "it has no local header where the central directory says")
    _, _, flags, method, _, _, crc, stored, size, name_length, extra_length = _LOCAL.unpack_from(data)
    name_end, end = _LOCAL.size + name_length, _LOCAL.size + name_length + extra_length
    if end > len(data):
        data = read_exactly(fd, record.header, end, record.name)
    raw = data[_LOCAL.size : name_end]
    if _MAX32 in (stored, size):
        extra = _extra(data[name_end:end], raw)
        size, stored = _widened(extra.get(_ZIP64_EXTRA, b""), (size, stored), raw)
    return _Local(raw, flags, method, (crc, stored, size), record.header + end)


def _check_local(fd: int, record: _Record, directory: int) -> tuple[int, int]:
    """Where the data begins and where the member ends; raises when local and central header disagree."""
    local = _read_local(fd, record)
    if local.raw != record.raw:
        raise bad("corrupt", record.name, "local header and central directory disagree on the name")
    if local.flags & _ENCRYPTED:
        raise bad("encrypted", record.name, "it is encrypted")
    if local.method != record.method or (local.flags ^ record.flags) & _DESCRIPTOR:
        raise bad("corrupt", record.name, "local header and central directory disagree on how it is stored")
    end = local.begin + record.stored
    if local.flags & _DESCRIPTOR and end <= directory:
        end += _descriptor_length(fd, end, record, local.numbers)
    elif local.numbers != (record.crc, record.stored, record.size):
        raise bad("corrupt", record.name, "local header and central directory disagree on CRC or size")
    if end > directory:
        raise bad("corrupt", record.name, "its data reaches into the central directory")
    return local.begin, end


def _descriptor_length(fd: int, at: int, record: _Record, local: tuple[int, int, int]) -> int:
    """Length of the data descriptor, which has to say what the central directory says (APPNOTE 4.3.9)."""
    real = (record.crc, record.stored, record.size)
    if any(said not in (0, true) for said, true in zip(local, real, strict=True)):
        raise bad("corrupt", record.name, "local header and central directory disagree on CRC or size")
    data = os.pread(fd, 24, at)
    signed = 4 if data.startswith(_DESCRIPTOR_SIGN) else 0
    for start in {signed, 0}:
        for form in ("<LLL", "<LQQ"):
            length = start + struct.calcsize(form)
            if length <= len(data) and _fits(form, real) and struct.pack(form, *real) == data[start:length]:
                return length
    raise bad("corrupt", record.name, "its data descriptor and the central directory disagree on CRC or size")


def _fits(form: str, real: tuple[int, int, int]) -> bool:
    return form == "<LQQ" or max(real) <= _MAX32
