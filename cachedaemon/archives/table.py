"""Writes the member table of a checked archive; its form is the client's (`cachedaemon_client.member_table`)."""

from __future__ import annotations

import os
import zlib
from array import array

from cachedaemon.archives.catalog import Catalog
from cachedaemon.archives.names import bad
from cachedaemon_client.member_table import CRC_KNOWN, ENTRY, EXTENT, HEADER_SIZE, SPARSE, Header, slots_for

_PROBES_EACH = 64  # on average; names made to collide would take hours to place and to find
_PROBES_FREE = 1 << 16


def build(catalog: Catalog, inode: int, size: int, mtime_ns: int) -> tuple[int, list[bytes]]:
    """How many members the table has, and its bytes in pieces."""
    named = list(catalog.readable())
    slots = _index([path for path, _ in named])
    pieces = sum(len(entry.extents) for _, entry in named)
    names = b"".join(path for path, _ in named)
    header = Header(len(named), inode, size, mtime_ns, len(slots), pieces, len(names))
    entries, extents, at = bytearray(), bytearray(), header.sections[2]
    for path, entry in named:
        offset = len(extents) // EXTENT.size if entry.method == SPARSE else entry.offset
        for extent in entry.extents:
            extents += EXTENT.pack(*extent)
        crc, flags = (0, 0) if entry.crc is None else (entry.crc, CRC_KNOWN)
        numbers = (offset, entry.stored, entry.size, at, crc, len(entry.extents), len(path), entry.method, flags)
        entries += ENTRY.pack(*numbers)
        at += len(path)
    parts = [bytes(entries), slots.tobytes(), bytes(extents), names]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return len(named), [header._replace(crc=crc).pack(), *parts]


def _index(names: list[bytes]) -> array[int]:
    slots = array("I", bytes(4 * slots_for(len(names))))
    mask, probes = len(slots) - 1, _PROBES_FREE + _PROBES_EACH * len(names)
    for number, name in enumerate(names):
        at = zlib.crc32(name) & mask
        while slots[at]:
            at = (at + 1) & mask
            probes -= 1
        if probes < 0:
            raise bad("limit", name, "the names are made so that they cannot be told apart quickly")
        slots[at] = HEADER_SIZE + ENTRY.size * number
    return slots


def write(path: str, pieces: list[bytes]) -> None:
    """A new file with these bytes; raises OSError, and FileExistsError for one that is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
