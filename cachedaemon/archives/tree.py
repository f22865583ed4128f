"""The folder that an archive is unpacked into, made descriptor by descriptor so that nothing can land outside of it.

Symbolic links come last: while files are written, no path in the folder leads anywhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from cachedaemon.archives.catalog import FILE, FOLDER, SYMLINK
from cachedaemon.archives.data import STEP, Piece
from cachedaemon.model import Taken, unheeded

_OPEN_FOLDERS = 64
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DOWN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(STEP)
_WRAP = (1 << 128) - 1


class Modes(NamedTuple):
    """Permission bits of files and of folders, and the group of both (None: as the system gives it)."""

    file: int
    folder: int
    gid: int | None = None


class Digest:
    """Digest of a tree: the sum modulo 2**128 over its entries of xxh3-128 (type, path, NUL, content or target).

    A sum does not depend on the order of the entries, so writer and checker may each go their own way.
    """

    def __init__(self) -> None:
        self._sum = 0

    def add(self, kind: str, path: bytes, content: bytes = b"") -> None:
        """An entry whose content is at hand."""
        self._sum += xxhash.xxh3_128_intdigest(kind.encode() + path + b"\0" + content)

    def add_pieces(self, kind: str, path: bytes, content: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces of a content, passed on; the entry counts when the last has been."""
        state = xxhash.xxh3_128(kind.encode() + path + b"\0")
        for piece in content:
            for part in (piece,) if isinstance(piece, bytes) else _zeros(piece):
                state.update(part)
            yield piece
        self._sum += state.intdigest()

    def __str__(self) -> str:
        return f"tree-xxh3-128:{self._sum & _WRAP:032x}"


def _zeros(length: int) -> Iterator[bytes]:
    while length:
        part = _ZEROS[: min(length, STEP)]
        yield part
        length -= len(part)


class Tree:
    """A new folder, filled by its methods. Raises OSError where the disk refuses; paths are checked ones."""

    def __init__(self, folder: str, modes: Modes) -> None:
        self._modes = modes
        os.mkdir(folder, 0o700)
        self._root = os.open(folder, _DOWN)
        self._open: dict[bytes, int] = {b"": self._root}
        self._made: set[bytes] = {b""}
        self._links: list[tuple[bytes, bytes]] = []
        self._digest = Digest()
        self.blocks = 0  # allocated bytes of regular files
        self._settle(self._root)

    def _settle(self, fd: int) -> None:
        if self._modes.gid is not None:
            os.fchown(fd, -1, self._modes.gid)
        os.fchmod(fd, self._modes.folder)

    def folder(self, path: bytes) -> int:
        """The descriptor of a folder, which is made where it is not there; good until the next call."""
        fd = self._open.get(path)
        return fd if fd is not None else self._walk(path)

    def _walk(self, path: bytes) -> int:
        fd, at = self._root, -1
        while at < len(path):
            begin, at = at + 1, path.find(b"/", at + 1)
            at = len(path) if at < 0 else at
            above = fd
            fd = self._step(above, path[:at], path[begin:at])
            if above != self._root:
                os.close(above)
        if len(self._open) >= _OPEN_FOLDERS:
            oldest = next(name for name in self._open if name)
            os.close(self._open.pop(oldest))
        self._open[path] = fd
        return fd

    def _step(self, above: int, path: bytes, name: bytes) -> int:
        fresh = path not in self._made
        if fresh:
            os.mkdir(name, 0o700, dir_fd=above)
            self._made.add(path)
            self._digest.add(FOLDER, path)
        fd = os.open(name, _DOWN, dir_fd=above)
        if fresh:
            self._settle(fd)
        return fd

    def file(self, path: bytes, content: Iterable[Piece]) -> None:
        """A regular file; `content` may raise, and what was written of it stays until the folder goes."""
        parent, _, name = path.rpartition(b"/")
        above = self.folder(parent)
        fd = os.open(name, _NEW, 0o600, dir_fd=above)
        try:
            if isinstance(content, tuple) and len(content) == 1 and isinstance(content[0], bytes):
                self._digest.add(FILE, path, content[0])
                _write(fd, content[0])
            else:
                _write_pieces(fd, self._digest.add_pieces(FILE, path, content))
            if self._modes.gid is not None:
                os.fchown(fd, -1, self._modes.gid)
            os.fchmod(fd, self._modes.file)
        finally:
            os.close(fd)
        # After the close: some file systems allocate ahead of a file that is still written.
        self.blocks += os.stat(name, dir_fd=above, follow_symlinks=False).st_blocks * 512

    def hard_link(self, path: bytes, target: bytes) -> None:
        """A further name of a file of this tree; the digest takes it for a file."""
        above_target, _, name = target.rpartition(b"/")
        above, _, new = path.rpartition(b"/")
        source = os.dup(self.folder(above_target))  # the next folder asked for may close this one
        try:
            fd = os.open(name, _READ, dir_fd=source)
            try:
                for _ in self._digest.add_pieces(FILE, path, _content(fd)):
                    pass
            finally:
                os.close(fd)
            os.link(name, new, src_dir_fd=source, dst_dir_fd=self.folder(above), follow_symlinks=False)
        finally:
            os.close(source)

    def symlink(self, path: bytes, target: bytes) -> None:
        """A symbolic link, made by `finish`."""
        self._links.append((path, target))

    def finish(self) -> str:
        """Make the links; returns the tree's digest."""
        for path, target in self._links:
            parent, _, name = path.rpartition(b"/")
            above = self.folder(parent)
            os.symlink(target, name, dir_fd=above)
            if self._modes.gid is not None:
                os.chown(name, -1, self._modes.gid, dir_fd=above, follow_symlinks=False)
            self._digest.add(SYMLINK, path, target)
        return str(self._digest)

    def close(self) -> None:
        """Close every folder."""
        while self._open:
            os.close(self._open.popitem()[1])


