"""What the worker does with an archive: check it and write its member table, or check and unpack it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cachedaemon.archives import sources, table, tars, zips
from cachedaemon.archives.catalog import FILE, FOLDER, HARDLINK, Bounds, Catalog, Entry
from cachedaemon.archives.data import STEP, Piece, pieces, with_holes
from cachedaemon.archives.names import bad
from cachedaemon.archives.tree import Modes, Tree
from cachedaemon_client.member_table import SPARSE

Ask = Callable[[int, int], None]
"""Ask for room, bytes and inodes in all; returns once it is granted."""

_HEADERS_EACH = 4096  # bytes of headers and padding that a member of a tar may take on average
_STEP_MOST = 16 << 20
_STEP_LEAST = 64 << 10
_INODES_STEP = 4096


class Index(NamedTuple):
    """Check an archive, and write the table for the shard that has this inode, size and mtime_ns."""

    kind: str
    archive: str
    table: str
    inode: int
    size: int
    mtime_ns: int
    verify: bool
    bounds: Bounds


class Unpack(NamedTuple):
    """Unpack into a folder that does not exist."""

    kind: str
    archive: str
    folder: str
    modes: Modes
    bounds: Bounds


def _opened(archive: str) -> int:
    return os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def index(job: Index) -> dict[str, object]:
    """Number of members in the table."""
    fd = _opened(job.archive)
    try:
        catalog = _scan(fd, job.kind, job.bounds)
        if job.verify:
            _verify(fd, catalog)
    finally:
        os.close(fd)
    count, parts = table.build(catalog, job.inode, job.size, job.mtime_ns)
    table.write(job.table, parts)
    return {"members": count}


def _scan(fd: int, kind: str, bounds: Bounds) -> Catalog:
    return zips.scan(fd, bounds) if kind == "zip" else tars.scan(sources.FileSource(fd), bounds)


def _verify(fd: int, catalog: Catalog) -> None:
    """Read what has a CRC to its end."""
    for entry in catalog.entries:
        if entry.kind == FILE and entry.crc is not None:
            for _ in pieces(fd, entry):
                pass


def unpack(job: Unpack, ask: Ask) -> dict[str, object]:
    """Members, bytes of members, allocated bytes and digest of the folder."""
    fd = _opened(job.archive)
    try:
        if job.kind in ("zip", "tar"):
            return _unpack_file(fd, job, ask)
        return _unpack_stream(fd, job, ask)
    finally:
        os.close(fd)


def _unpack_file(fd: int, job: Unpack, ask: Ask) -> dict[str, object]:
    """Everything is known before the first byte is written."""
    catalog = _scan(fd, job.kind, job.bounds)
    ask(catalog.blocks, catalog.inodes + 1)
    tree = Tree(job.folder, job.modes)
    try:
        for entry in catalog.entries:
            _put(tree, entry, lambda entry: pieces(fd, entry))
        return _result(catalog, tree)
    finally:
        tree.close()


def _unpack_stream(fd: int, job: Unpack, ask: Ask) -> dict[str, object]:
    """Members are checked one by one, each before it is written."""
    most = job.bounds.bytes + _HEADERS_EACH * (job.bounds.members + 256)
    source = sources.StreamSource(sources.inflated(fd, job.kind), most)
    catalog, pace = Catalog(job.bounds), _Pace(ask)
    pace.reach(0, 1)
    tree = Tree(job.folder, job.modes)
    try:
        for found in tars.members(source):
            entry = catalog.add(found)
            pace.reach(catalog.blocks, catalog.inodes + 1)
            _put(tree, entry, lambda entry: _streamed(source, entry))
        catalog.finish()
        return _result(catalog, tree)
    finally:
        tree.close()


def _put(tree: Tree, entry: Entry, content: Callable[[Entry], Iterable[Piece]]) -> None:
    if entry.kind == FILE:
        tree.file(entry.path, content(entry))
    elif entry.kind == FOLDER:
        tree.folder(entry.path)
    elif entry.kind == HARDLINK:
        tree.hard_link(entry.path, entry.target)
    else:
        tree.symlink(entry.path, entry.target)


def _result(catalog: Catalog, tree: Tree) -> dict[str, object]:
    digest = tree.finish()
    members = sum(1 for _ in catalog.readable())
    return {"members": members, "size": catalog.size, "blocks": tree.blocks, "digest": digest}


def _streamed(source: sources.StreamSource, entry: Entry) -> Iterable[Piece]:
    """A member's content from a stream that stands at its data."""
    if entry.method == SPARSE:
        return with_holes(entry, lambda _, length: _taken(source, length, entry.path))
    if entry.stored > STEP:
        return _taken(source, entry.stored, entry.path)
    data = source.read(entry.stored)
    if len(data) < entry.stored:
        raise bad("truncated", entry.path, "the archive ends within it")
    return (data,)


def _taken(source: sources.StreamSource, length: int, name: bytes) -> Iterator[bytes]:
    while length:
        data = source.take(length)
        if not data:
            raise bad("truncated", name, "the archive ends within it")
        yield data
        length -= len(data)


class _Pace:
    """Asks for room in steps that double up to 16 MiB, so that neither many questions nor much idle room result."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._bytes = 0
        self._inodes = 0

    def reach(self, size: int, inodes: int) -> None:
        """Have at least this much in all."""
        if size <= self._bytes and inodes <= self._inodes:
            return
        if size > self._bytes:
            self._bytes = max(size, self._bytes + min(_STEP_MOST, max(_STEP_LEAST, self._bytes)))
        if inodes > self._inodes:
            self._inodes = max(inodes, self._inodes + min(_INODES_STEP, max(16, self._inodes)))
        self._ask(self._bytes, self._inodes)
