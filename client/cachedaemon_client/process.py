"""What belongs to this process alone, and what a forked child must do about it.

`flock(2)` belongs to the open file, which a forked child shares. The child closes its copies, so that a lease of its
parent ends with the parent; it never unlocks, since that would end the lease of both. It finds them in its own table of
descriptors, by the flags that only leases are opened with and by the folder they lie in: nothing has to be noted while a
shard is opened, and no fork, whatever another thread is doing at that moment, can hand down a lease that is overlooked.

A fork that Python does not know of (a library's own `fork(2)`) runs no such code in the child. A page that the kernel
wipes in every child tells of it: the child unlocks nothing of its parent's either, and starts anew with its first call to
the daemon. The leases that it inherited end with it, since nothing tells them from its own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import sys
import time
from typing import Protocol
from weakref import WeakSet


class Leaving(Protocol):
    """Something that has a last word to say."""

    def flush(self) -> None:
        """Say it as far as it can be said at once."""

    def farewell(self, deadline: float) -> None:
        """Say the rest, until the deadline (monotonic seconds) at the most, and close."""


class Forkable(Protocol):
    """Something that must start anew in a forked child."""

    def forked(self) -> None:
        """Called in the child, before any other code of it runs."""


LEASED = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a lease is opened. Without O_NONBLOCK a FIFO in a shard's place would stop the reader."""
_MARK = os.O_NOFOLLOW | os.O_NONBLOCK

forkables: WeakSet[Forkable] = WeakSet()
farewells: WeakSet[Leaving] = WeakSet()
"""Closed when the interpreter ends."""
FAREWELL = 1.0
"""Seconds that the last words may take, all together."""
folders: set[str] = set()
"""Cache directories that this process has leased from."""
epoch = [1]
"""One number from 1 to 255, this process's own: each fork counts on. 0: forked behind Python's back."""


def _wiped_on_fork() -> mmap.mmap | list[int]:
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(getattr(mmap, "MADV_WIPEONFORK", 18))
    except OSError:  # before Linux 4.14: only Python's own forks are seen
        return epoch
    page[0] = epoch[0]
    return page


alive = _wiped_on_fork()
"""The same number, or 0 in a child that was forked behind Python's back (madvise(2), MADV_WIPEONFORK)."""


_forks = [0]


def settle() -> None:
    """Called before the daemon is: a child that was forked behind Python's back starts anew."""
    if alive[0] != epoch[0]:
        epoch[0] = alive[0]
        _begin_anew()


def _in_child() -> None:
    _forks[0] += 1
    epoch[0] = alive[0] = _forks[0] % 255 + 1
    if folders:
        _close_leases()
    _begin_anew()


def _begin_anew() -> None:
    for one in list(forkables):
        one.forked()


def _close_leases() -> None:
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):  # the listing's own, or one that is no file
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & _MARK == _MARK and _is_leased(descriptor):
                os.close(descriptor)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # no /proc: the numbers that are usual
        return list(range(3, 4096))


def _is_leased(descriptor: int) -> bool:
    """Whether it lies in a cache directory; published, in trash or deleted already."""
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc: nobody else opens regular files so
        return True
    return any(place.startswith(folder) for folder in folders)


os.register_at_fork(after_in_child=_in_child)


_promised = [0]
"""The process whose end by multiprocessing is known to us."""


def bid_farewell_in_workers() -> None:
    """Have the last words said at the end of a forked worker too: multiprocessing ends it by `os._exit`, without atexit.

    Whoever started one has `multiprocessing.util` loaded; nobody else pays for it.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if util is None or multiprocessing is None or multiprocessing.parent_process() is None:
        return
    if _promised[0] != os.getpid():
        _promised[0] = os.getpid()
        util.Finalize(None, _farewell, exitpriority=0)


@atexit.register
def _farewell() -> None:
    """All speak before any is waited for: what waits for one daemon that is silent takes nothing from the others."""
    settle()
    deadline, leaving = time.monotonic() + FAREWELL, list(farewells)
    for one in leaving:
        with contextlib.suppress(Exception):  # the interpreter ends either way
            one.flush()
    for one in leaving:
        with contextlib.suppress(Exception):
            one.farewell(deadline)
