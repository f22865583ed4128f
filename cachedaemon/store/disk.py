"""Single steps on the disk: seal, publish, hold, evict, sync. All of them block; none runs on the loop.

`publish`, `hold`, `evict` and `probe` of one cache run in one thread, so that none meets another half-way.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from cachedaemon.errors import SHORT, NoSpace, Shortage
from cachedaemon.model import Disk, Stamp, Taken, unheeded
from cachedaemon.store.layout import Modes
from cachedaemon_client import lease

DIGEST = "xxh3-128:"
READ = 1 << 20
"""Bytes that are read at once."""


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


def unlink(path: str) -> None:
    """Remove a file that may have gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


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
    buffer = memoryview(bytearray(READ))
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
