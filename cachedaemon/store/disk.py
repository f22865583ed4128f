"""Single steps on the disk: stage, seal, publish, hold, evict, delete. All of them block; none runs on the loop.

`publish`, `hold`, `evict` and `probe` of one cache run in one thread, so that none meets another half-way.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import xxhash

from cachedaemon.digests import Hashes, Piece
from cachedaemon.errors import SHORT, NoSpace, Shortage
from cachedaemon.model import Digest, Disk, Meta, Stamp, Taken, Validators, unheeded
from cachedaemon.store.layout import Modes
from cachedaemon_client import lease

DIGEST = "xxh3-128:"
_READ = 1 << 20
_AT_ONCE = os.sysconf("SC_IOV_MAX")
"""Pieces of one pwritev(2), which refuses more; a server that sends little at a time has a thousand in a MiB."""


def stamp_of(seen: os.stat_result) -> Stamp:
    """The identity of what `stat` saw."""
    return Stamp(seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def disk_error(cause: OSError, what: str) -> NoSpace:
    """A failure of a call to the cache's own disk, as the reader is told it."""
    why = f"{cause.strerror or cause} ({errno.errorcode.get(cause.errno or 0, 'no number')})"
    if cause.errno in SHORT:
        return Shortage(f"{what}: the daemon is short of something: {why}")
    return NoSpace(f"{what}: the cache's disk failed: {why}")


def usage(root: str) -> Disk:
    """Room on the file system of the cache."""
    seen = os.statvfs(root)
    unit = seen.f_frsize
    read_only = bool(seen.f_flag & os.ST_RDONLY)
    return Disk(seen.f_blocks * unit, seen.f_bavail * unit, seen.f_files, seen.f_favail, read_only)


@dataclass(frozen=True, slots=True)
class Held:
    """The daemon's own shared lock on a published shard."""

    descriptor: int
    stamp: Stamp

    def close(self) -> None:
        """Give it back."""
        lease.give_back(self.descriptor)


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
            buffer = memoryview(bytearray(min(_READ, stop - self.size)))
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


def seal(descriptor: int, mode: int, group: int | None, mtime_ns: int) -> None:
    """Set group, mode and mtime of an open file or folder. The group first: chown drops mode bits."""
    if group is not None:
        os.fchown(descriptor, -1, group)
    os.fchmod(descriptor, mode)
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))


def seal_path(path: str, modes: Modes) -> None:
    """Give a file beside the shards its mode and group."""
    if modes.group is not None:
        os.chown(path, -1, modes.group)
    os.chmod(path, modes.file)


def seal_folder(path: str, modes: Modes, mtime_ns: int) -> os.stat_result:
    """The same for an unpacked folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seal(descriptor, modes.folder, modes.group, mtime_ns)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def move_aside(place: str, aside: str) -> bool:
    """Move away what stands in a shard's place; whether something did. A folder that is missing for it is made anew."""
    try:
        os.rename(place, aside)
    except FileNotFoundError:
        if not os.path.lexists(place):
            return False
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(aside), 0o700)
        os.rename(place, aside)
    return True


