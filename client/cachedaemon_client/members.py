"""The member table of an archive, and reading members in place.

One file per archive, written once by the daemon and mapped read-only by every reader, in native byte order since
it never leaves its node::

    header   128 bytes: magic, version, stamp of the shard, counts, CRC of the header itself
    entries  `ENTRY` each, in archive order
    slots    u32 each, a power of two: hash index by crc32 of the name, open addressing, 0 is free, else index + 1
    extents  `EXTENT` each: where the pieces of sparse members lie
    names    UTF-8 without separators

So opening costs the same for ten members as for a million, and all readers of a node share one copy of the names.
Nothing here locks: the table never changes, and every read is one `pread` at an offset of its own.
"""

from __future__ import annotations

import errno
import io
import mmap
import operator
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, SupportsIndex, overload

MAGIC = b"CDMEMBER"
VERSION = 1
HEADER = struct.Struct("=8sIIQQqIIQQ")
"""Magic, version, members, inode, size and mtime_ns of the shard, slots, flags (0), extents, bytes of names."""
HEADER_SIZE = 128
ENTRY = struct.Struct("=QQQQIIHBB4x")
"""Offset, stored length, size, name offset, CRC-32, extents, name length, method, flags.

For a sparse member the offset is the index of its first extent.
"""
EXTENT = struct.Struct("=QQQ")
"""Offset in the member, offset in the shard, length."""

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14  # as in zip, APPNOTE 4.4.5
SPARSE = 255
CRC_KNOWN = 1
"""Flag: the CRC is that of the member's bytes (tar keeps none)."""

_CRC = struct.Struct("=I")
_MOST = 1 << 30  # bytes asked of one pread: the kernel gives at most 2 GiB - 4096 at once


class StaleTable(Exception):
    """The table is absent, damaged, of another format version, or belongs to another version of the shard."""


class Truncated(OSError):
    """The shard ended before the member did: it was truncated behind the cache's back."""


class Damaged(OSError):
    """A compressed member does not inflate to the bytes that the archive announced."""


class Header(NamedTuple):
    """What the first bytes of a table say."""

    count: int
    inode: int
    size: int
    mtime_ns: int
    slots: int
    extents: int
    names: int

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Where slots, extents and names begin, and where the table ends."""
        slots = HEADER_SIZE + self.count * ENTRY.size
        extents = slots + self.slots * 4
        names = extents + self.extents * EXTENT.size
        return slots, extents, names, names + self.names

    def pack(self) -> bytes:
        """The header's bytes."""
        stamp = (self.inode, self.size, self.mtime_ns)
        body = HEADER.pack(MAGIC, VERSION, self.count, *stamp, self.slots, 0, self.extents, self.names)
        return (body + _CRC.pack(zlib.crc32(body))).ljust(HEADER_SIZE, b"\0")

    @classmethod
    def unpack(cls, table: bytes | mmap.mmap) -> Header:
        """Read and check; raises StaleTable."""
        if len(table) < HEADER_SIZE:
            raise StaleTable("the member table is shorter than its header")
        magic, version, count, inode, size, mtime_ns, slots, _, extents, names = HEADER.unpack_from(table)
        if magic != MAGIC or version != VERSION:
            raise StaleTable(f"the member table has format {magic!r} {version}, not {MAGIC!r} {VERSION}")
        header = cls(count, inode, size, mtime_ns, slots, extents, names)
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
    """A mapped table. Raises StaleTable when it does not fit the shard behind `fd`."""

    def __init__(self, fd: int, table_path: str | os.PathLike[str]) -> None:
        self.map = _map_table(table_path)
        self.header = header = Header.unpack(self.map)
        shard = os.fstat(fd)
        if (shard.st_ino, shard.st_size, shard.st_mtime_ns) != (header.inode, header.size, header.mtime_ns):
            raise StaleTable("the member table belongs to another version of the shard")
        slots, self.extents_at, self.names_at, _ = header.sections
        self.count = header.count
        self.slots = memoryview(self.map)[slots : self.extents_at].cast("I")
        self.slot_count = header.slots

    def entry(self, index: int) -> tuple[int, ...]:
        """The entry at an index that is known to be in range."""
        return ENTRY.unpack_from(self.map, HEADER_SIZE + ENTRY.size * index)

    def name(self, index: int) -> str:
        """The name at an index that is known to be in range."""
        entry = self.entry(index)
        at = self.names_at + entry[3]
        return self.map[at : at + entry[6]].decode("utf-8", "surrogateescape")

    def find(self, name: str) -> int:
        """Index of the member of that name, -1 when there is none."""
        try:
            key = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return -1
        slots, mask, length, table = self.slots, self.slot_count - 1, len(key), self.map
        first = zlib.crc32(key)
        for probe in range(first, first + mask):
            slot = slots[probe & mask]
            if not slot:
                return -1
            if slot > self.count:
                break
            entry = ENTRY.unpack_from(table, HEADER_SIZE - ENTRY.size + ENTRY.size * slot)
            if entry[6] == length:
                at = self.names_at + entry[3]
                if table[at : at + length] == key:
                    return slot - 1
        raise StaleTable("the index of the member table is damaged")

    def extents(self, first: int, count: int) -> list[tuple[int, ...]]:
        """The pieces of a sparse member."""
        if first + count > self.header.extents:
            raise StaleTable("the extents of the member table are damaged")
        at = self.extents_at + EXTENT.size * first
        return [EXTENT.unpack_from(self.map, at + EXTENT.size * n) for n in range(count)]

    def close(self) -> None:
        """Give the mapping back; names handed out are copies."""
        self.slots.release()
        _close_map(self.map)


