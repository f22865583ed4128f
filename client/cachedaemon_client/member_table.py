"""The member table of an archive: its form on the disk, and its mapped view.

One file per archive, written once by the daemon and mapped read-only by every reader, in native byte order since
it never leaves its node::

    header   128 bytes: magic, version, stamp of the shard, counts, CRC of all that follows, CRC of the header itself
    entries  `ENTRY` each, in archive order
    slots    u32 each, a power of two: hash index by crc32 of the name, open addressing;
             0 is free, else where the entry begins
    extents  `EXTENT` each: where the pieces of sparse members lie
    names    UTF-8 without separators

All readers of a node share one copy of a large table, and each process checks a table's CRC once: from then on opening
costs the same for ten members as for a million. A small table is read instead, so that nobody who cuts it can end a
reader by a page that is gone (mmap(2), SIGBUS); a large one is as safe as the file is left alone.
Nothing here locks: the table never changes, and every read is one `pread` at an offset of its own.
"""

from __future__ import annotations

import mmap
import operator
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, overload

MAGIC = b"CDMEMBER"
VERSION = 2
HEADER = struct.Struct("=8sIIQQqIIQQ")
"""Magic, version, members, inode, size and mtime_ns of the shard, slots, CRC of all behind the header, extents,
bytes of names."""
HEADER_SIZE = 128
ENTRY = struct.Struct("=QQQQIIHBB4x")
"""Offset, stored length, size, name offset, CRC-32, extents, name length, method, flags.

For a sparse member the offset is the index of its first extent. Names are found from the table's first byte.
"""
unpack_hot = struct.Struct("=QQ8xQ8xHB5x").unpack_from
"""Of an entry at its offset: offset, stored length, name offset, name length, method."""
EXTENT = struct.Struct("=QQQ")
"""Offset in the member, offset in the shard, length."""

SPARSE = 255
CRC_KNOWN = 1
"""Flag: the CRC is that of the member's bytes (tar keeps none)."""

SMALL = 256 << 10
"""Bytes of a table that is rather read than mapped: some 2,500 members, 50 us."""
_CRC = struct.Struct("=I")
_CHECKED_MOST = 1 << 14
_checked: dict[tuple[int, ...], None] = {}
"""Tables whose CRC this process has found right, by what `fstat` says of them; whoever writes to one changes that."""


class StaleTable(Exception):
    """The table is absent, damaged, of another format version, or belongs to another version of the shard."""


class Header(NamedTuple):
    """What the first bytes of a table say."""

    members: int
    inode: int
    size: int
    mtime_ns: int
    slots: int
    extents: int
    names: int
    crc: int = 0
    """Of all bytes behind the header."""

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Where slots, extents and names begin, and where the table ends."""
        slots = HEADER_SIZE + self.members * ENTRY.size
        extents = slots + self.slots * 4
        names = extents + self.extents * EXTENT.size
        return slots, extents, names, names + self.names

    def pack(self) -> bytes:
        """The header's bytes."""
        stamp = (self.inode, self.size, self.mtime_ns)
        body = HEADER.pack(MAGIC, VERSION, self.members, *stamp, self.slots, self.crc, self.extents, self.names)
        return (body + _CRC.pack(zlib.crc32(body))).ljust(HEADER_SIZE, b"\0")

    @classmethod
    def unpack(cls, table: mmap.mmap | bytes) -> Header:
        """Read and check; raises StaleTable."""
        if len(table) < HEADER_SIZE:
            raise StaleTable("the member table is shorter than its header")
        magic, version, count, inode, size, mtime_ns, slots, crc, extents, names = HEADER.unpack_from(table)
        if magic != MAGIC or version != VERSION:
            raise StaleTable(f"the member table has format {magic!r} {version}, not {MAGIC!r} {VERSION}")
        header = cls(count, inode, size, mtime_ns, slots, extents, names, crc)
        if table[: HEADER.size + _CRC.size] != header.pack()[: HEADER.size + _CRC.size]:
            raise StaleTable("the header of the member table is damaged")
        if header.sections[3] != len(table) or slots <= count or slots & (slots - 1):
            raise StaleTable("the member table does not have the length that its header says")
        return header


