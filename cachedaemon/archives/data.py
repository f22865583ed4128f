"""The bytes of members, checked while they are read: never more in memory than `STEP`, never more out than announced."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator

from cachedaemon.archives.catalog import Entry
from cachedaemon.archives.names import bad
from cachedaemon_client.inflate import STORED, decompressor, ended, inflate
from cachedaemon_client.member_table import SPARSE

STEP = 1 << 20
"""Bytes that are read or inflated at once."""

Piece = bytes | int
"""Bytes of a member, or the length of a hole in it."""
ReadExtent = Callable[[int, int], Iterator[bytes]]
"""From offset and length to those bytes."""


def read_exactly(fd: int, offset: int, length: int, name: bytes | None) -> bytes:
    """`length` bytes of the archive; raises BadArchive `truncated` when it ends before."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise bad("truncated", name, "the archive ends within it" if name is not None else "the archive is cut")
        data += more
    return data


def pieces(fd: int, entry: Entry) -> Iterable[Piece]:
    """A regular file's content, with its size and CRC checked at the end at the latest."""
    if entry.method == SPARSE:
        return with_holes(entry, lambda offset, length: _stored(fd, offset, length, entry.path))
    if entry.stored <= STEP and entry.size <= STEP:
        return (_whole(fd, entry),)
    return _checked(fd, entry)


def with_holes(entry: Entry, read: ReadExtent) -> Iterator[Piece]:
    """A sparse file's content, its extents read in order."""
    at = 0
    for extent in entry.extents:
        if extent.at > at:
            yield extent.at - at
        yield from read(extent.offset, extent.length)
        at = extent.at + extent.length
    if entry.size > at:
        yield entry.size - at


def _stored(fd: int, offset: int, length: int, name: bytes) -> Iterator[bytes]:
    while length:
        data = read_exactly(fd, offset, min(length, STEP), name)
        yield data
        offset, length = offset + len(data), length - len(data)


def _whole(fd: int, entry: Entry) -> bytes:
    data = read_exactly(fd, entry.offset, entry.stored, entry.path)
    try:
        if entry.method != STORED:
            return inflate(entry.method, data, entry.size, entry.crc)
    except io.UnsupportedOperation as error:
        raise bad("unsupported", entry.path, str(error)) from error
    except ValueError as error:
        raise bad("corrupt", entry.path, str(error)) from error
    _check_crc(entry, zlib.crc32(data) if entry.crc is not None else None)
    return data


def _check_crc(entry: Entry, crc: int | None) -> None:
    if crc != entry.crc:
        raise bad("corrupt", entry.path, "its CRC is wrong")


def _checked(fd: int, entry: Entry) -> Iterator[bytes]:
    """Content in steps, for what is too large to hold."""
    stored = _stored(fd, entry.offset, entry.stored, entry.path)
    crc = 0
    for data in stored if entry.method == STORED else _inflated(stored, entry):
        if entry.crc is not None:
            crc = zlib.crc32(data, crc)
        yield data
    _check_crc(entry, crc if entry.crc is not None else None)


def _inflated(stored: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
    try:
        yield from _inflate_steps(stored, entry)
    except io.UnsupportedOperation as error:
        raise bad("unsupported", entry.path, str(error)) from error
    except ValueError as error:
        raise bad("corrupt", entry.path, str(error)) from error


def _inflate_steps(stored: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
    stream = decompressor(entry.method)
    left, idle = entry.size, 0
    while not stream.complete and idle < 3:  # a library may need a call to notice that it wants more
        data = next(stored, b"") if stream.hungry else b""
        out = stream.feed(data, min(STEP, left + 1))
        if len(out) > left:
            break
        if out:
            yield out
            left -= len(out)
        idle = 0 if out or data else idle + 1
    if left or not ended(stream, entry.method) or next(stored, None):
        raise ValueError(f"inflates to other than the {entry.size} bytes that the archive says")
