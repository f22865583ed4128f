"""Fields of tar headers: numbers, names, pax records, sparse maps. Pure; every fault is a BadArchive.

ustar and pax are POSIX.1-2017, `pax`; the GNU forms are in the manual of GNU tar, "Basic Tar Format" and "Sparse".
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from cachedaemon.archives.catalog import Extent
from cachedaemon.archives.names import bad

BLOCK = 512
ZEROS = bytes(BLOCK)

_LONGEST_NUMBER = 20  # decimal digits; 2**63 has 19
_SPARSE_MOST = 1 << 20  # pieces of one sparse member


class Header(NamedTuple):
    """One header block, as it stands there."""

    name: bytes
    size: int
    form: bytes
    target: bytes
    block: bytes


def is_header(block: bytes) -> bool:
    """Whether the checksum holds; some old writers added the bytes up as signed ones."""
    try:
        said = _octal(block[148:156])
    except ValueError:
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    return said in (total, total - 256 * sum(byte > 127 for byte in rest))


def parse(block: bytes) -> Header:
    """Name, size, type and link target; raises BadArchive `corrupt`."""
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _text(block[345:500]) + b"/" + name
    size = number(block[124:136], name)
    return Header(name, size, block[156:157], _text(block[157:257]), block)


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _octal(field: bytes) -> int:
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not digits.isdigit():
        if digits:
            raise ValueError(field)
        return 0
    return int(digits, 8)


def number(field: bytes, name: bytes) -> int:
    """A size or offset: octal, or base-256 where its first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value >= 1 << 63:
            raise bad("corrupt", name, "a number in its header is negative or too large")
        return value
    try:
        return _octal(field)
    except ValueError:
        raise bad("corrupt", name, f"its header has {field!r} where a number belongs") from None


def decimal(text: bytes, name: bytes) -> int:
    """A number of a pax record."""
    if not text.isdigit() or len(text) > _LONGEST_NUMBER or int(text) >= 1 << 63:
        raise bad("corrupt", name, f"a pax record has {text[:40]!r} where a number belongs")
    return int(text)


def pax_records(data: bytes, name: bytes) -> list[tuple[bytes, bytes]]:
    r"""`<length> <key>=<value>\n`, one after the other, in order: sparse keys come many times."""
    records, at = [], 0
    while at < len(data) and data[at]:  # some writers pad with NULs
        space = data.find(b" ", at, at + _LONGEST_NUMBER + 1)
        length = decimal(data[at:space], name) if space > at else 0
        record = data[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if length <= space + 1 - at or at + length > len(data) or not equals or record[-1:] != b"\n":
            raise bad("corrupt", name, "a pax record is damaged")
        records.append((key, value))
        at += length
    return records


def gnu_map(block: bytes, start: int, slots: int, name: bytes) -> list[tuple[int, int]]:
    """Offsets and lengths from a header or an extension block of GNU's old sparse form."""
    found = []
    for at in range(start, start + 24 * slots, 24):
        if block[at] in b"\0 ":
            break
        found.append((number(block[at : at + 12], name), number(block[at + 12 : at + 24], name)))
    return found


def pax_map(records: list[tuple[bytes, bytes]], name: bytes) -> list[tuple[int, int]] | None:
    """The sparse map of the pax forms 0.0 and 0.1; None where there is none."""
    whole = dict(records).get(b"GNU.sparse.map")
    if whole is not None:
        numbers = [decimal(text, name) for text in whole.split(b",")] if whole else []
        if len(numbers) % 2:
            raise bad("corrupt", name, "its sparse map is damaged")
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    offsets = [decimal(value, name) for key, value in records if key == b"GNU.sparse.offset"]
    lengths = [decimal(value, name) for key, value in records if key == b"GNU.sparse.numbytes"]
    if len(offsets) != len(lengths):
        raise bad("corrupt", name, "its sparse map is damaged")
    return list(zip(offsets, lengths, strict=True)) if offsets else None


def extents(pairs: list[tuple[int, int]], size: int, stored: int, start: int, name: bytes) -> tuple[Extent, ...]:
    """A sparse map as extents, checked: ascending, apart, within the size, and as long as the data."""
    if len(pairs) > _SPARSE_MOST:
        raise bad("limit", name, f"its sparse map has more than {_SPARSE_MOST} pieces")
    lengths = [length for _, length in pairs]
    places = itertools.accumulate(lengths, initial=start)
    found = tuple(Extent(at, place, length) for (at, length), place in zip(pairs, places, strict=False) if length)
    end = 0
    for extent in found:
        if extent.at < end or extent.at + extent.length > size:
            raise bad("corrupt", name, "its sparse map is not in order or leaves the file")
        end = extent.at + extent.length
    if sum(lengths) != stored:
        raise bad("corrupt", name, "its sparse map does not fit its data")
    return found
