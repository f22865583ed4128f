"""Reading the members of an archive in place, by name or index.

Nothing here locks: the table never changes, and every read is one `pread` at an offset of its own.
"""

from __future__ import annotations

import errno
import io
import mmap
import operator
import os
import struct
import sys
from collections.abc import Sequence
from os import pread
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from cachedaemon_client.descriptor import Descriptor
from cachedaemon_client.inflate import STORED, inflate
from cachedaemon_client.member_table import (
    CRC_KNOWN,
    SPARSE,
    Members,
    StaleTable,
    Table,
    position,
    unpack_hot,
)

__all__ = ["Damaged", "Ended", "MemberReader", "Members", "StaleTable", "Truncated"]

_CLOSED = (b"", (0,), 0, -1)
_MOST = 1 << 30  # bytes asked of one pread: the kernel gives at most 2 GiB - 4096 at once


class Truncated(OSError):
    """The shard ended before the member did: it was truncated behind the cache's back."""


class Damaged(OSError):
    """A compressed member does not inflate to the bytes that the archive announced."""


class Ended(ValueError):
    """The reader was closed."""


class MemberReader:
    """Reads the members of the shard that is open at `fd`, from any number of threads.

    `fd` stays the caller's; the reader has a copy of its own, which is closed behind the last read that runs. Raises
    StaleTable when the table at `table_path` does not fit the shard, OSError when `fd` is not open.
    """

    def __init__(self, fd: int, path: str | os.PathLike[str], table_path: str | os.PathLike[str]) -> None:
        self._fd: int = Descriptor.copy_of(fd)
        self._path = path
        self._data: mmap.mmap | None = None
        self._table = Table(self._fd, table_path)
        self.members = Members(self._table)
        self._hot: tuple[mmap.mmap | bytes, Sequence[int] | memoryview, int, int]
        self._hot = (self._table.map, self._table.slots, self._table.slot_count - 1, self._fd)

    def read(self, which: str | int) -> bytes:
        """All bytes of a member, by name or index: one `pread`, inflated where the archive holds it compressed.

        Raises KeyError, IndexError, Truncated, Damaged, Ended, and io.UnsupportedOperation for a method that this Python
        was built without.
        """
        # The usual case on one path without calls of our own: a stored member. All else is `_read`'s.
        # `fd` is held here while it is read from: see `Descriptor`.
        if which.__class__ is str:
            table, slots, mask, fd = self._hot
            try:
                key = which.encode()
                at = crc32(key) & mask
                while slot := slots[at]:
                    offset, stored, name_at, length, method = unpack_hot(table, slot)
                    if table[name_at : name_at + length] == key:
                        if method or len(data := pread(fd, stored, offset)) != stored:
                            break
                        return data
                    at += 1
            except (UnicodeEncodeError, IndexError, struct.error, OverflowError, MemoryError, OSError):
                pass  # a name of odd bytes, the index's end, a damaged table, a failing disk: `_read` tells them apart
        return self._read(which)

    def view(self, which: str | int) -> memoryview:
        """A member's bytes without a copy; a compressed or sparse one is inflated first.

        A cold page is read under Python's lock, so that `read` is the better choice where threads share the process.
        """
        index = self._index(which)
        entry = self._table.entry(index)
        if entry[7] != STORED:
            return memoryview(self._bytes(index, entry))
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
            return io.BufferedReader(io.BytesIO(self._bytes(index, entry)))
        self._check(index, entry[0], entry[1])
        return io.BufferedReader(_Section(self, index, entry[0], entry[1]))

    def locate(self, which: str | int) -> tuple[Path, int, int]:
        """Path of the shard, offset and length of the member in it, for direct I/O.

        Raises io.UnsupportedOperation for what is not stored in one piece.
        """
        index = self._index(which)
        entry = self._table.entry(index)
        if entry[7] != STORED:
            kind = "sparse" if entry[7] == SPARSE else "compressed"
            raise io.UnsupportedOperation(f"member {self._table.name(index)!r} of {self._path} is {kind}")
        self._check(index, entry[0], entry[1])
        return Path(self._path), entry[0], entry[1]

    def size(self, which: str | int) -> int:
        """Bytes of a member as `read` gives it."""
        return self._table.entry(self._index(which))[2]

    def read_into(self, buffer: memoryview, index: int, offset: int) -> int:
        """Fill a buffer from an offset in the shard, within member `index`; some bytes at least. Raises Truncated."""
        got = os.preadv(self._open_fd(), [buffer], offset)
        if not got:
            raise self._truncated(index)
        return got

    def close(self) -> None:
        """Read no more; never fails. Reads that run, names and views that are out keep what they need, and stay good."""
        self._fd = -1
        self._hot = _CLOSED
        self._data = None

    def _index(self, which: object) -> int:
        self._open_fd()
        if not isinstance(which, str):
            return position(operator.index(which), self._table.count)  # type: ignore[arg-type]
        found = self._table.find(which)
        if found < 0:
            raise self._unknown(which)
        return found

    def _open_fd(self) -> int:
        """The descriptor, which stays open for as long as the caller holds it; raises Ended."""
        fd = self._fd
        if fd < 0:
            raise Ended(f"{self._path} is closed")
        return fd

    def _unknown(self, which: object) -> KeyError:
        return KeyError(f"no member {which!r} in {self._path}")

    def _truncated(self, index: int) -> Truncated:
        message = f"shard ends within member {self._table.name(index)!r}"
        return Truncated(errno.EIO, message, os.fspath(self._path))

    def _check(self, index: int, offset: int, length: int) -> None:
        if offset + length > self._table.header.size:
            raise StaleTable(f"the table entry of member {index} of {self._path} is damaged")

    def _read(self, which: str | int) -> bytes:
        index = self._index(which)
        return self._bytes(index, self._table.entry(index))

    def _bytes(self, index: int, entry: tuple[int, ...]) -> bytes:
        """Any member's bytes: stored, compressed, sparse, over a GiB, or gone."""
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
        if entry[2] >= sys.maxsize:
            raise StaleTable(f"the table entry of member {index} of {self._path} is damaged")
        data = bytearray(entry[2])
        for place, offset, length in self._table.extents(entry[0], entry[5]):
            if place + length > len(data):
                raise StaleTable(f"the extents of member {index} of {self._path} are damaged")
            data[place : place + length] = self._piece(index, offset, length)
        return bytes(data)

    def _piece(self, index: int, offset: int, length: int) -> bytes:
        self._check(index, offset, length)
        fd = self._open_fd()
        data = pread(fd, min(length, _MOST), offset)
        return data if len(data) == length else self._in_pieces(fd, index, offset, length)

    def _in_pieces(self, fd: int, index: int, offset: int, length: int) -> bytes:
        pieces = []
        while length:
            piece = pread(fd, min(length, _MOST), offset)
            if not piece:
                raise self._truncated(index)
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return b"".join(pieces)

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
        if self._fd < 0:  # closed meanwhile
            self._data = None
        return data

    def _reopen(self) -> int:
        held, flags = self._open_fd(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(f"/proc/self/fd/{held}", flags)
        except OSError:  # no /proc here, or one that hides descriptors
            fd = os.open(self._path, flags)
        try:
            if not os.path.sameopenfile(fd, held):
                raise StaleTable(f"{self._path} is another file by now")  # noqa: TRY301 - it closes
        except BaseException:
            os.close(fd)
            raise
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
        wanted = min(len(buffer), max(0, self._length - self._at))
        if not wanted:
            return 0
        got = self._reader.read_into(memoryview(buffer)[:wanted], self._index, self._offset + self._at)
        self._at += got
        return got