def _map_table(path: str | os.PathLike[str]) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StaleTable(f"the member table cannot be opened: {os.strerror(error.errno or 0)}") from error
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError) as error:  # an empty file cannot be mapped
        raise StaleTable(f"the member table cannot be mapped: {error}") from error
    finally:
        os.close(fd)


def _close_map(mapping: mmap.mmap) -> None:
    """Unmap now, or leave it to the last view: a view that is still out keeps its memory and its bytes."""
    try:
        mapping.close()
    except BufferError:
        # By design: closing a shard must never fail because a tensor still looks at it. The views hold the mapping,
        # and the mapping goes with the last of them.
        pass


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
        return self._table.name(_at(operator.index(index), len(self)))

    def __iter__(self) -> Iterator[str]:
        return map(self._table.name, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._table.find(name) >= 0

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
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


def _at(index: int, count: int) -> int:
    at = index + count if index < 0 else index
    if not 0 <= at < count:
        raise IndexError(f"member {index} of {count}")
    return at


class MemberReader:
    """Reads the members of the shard that is open at `fd`, from any number of threads.

    `fd` is the lease's descriptor: it stays the caller's, and has to outlive the reader. Raises StaleTable when the
    table at `table_path` does not fit the shard.
    """

    def __init__(self, fd: int, path: str | os.PathLike[str], table_path: str | os.PathLike[str]) -> None:
        self._fd = fd
        self._path = path
        self._data: mmap.mmap | None = None
        self._table = Table(fd, table_path)
        self.members = Members(self._table)

    def read(self, which: str | int) -> bytes:
        """All bytes of a member, by name or index: one `pread`, inflated where the archive holds it compressed.

        Raises KeyError, IndexError, Truncated, Damaged, and io.UnsupportedOperation for a method that this Python
        was built without.
        """
        table = self._table
        index = table.find(which) if which.__class__ is str else self._index(which)
        if index < 0:
            raise self._unknown(which)
        entry = ENTRY.unpack_from(table.map, HEADER_SIZE + ENTRY.size * index)
        if entry[7] == STORED:
            data = os.pread(self._fd, entry[1], entry[0])
            if len(data) == entry[1]:
                return data
        return self._read(index, entry)

    def view(self, which: str | int) -> memoryview:
        """A member's bytes without a copy; a compressed or sparse one is inflated first.

        A cold page is read under Python's lock, so that `read` is the better choice where threads share the process.
        """
        index = self._index(which)
        entry = self._table.entry(index)
        if entry[7] != STORED:
            return memoryview(self._read(index, entry))
        if not entry[1]:
            return memoryview(b"")
        data = self._data or self._map()
        self._check(index, entry[0], entry[1])
        return memoryview(data)[entry[0] : entry[0] + entry[1]]

    def open(self, which: str | int) -> BinaryIO:
        """A member as a seekable binary file; closing the reader ends it too."""
        index = self._index(which)
        entry = self._table.entry(index)
        if entry[7] != STORED:
            return io.BytesIO(self._read(index, entry))
        self._check(index, entry[0], entry[1])
        return io.BufferedReader(_Section(self, index, entry[0], entry[1]))

    def locate(self, which: str | int) -> tuple[str | os.PathLike[str], int, int]:
        """Path of the shard, offset and length of the member in it, for direct I/O.

        Raises io.UnsupportedOperation for what is not stored in one piece.
        """
        index = self._index(which)
        entry = self._table.entry(index)
        if entry[7] != STORED:
            kind = "sparse" if entry[7] == SPARSE else "compressed"
            raise io.UnsupportedOperation(f"member {self._table.name(index)!r} of {self._path} is {kind}")
        self._check(index, entry[0], entry[1])
        return self._path, entry[0], entry[1]

    def size(self, which: str | int) -> int:
        """Bytes of a member as `read` gives it."""
        return self._table.entry(self._index(which))[2]

    def close(self) -> None:
        """Let go of the mappings; never fails, and views that are still out stay good."""
        self._fd = -1
        data, self._data = self._data, None
        if data is not None:
            _close_map(data)
        self._table.close()

    def _index(self, which: object) -> int:
        if self._fd < 0:
            raise ValueError(f"{self._path} is closed")
        if not isinstance(which, str):
            return _at(operator.index(which), self._table.count)  # type: ignore[arg-type]
        found = self._table.find(which)
        if found < 0:
            raise self._unknown(which)
        return found

    def _unknown(self, which: object) -> KeyError:
        return KeyError(f"no member {which!r} in {self._path}")

    def _check(self, index: int, offset: int, length: int) -> None:
        if offset + length > self._table.header.size:
            raise StaleTable(f"the table entry of member {index} of {self._path} is damaged")

    def _read(self, index: int, entry: tuple[int, ...]) -> bytes:
        """What is not one pread: compressed, sparse, over a GiB, or gone."""
        if self._fd < 0:
            raise ValueError(f"{self._path} is closed")
        if entry[7] == SPARSE:
            return self._assemble(index, entry)
        data = self._piece(index, entry[0], entry[1])
        if entry[7] == STORED:
            return data
        try:
            return inflate(entry[7], data, entry[2], entry[4] if entry[8] & CRC_KNOWN else None)
        except ValueError as error:
            raise Damaged(errno.EIO, f"member {self._table.name(index)!r}: {error}", os.fspath(self._path)) from error

    def _assemble(self, index: int, entry: tuple[int, ...]) -> bytes:
        data = bytearray(entry[2])
        for at, offset, length in self._table.extents(entry[0], entry[5]):
            if at + length > len(data):
                raise StaleTable(f"the extents of member {index} of {self._path} are damaged")
            data[at : at + length] = self._piece(index, offset, length)
        return bytes(data)

    def _piece(self, index: int, offset: int, length: int) -> bytes:
        self._check(index, offset, length)
        pieces = []
        while length:
            piece = os.pread(self._fd, min(length, _MOST), offset)
            if not piece:
                message = f"shard ends within member {self._table.name(index)!r}"
                raise Truncated(errno.EIO, message, os.fspath(self._path))
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _map(self) -> mmap.mmap:
        """Map the shard through an open of its own.

        A mapping duplicates its descriptor, and a duplicate of the lease's would keep the lock for as long as a view
        is out. Two threads may both get here: the mapping that loses goes with its views.
        """
        fd = self._reopen()
        try:
            if os.fstat(fd).st_size < self._table.header.size:
                raise Truncated(errno.EIO, "shard is shorter than when it was published", os.fspath(self._path))
            self._data = data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        return data

    def _reopen(self) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(f"/proc/self/fd/{self._fd}", flags)
        except OSError:  # no /proc here, or one that hides descriptors
            fd = os.open(self._path, flags)
        if not os.path.sameopenfile(fd, self._fd):
            os.close(fd)
            raise StaleTable(f"{self._path} is another file by now")
        return fd


class _Section(io.RawIOBase):
    """One stored member as a raw file."""

    def __init__(self, reader: MemberReader, index: int, offset: int, length: int) -> None:
        super().__init__()
        self._reader, self._index, self._offset, self._length = reader, index, offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        reader = self._reader
        if reader._fd < 0:
            raise ValueError(f"{reader._path} is closed")
        wanted = min(len(buffer), max(0, self._length - self._at))
        if not wanted:
            return 0
        got = os.preadv(reader._fd, [memoryview(buffer)[:wanted]], self._offset + self._at)
        if not got:
            raise Truncated(errno.EIO, f"shard ends within member {self._index}", os.fspath(reader._path))
        self._at += got
        return got


class Decompressor(Protocol):
    """What zlib, bz2 and lzma have in common here: output is bounded by `most`, input left over is kept."""

    def feed(self, data: bytes, most: int) -> bytes:
        """Inflate up to `most` bytes of this data and what was kept; raises ValueError for damaged data."""

    @property
    def complete(self) -> bool:
        """Whether the stream has come to its end."""

    @property
    def surplus(self) -> bool:
        """Whether there is input behind the end."""

    @property
    def hungry(self) -> bool:
        """Whether nothing more comes out without more input."""


class _Deflate:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._kept = b""
        self.hungry = True

    def feed(self, data: bytes, most: int) -> bytes:
        try:
            out = self._stream.decompress(self._kept + data if self._kept else data, most)
        except zlib.error as error:
            raise ValueError(f"deflated data is damaged: {error}") from error
        self._kept = self._stream.unconsumed_tail
        self.hungry = not self._kept and len(out) < most
        return out

    @property
    def complete(self) -> bool:
        return self._stream.eof

    @property
    def surplus(self) -> bool:
        return bool(self._stream.unused_data)


class _Bzip2:
    def __init__(self) -> None:
        import bz2  # may be absent from a Python, and is rare  # noqa: PLC0415

        self._stream = bz2.BZ2Decompressor()

    def feed(self, data: bytes, most: int) -> bytes:
        try:
            return self._stream.decompress(data, most)
        except (OSError, EOFError) as error:
            raise ValueError(f"bzip2 data is damaged: {error}") from error

    @property
    def complete(self) -> bool:
        return self._stream.eof

    @property
    def surplus(self) -> bool:
        return bool(self._stream.unused_data)

    @property
    def hungry(self) -> bool:
        return self._stream.needs_input


class _Lzma:
    """LZMA as zip has it: version, length of properties, properties, raw data (APPNOTE 5.8.8)."""

    _HEAD = 9

    def __init__(self) -> None:
        import lzma  # noqa: PLC0415

        self._lzma = lzma
        self._head = b""
        self._stream: lzma.LZMADecompressor | None = None

    def feed(self, data: bytes, most: int) -> bytes:
        if self._stream is None:
            self._head += data
            if len(self._head) < self._HEAD:
                return b""
            self._stream, data = self._start(self._head), self._head[self._HEAD :]
        try:
            return self._stream.decompress(data, most)
        except (self._lzma.LZMAError, EOFError) as error:
            raise ValueError(f"LZMA data is damaged: {error}") from error

    def _start(self, head: bytes) -> Any:
        length, flags, dictionary = struct.unpack_from("<2xHBI", head)
        if length != 5 or flags >= 9 * 5 * 5:
            raise ValueError("LZMA properties are damaged")
        chain = {"id": self._lzma.FILTER_LZMA1, "lc": flags % 9, "lp": flags // 9 % 5, "pb": flags // 45}
        try:
            return self._lzma.LZMADecompressor(self._lzma.FORMAT_RAW, filters=[chain | {"dict_size": dictionary}])
        except self._lzma.LZMAError as error:
            raise ValueError(f"LZMA properties are damaged: {error}") from error

    @property
    def complete(self) -> bool:
        return self._stream is not None and self._stream.eof

    @property
    def surplus(self) -> bool:
        return self._stream is not None and bool(self._stream.unused_data)

    @property
    def hungry(self) -> bool:
        return self._stream is None or self._stream.needs_input


_METHODS: dict[int, type[_Deflate] | type[_Bzip2] | type[_Lzma]] = {DEFLATED: _Deflate, BZIP2: _Bzip2, LZMA: _Lzma}


def decompressor(method: int) -> Decompressor:
    """A fresh one; raises io.UnsupportedOperation for a method that is unknown, or absent from this Python."""
    try:
        return _METHODS[method]()
    except (KeyError, ImportError) as error:
        raise io.UnsupportedOperation(f"compression method {method} is not available") from error


def inflate(method: int, data: bytes, size: int, crc: int | None) -> bytes:
    """The `size` bytes that `data` inflates to, never more of them in memory; raises ValueError for anything else."""
    stream = decompressor(method)
    out = stream.feed(data, size + 1)
    while len(out) <= size and not stream.complete:
        more = stream.feed(b"", size + 1 - len(out))
        if not more:
            break
        out += more
    if len(out) != size or not ended(stream, method):
        raise ValueError(f"inflates to other than the {size} bytes that the archive says")
    if crc is not None and zlib.crc32(out) != crc:
        raise ValueError("its CRC is wrong")
    return out


def ended(stream: Decompressor, method: int) -> bool:
    """Whether the compressed data ended where the member ends; LZMA need not mark its end."""
    return (stream.complete or method == LZMA) and not stream.surplus
