"""Files in staging, while they are written. All calls block; none runs on the loop."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence

import xxhash

from cachedaemon.digests import Hashes, Piece
from cachedaemon.model import Digest
from cachedaemon.store.disk import DIGEST, READ, seal
from cachedaemon.store.layout import Modes

_AT_ONCE = os.sysconf("SC_IOV_MAX")
"""Pieces of one pwritev(2), which refuses more; a server that sends little at a time has a thousand in a MiB."""


class Staged:
    """A file in staging that grows; its digests and size are taken as it is written.

    Several threads may write at once, each its own stretch. The digests follow what has come without a gap from the start:
    what came out of order is read back, from the page cache mostly, by whoever closes the gap, while the others go on.
    """

    def __init__(self, folder: str, number: int) -> None:
        os.mkdir(folder, 0o700)
        self.folder = folder
        self.number = number
        self.path = f"{folder}/data"
        self.size = 0
        """Bytes from the start without a gap, which the digests are of."""
        self._hash = xxhash.xxh3_128()
        self._others = Hashes(())
        self._expected: tuple[Digest, ...] = ()
        self._lock = threading.Lock()
        self._hashing = False
        self._ahead: dict[int, int] = {}
        """Stretches behind a gap: start and end."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.rmdir(folder)
            raise

    @property
    def digest(self) -> str:
        """Of what was written so far."""
        return DIGEST + self._hash.hexdigest()

    def expect(self, size: int | None, digests: Iterable[Digest] = ()) -> None:
        """What is known beforehand: the size, and what others say that the bytes come to.

        Writing below the end keeps xfs from allocating ahead, beyond what was reserved.
        """
        self._expected = tuple(digests)
        self._others = Hashes({one.kind for one in self._expected})
        if size is not None:
            os.ftruncate(self._descriptor, size)

    def mismatch(self) -> str | None:
        """Which expected digests the bytes do not come to, with kind, got and expected; None when all are right."""
        return self._others.mismatch(self._expected)

    def write(self, pieces: Sequence[Piece]) -> None:
        """Append any number of pieces; OSError from the disk."""
        self.write_at(self.size, pieces)

    def write_at(self, start: int, pieces: Sequence[Piece]) -> None:
        """Write any number of pieces at an offset that nobody else writes at; OSError from the disk."""
        stop = start
        for first in range(0, len(pieces), _AT_ONCE):
            stop += self._put(stop, pieces[first : first + _AT_ONCE])
        with self._lock:
            if self._hashing or start != self.size:
                self._ahead[start] = stop
            if self._hashing:
                return
            self._hashing = True
        try:
            if start == self.size:
                self._take(pieces, stop)
            self._catch_up()
        except BaseException:
            self._hashing = False
            raise

    def _put(self, start: int, pieces: Sequence[Piece]) -> int:
        total = sum(len(piece) for piece in pieces)
        written = os.pwritev(self._descriptor, pieces, start)
        if written < total:
            rest = memoryview(b"".join(pieces))[written:]
            while rest:
                rest = rest[os.pwrite(self._descriptor, rest, start + total - len(rest)) :]
        return total

    def _take(self, pieces: Iterable[Piece], stop: int) -> None:
        for piece in pieces:
            self._hash.update(piece)
            self._others.update(piece)
        self.size = stop

    def _catch_up(self) -> None:
        """Take what lies behind a gap that has closed, and whatever comes meanwhile."""
        while (stop := self._next()) is not None:
            buffer = memoryview(bytearray(min(READ, stop - self.size)))
            while self.size < stop:
                count = os.preadv(self._descriptor, [buffer[: stop - self.size]], self.size)
                if not count:
                    raise OSError(errno.EIO, "the staged file has become shorter", self.path)
                self._take([buffer[:count]], self.size + count)

    def _next(self) -> int | None:
        """The end of the stretch that follows; with None this thread's hashing has ended, before another can write."""
        with self._lock:
            stop = self._ahead.pop(self.size, None)
            self._hashing = stop is not None
            return stop

    def seal(self, modes: Modes, mtime_ns: int) -> os.stat_result:
        """Give it the mode, group and stamp that it is published with."""
        os.ftruncate(self._descriptor, self.size)
        seal(self._descriptor, modes.file, modes.group, mtime_ns)
        return os.fstat(self._descriptor)

    def unlink(self) -> None:
        """Remove the file, its blocks with it."""
        self.close()
        os.unlink(self.path)

    def close(self) -> None:
        """Close the file; it stays in staging."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