def _write(fd: int, data: bytes) -> None:
    done = os.write(fd, data) if data else 0
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


def _write_pieces(fd: int, pieces: Iterable[Piece]) -> None:
    hole = False
    for piece in pieces:
        hole = not isinstance(piece, bytes)
        if isinstance(piece, bytes):
            _write(fd, piece)
        else:
            os.lseek(fd, piece, os.SEEK_CUR)
    if hole:
        os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


def _content(fd: int, taken: Taken = unheeded) -> Iterator[bytes]:
    while data := os.read(fd, STEP):
        taken(len(data))
        yield data


def tree_digest(folder: str | os.PathLike[str], taken: Taken = unheeded) -> str:
    """The digest of a folder as it is on the disk, for a thread; raises OSError.

    Anything but files, folders and links cannot be in an unpacked archive: it counts with its type alone.
    """
    digest = Digest()
    root = os.open(folder, _DOWN)
    try:
        todo = [b""]
        while todo:
            path = todo.pop()
            for name, mode in _listed(root, path):
                below = path + b"/" + name if path else name
                _add_found(digest, root, below, mode, taken)
                if stat.S_ISDIR(mode):
                    todo.append(below)
    finally:
        os.close(root)
    return str(digest)


def _listed(root: int, path: bytes) -> list[tuple[bytes, int]]:
    fd = os.open(path or b".", _DOWN, dir_fd=root)
    try:
        with os.scandir(fd) as found:
            return [(os.fsencode(entry.name), entry.stat(follow_symlinks=False).st_mode) for entry in found]
    finally:
        os.close(fd)


def _add_found(digest: Digest, root: int, path: bytes, mode: int, taken: Taken) -> None:
    if stat.S_ISREG(mode):
        fd = os.open(path, _READ, dir_fd=root)
        try:
            for _ in digest.add_pieces(FILE, path, _content(fd, taken)):
                pass
        finally:
            os.close(fd)
    elif stat.S_ISLNK(mode):
        digest.add(SYMLINK, path, os.readlink(path, dir_fd=root))
    else:
        digest.add(FOLDER if stat.S_ISDIR(mode) else "?", path)
