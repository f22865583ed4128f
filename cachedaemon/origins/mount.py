"""A mounted folder as the threads of its source see it: plain calls, which may hang or fail at any time.

Nothing here runs on the loop, and nothing here writes to the cache's disk.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cachedaemon.origins.base import KEY

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Without O_NONBLOCK the open of a FIFO would never return."""
_AT_ONCE = 256 << 10
"""Bytes of one call: a mount that is slow and not dead must return from it before the stall limit."""
_STEP = 0.25
"""Seconds after which a step says what it has got so far, so that slow is not taken for dead."""


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
        top, start = self._top()
        cut = len(self._place.rstrip("/")) + 1 if self._is_inside() else len(self._place)
        for path in _files(top):
            key = path[cut:]
            if path.startswith(os.path.join(top, start)) and key and _is_text(key):
                yield key


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


def some(keys: Iterator[str]) -> list[str]:
    """The next keys of a walk, as many as come within a second; at least one, unless it has ended."""
    until = time.monotonic() + _STEP
    found = []
    for key in keys:
        found.append(key)
        if time.monotonic() > until:
            break
    return found


def _regular(descriptor: int) -> os.stat_result:
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return seen


class File:
    """An open file of the mount. A read that hangs keeps it open, so that its descriptor cannot become another's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._readers = 0
        self._closing = False
        try:
            self.seen = _regular(descriptor)
        except BaseException:
            self.close()
            raise

    def look(self) -> None:
        """Take its state anew."""
        with self._used():
            self.seen = os.fstat(self._descriptor)

    def read(self, buffer: memoryview) -> int:
        """Fill a buffer as far as the file goes, or as far as a moment goes on a slow mount; 0 at the end."""
        got, until = 0, time.monotonic() + _STEP
        with self._used():
            while got < len(buffer) and (count := os.readv(self._descriptor, [buffer[got : got + _AT_ONCE]])):
                got += count
                if time.monotonic() > until:
                    break
        return got

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            if self._closing:
                raise OSError(errno.EBADF, "closed")
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Close it, when the last read has returned."""
        with self._lock:
            self._closing = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing and not self._readers and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