def publish(staged: str, place: str, stamp: Stamp) -> Held:
    """Rename a sealed shard to its place, which must be free; its shared lock is held already."""
    descriptor = os.open(staged, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if stamp_of(os.fstat(descriptor)) != stamp:
            raise OSError(errno.ESTALE, "the staged file was changed by somebody else", staged)  # noqa: TRY301 - it closes
        lease.hold(descriptor)
        os.rename(staged, place)
    except BaseException:
        os.close(descriptor)
        raise
    return Held(descriptor, stamp)


def write_meta(meta: Meta, beside: str, modes: Modes, used: float | None = None, *, durable: bool = False) -> None:
    """Write a meta file, to be renamed into place; its mtime is the last use (Unix seconds; None: now)."""
    stamp = time.time_ns() if used is None else int(used * 1e9)
    _write_file(beside, json.dumps(asdict(meta)), modes, stamp, durable=durable)


def replace_file(place: str, text: str, beside: str, modes: Modes) -> None:
    """Exchange a small file as a whole, durably: with an empty one after a power cut all would be in doubt."""
    _write_file(beside, text, modes, time.time_ns(), durable=True)
    try:
        os.rename(beside, place)
    except BaseException:
        unlink(beside)
        raise
    sync_folder(os.path.dirname(place))


def _write_file(path: str, text: str, modes: Modes, mtime_ns: int, *, durable: bool = False) -> None:
    """A new file, whole or not there at all."""
    unlink(path)  # what a killed daemon left there has a mode that its owner cannot write with
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        seal(descriptor, modes.file, modes.group, mtime_ns)
        if durable:
            os.fsync(descriptor)
    except BaseException:
        unlink(path)
        raise
    finally:
        os.close(descriptor)


def unlink(path: str) -> None:
    """Remove a file that may have gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


PASSING = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says nothing of the file: the disk failed, or the daemon was short of something."""


def read_meta(place: str) -> Meta | None:
    """The meta file; None where there is none that can be read as one: after a power cut it may be empty or lost.

    OSError when it could not be looked at: a disk that fails for a moment must not cost a shard.
    """
    try:
        said = json.loads(read_regular(place))
        meta = Meta(**{**said, "validators": Validators(**said["validators"])})
    except OSError as cause:
        if cause.errno in PASSING:
            raise
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    kinds = ((meta.key, str), (meta.digest, str), (meta.size, int), (meta.blocks, int), (meta.inodes, int))
    return meta if all(isinstance(value, kind) for value, kind in kinds) else None


def read_regular(place: str) -> bytes:
    """A small file's bytes; OSError, also for anything but a regular file: a FIFO would stop whoever reads it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", place)
        return file.read()


def fits(said: Meta, seen: os.stat_result) -> bool:
    """Whether what `stat` saw can be the shard of a meta file: a folder where a tree was unpacked, a file of its size."""
    if said.digest.startswith(DIGEST):
        return stat.S_ISREG(seen.st_mode) and said.size == seen.st_size
    return stat.S_ISDIR(seen.st_mode)


def evict(place: str, stamp: Stamp, beside: Sequence[str], trash: str) -> None:
    """Move a shard that nobody holds to trash, its meta and table with it.

    Raises `lease.Busy`, or `lease.Gone` when it does not stand there any more: something else may, held or not.
    """
    _expect(place, stamp)
    descriptor, _ = lease.take_exclusive(place)
    try:
        _expect(place, stamp)
        if not move_aside(place, trash):
            raise lease.Gone(place)
    finally:
        lease.give_back(descriptor)
    unlink_beside(beside)


def _expect(place: str, stamp: Stamp) -> None:
    try:
        seen = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        raise lease.Gone(place) from None
    if (seen.st_dev, seen.st_ino) != stamp[:2]:
        raise lease.Gone(place)


def discard(place: str, beside: Sequence[str], trash: str) -> bool:
    """Move away what is damaged, whoever holds it; whether something was there."""
    there = move_aside(place, trash)
    unlink_beside(beside)
    return there


def unlink_beside(paths: Sequence[str]) -> None:
    """Remove what described a shard that has gone: the rename cannot be taken back, so a failure here is none.

    What is left is replaced with the shard's next coming, or cleared at the next start.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_leased(place: str, own: int | None) -> bool:
    """Whether anybody but the daemon holds a lock. `own` is the daemon's own shared descriptor, if it has one.

    The daemon's lock would hide the others', so it is given up for the moment of the look and taken again; only this
    thread evicts, so nothing can go in between.
    """
    if own is not None:
        lease.let_go(own)
    try:
        lease.give_back(lease.take_exclusive(place)[0])
    except lease.Busy:
        return True
    except lease.Gone:
        return False
    finally:
        if own is not None:
            with contextlib.suppress(BlockingIOError):
                lease.hold(own)
    return False


def leased_among(places: Sequence[tuple[str, int | None]]) -> list[bool]:
    """`is_leased` for many; False where the disk refuses the look."""
    found = []
    for place, own in places:
        try:
            found.append(is_leased(place, own))
        except OSError:
            found.append(False)
    return found


def file_digest(path: str, taken: Taken = unheeded) -> str:
    """Our own digest of a file: xxh3-128 (XXH3 specification, Y. Collet)."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ))
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NOREUSE)  # what trainers have in memory stays there
        while count := file.readinto(buffer):
            state.update(buffer[:count])
            taken(count)
    return DIGEST + state.hexdigest()


def sync_shard(path: str, stamp: Stamp, blocks: int) -> int | None:
    """Make a published shard and its name durable; None when it is not there any more. OSError when the disk fails.

    The bytes that a file has allocated then: writing back joins extents, and may free a block that described them. A folder
    has `blocks` as before.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        seen = os.fstat(descriptor)
        if (seen.st_dev, seen.st_ino) != stamp[:2]:
            return None
        if stat.S_ISDIR(seen.st_mode):
            _sync_file_system(descriptor)
        else:
            os.fdatasync(descriptor)
            blocks = os.fstat(descriptor).st_blocks * 512
    finally:
        os.close(descriptor)
    sync_folder(os.path.dirname(path))
    return blocks


def _sync_file_system(descriptor: int) -> None:
    """syncfs(2): one call for the thousands of files of an unpacked archive; reports write errors since Linux 5.8."""
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold(place: str, stamp: Stamp) -> Held:
    """Take the shared lock on a shard that is as the ledger says. Raises `lease.Busy` or `lease.Gone`."""
    descriptor, seen = lease.take(place)
    found = stamp_of(seen)
    same = found[:2] == stamp[:2] if stat.S_ISDIR(seen.st_mode) else found == stamp
    if not same:
        lease.give_back(descriptor)
        raise lease.Gone(place)
    return Held(descriptor, found)
