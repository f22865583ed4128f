"""The lease protocol: the kernel keeps the leases (flock(2)). Both sides, reader and daemon, use this module.

A lease is a shared flock on a published file or folder. After the lock is taken, the inode of the descriptor is
compared with that of the path: the daemon renames what it evicts while it holds the exclusive lock, so a reader whose
lock came too late sees another inode, or none. An inode that is held open is never reused, so the comparison is exact.
Locks are never converted: a failed conversion loses the old lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from os import close, fstat, lstat
from os import open as open_file

from cachedaemon_client.process import LEASED

_SHARED = LOCK_SH | LOCK_NB
_EXCLUSIVE = LOCK_EX | LOCK_NB
_SHARD = stat.S_IFREG | stat.S_IFDIR
LOOK = 0.0002
"""Seconds between tries to hold a plan's file."""
LOOKS = 50
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""What opening a shard's path says when no shard is there: nothing, a link, a socket."""


class Busy(Exception):
    """Somebody holds a lock that does not go with the one wanted."""


class Gone(Exception):
    """Nothing that can be leased is published at the path, or no longer what was opened."""


def take(path: str, folder: int | None = None, how: int = _SHARED) -> tuple[int, os.stat_result]:
    """Lease what is published at `path`, below an open folder if one is given: its descriptor and `fstat`.

    Raises `Busy` or `Gone`; OSError when the path cannot be opened for another reason. Fields of `fstat` are read by
    number (0 is the mode, 1 the inode, 2 the device): this is every hit.
    """
    try:
        descriptor = open_file(path, LEASED, dir_fd=folder)
    except OSError as cause:
        if cause.errno in _NOTHING:
            raise Gone(path) from None
        raise
    try:
        flock(descriptor, how)
        opened = fstat(descriptor)
        published = lstat(path, dir_fd=folder)
    except BlockingIOError:
        give_back(descriptor)
        raise Busy(path) from None
    except FileNotFoundError:
        give_back(descriptor)
        raise Gone(path) from None
    except BaseException:
        give_back(descriptor)
        raise
    if published[1] == opened[1] and published[2] == opened[2] and opened[0] & _SHARD:
        return descriptor, opened
    give_back(descriptor)
    raise Gone(path)


def take_exclusive(path: str) -> tuple[int, os.stat_result]:
    """Lock `path` against every reader, to evict it. Raises `Busy` or `Gone`."""
    return take(path, None, _EXCLUSIVE)


def hold(descriptor: int) -> None:
    """Take the shared lock on a descriptor that nobody else can have yet (a file in staging)."""
    flock(descriptor, _SHARED)


def let_go(descriptor: int) -> None:
    """Give up the lock, keep the descriptor."""
    flock(descriptor, LOCK_UN)


def give_back(descriptor: int) -> None:
    """End a lease that this process took. Unlocks first: a child that was forked meanwhile may share the open file."""
    try:
        flock(descriptor, LOCK_UN)
    finally:
        close(descriptor)


def hold_plan(path: str) -> int:
    """Hold a plan's file, so that the plan ends with this process. Raises `Gone` when the plan has ended, or `Busy`.

    The daemon looks whether a plan is held by locking its file for a moment, which is waited out.
    """
    for _ in range(LOOKS):
        with contextlib.suppress(Busy):
            return take(path)[0]
        time.sleep(LOOK)
    raise Busy(path)