def encode(name: str) -> bytes:
    """A member's name as the table holds it; names that are not UTF-8 keep their bytes."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    """The reverse of `encode`."""
    return name.decode("utf-8", "surrogateescape")


def slots_for(count: int) -> int:
    """How many slots the index of so many members has: at most half of them are taken."""
    return 1 << max(3, (2 * count - 1).bit_length())


class Table:
    """An open table. Raises StaleTable when it is damaged, or does not fit the shard behind `fd`.

    `anew`: the CRC is checked even if this process has found it right before.
    """

    def __init__(self, fd: int, table_path: str | os.PathLike[str], *, anew: bool = False) -> None:
        self.map, identity = _open_table(table_path)
        self.header = header = Header.unpack(self.map)
        shard = os.fstat(fd)
        if (shard.st_ino, shard.st_size, shard.st_mtime_ns) != (header.inode, header.size, header.mtime_ns):
            raise StaleTable("the member table belongs to another version of the shard")
        if anew or identity not in _checked:
            _check(self.map, header, identity)
        slots, self.extents_at, _, _ = header.sections
        self.count = header.members
        self.slots = memoryview(self.map)[slots : self.extents_at].cast("I")
        self.slot_count = header.slots

    def entry(self, index: int) -> tuple[int, ...]:
        """The entry at an index that is known to be in range."""
        return ENTRY.unpack_from(self.map, HEADER_SIZE + ENTRY.size * index)

    def name(self, index: int) -> str:
        """The name at an index that is known to be in range."""
        entry = self.entry(index)
        return decode(self.map[entry[3] : entry[3] + entry[6]])

    def find(self, name: str) -> int:
        """Index of the member of that name, -1 when there is none."""
        try:
            key = encode(name)
        except UnicodeEncodeError:
            return -1
        slots, mask, length, table = self.slots, self.slot_count - 1, len(key), self.map
        first = zlib.crc32(key)
        for probe in range(first, first + mask):
            slot = slots[probe & mask]
            if not slot:
                return -1
            index, odd = divmod(slot - HEADER_SIZE, ENTRY.size)
            if odd or not 0 <= index < self.count:
                break
            entry = self.entry(index)
            if entry[6] == length and table[entry[3] : entry[3] + length] == key:
                return index
        raise StaleTable("the index of the member table is damaged")

    def extents(self, first: int, count: int) -> list[tuple[int, ...]]:
        """The pieces of a sparse member."""
        if first + count > self.header.extents:
            raise StaleTable("the extents of the member table are damaged")
        at = self.extents_at + EXTENT.size * first
        return [EXTENT.unpack_from(self.map, at + EXTENT.size * n) for n in range(count)]


def _open_table(path: str | os.PathLike[str]) -> tuple[mmap.mmap | bytes, tuple[int, ...]]:
    """A table's bytes, and what tells this file from another and from itself when it was written to."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would stop the reader
    except OSError as error:
        raise StaleTable(f"the member table cannot be opened: {os.strerror(error.errno or 0)}") from error
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise StaleTable("the member table is no regular file")
        return _bytes(fd, seen.st_size), (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    except (ValueError, OSError) as error:
        raise StaleTable(f"the member table cannot be read: {error}") from error
    finally:
        os.close(fd)


def _bytes(fd: int, size: int) -> mmap.mmap | bytes:
    if size > SMALL:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    data = os.pread(fd, size, 0)
    if len(data) != size:
        raise StaleTable("the member table was cut while it was read")
    return data


def _check(table: mmap.mmap | bytes, header: Header, identity: tuple[int, ...]) -> None:
    with memoryview(table) as whole, whole[HEADER_SIZE:] as rest:
        if zlib.crc32(rest) != header.crc:
            _checked.pop(identity, None)
            raise StaleTable("the member table is damaged: its CRC is wrong")
    if len(_checked) >= _CHECKED_MOST:
        _checked.clear()
    _checked[identity] = None


class Members(Sequence[str]):
    """Names of the members in archive order; a name is decoded when it is looked at."""

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.count

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._table.name(n) for n in range(*index.indices(len(self)))]
        return self._table.name(position(operator.index(index), len(self)))

    def __iter__(self) -> Iterator[str]:
        return map(self._table.name, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._table.find(name) >= 0

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Position of the name; raises ValueError where it is not between start and stop, as lists do."""
        found = self._table.find(name) if isinstance(name, str) else -1
        if found < 0 or found not in range(*slice(start, stop).indices(len(self))):
            raise ValueError(f"{name!r} is not a member")
        return found

    def count(self, name: object) -> int:
        """1 or 0: no name is there twice."""
        return int(name in self)

    def __repr__(self) -> str:
        return f"<Members: {len(self)} names>"


def position(index: int, count: int) -> int:
    """An index as lists take it, negative ones from the end; raises IndexError."""
    found = index + count if index < 0 else index
    if not 0 <= found < count:
        raise IndexError(f"member {index} of {count}")
    return found
