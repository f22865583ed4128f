"""A mounted folder as its helper sees it: plain calls, which may hang or fail at any time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Self

KEY = "{key}"
"""Where a key goes in a place; without it, at the end."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Without O_NONBLOCK the open of a FIFO would never return."""
_AT_ONCE = 256 << 10
"""Bytes of one call: a mount that is slow and not dead must return from it before the stall limit."""


class Tree:
    """The files of one source. `place` is the path of its url; see `path` for what that may be."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._is_folder = place.endswith("/")

    def _is_inside(self) -> bool:
        """Whether keys are files in the folder `place`, rather than the rest of a name that `place` begins.

        Once seen to be a folder it is one for good: a mount that has gone must not turn into a prefix.
        """
        self._is_folder = self._is_folder or os.path.isdir(self._place)
        return self._is_folder

    def path(self, key: str) -> str:
        """The file of a key: where {key} stands, in the folder, or appended to what a name begins with."""
        if KEY in self._place:
            return self._place.replace(KEY, key)
        return f"{self._place.rstrip('/')}/{key}" if self._is_inside() else self._place + key

    def open(self, key: str) -> File:
        """The file of a key. Raises OSError: ENOTCONN when it is the folder that is not there, EINVAL for a FIFO or so."""
        try:
            descriptor = os.open(self.path(key), _FLAGS)
        except FileNotFoundError:
            self.check()
            raise
        return File(descriptor)

    def check(self) -> None:
        """OSError (ENOTCONN) when the mount is away: an outage is never "missing".

        What is left of an unmounted file system is an empty folder, so an empty one counts as away too.
        """
        top, start = self._top()
        try:
            with os.scandir(top) as entries:
                if any(entry.name.startswith(start) for entry in entries):
                    return
        except PermissionError:
            return  # a folder that may be entered and not listed
        except (FileNotFoundError, NotADirectoryError):
            pass
        raise OSError(errno.ENOTCONN, "it is not there, or empty: is it mounted?")

    def _top(self) -> tuple[str, str]:
        """The folder that must be there, and what the names in it begin with."""
        before, found, _ = self._place.partition(KEY)
        if not found and self._is_inside():
            return self._place, ""
        return os.path.split(before)

    def walk(self) -> Iterator[str]:
        """All keys, in no order; only regular files, and only names that can be a key (UTF-8)."""
        self.check()
        yield from self.files()

    @property
    def top(self) -> str:
        """The folder that all keys lie below."""
        return self._top()[0]

    def files(self) -> Iterator[str]:
        """All keys, as `walk` says them, of a folder that may well be empty."""
        top, start = self._top()
        cut = len(self._place.rstrip("/")) + 1 if self._is_inside() else len(self._place)
        for path in _files(top):
            if path.startswith(os.path.join(top, start)) and len(path) > cut and _is_text(path):
                yield path[cut:]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _files(top: str) -> Iterator[str]:
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file():
                        yield entry.path
        except FileNotFoundError:
            if folder == top:
                raise  # else it was removed while it was being listed


def _must_be_regular(seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


class File:
    """An open file of the mount, as a block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        try:
            _must_be_regular(self.look())
        except BaseException:
            os.close(descriptor)
            raise

    def look(self) -> os.stat_result:
        """Its state now."""
        return os.fstat(self._descriptor)

    def pour(self, pipe: int, start: int, stop: int) -> None:
        """The bytes from `start` up to `stop` into a pipe, or as far as the file goes."""
        at = start
        with Lock() as lock:
            while at < stop and (count := self._some(lock, pipe, at, min(stop - at, _AT_ONCE))):
                at += count

    def _some(self, lock: Lock, pipe: int, at: int, most: int) -> int:
        """The next bytes, and how many; the page cache's own pages where the file system can (splice(2))."""
        try:
            return lock.carry(self._descriptor, pipe, at, most)
        except OSError as cause:
            if cause.errno != errno.EINVAL:
                raise
        return _written(pipe, memoryview(os.pread(self._descriptor, most, at)))

    def __enter__(self) -> Self:
        """Open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closed, which may hang like everything else."""
        os.close(self._descriptor)


class Lock:
    """A pipe between a file and another pipe, as a lock lies in a canal; nothing is copied on the way.

    The kernel keeps a pipe locked while splice(2) reads a file into it. So whoever reads that pipe, or only closes it, hangs
    with the file, beyond every signal: the pipe that the daemon has must never be the one that a file is read into.
    """

    def __enter__(self) -> Self:
        """Empty."""
        self._out, self._into = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(PermissionError):  # a user with many pipes keeps the usual size, and takes more turns
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, _AT_ONCE)
        return self

    def carry(self, file: int, pipe: int, at: int, most: int) -> int:
        """Some bytes of the file from `at` on, and how many; EINVAL where the file system cannot."""
        count = left = os.splice(file, self._into, most, offset_src=at)
        while left:
            left -= os.splice(self._out, pipe, left)
        return count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closed, with what may be left in it."""
        os.close(self._out)
        os.close(self._into)


def _written(pipe: int, piece: memoryview) -> int:
    """All of it, through memory."""
    rest = piece
    while rest:
        rest = rest[os.write(pipe, rest) :]
    return len(piece)
