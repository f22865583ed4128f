"""What belongs to this process alone, and what a forked child must do about it.

`flock(2)` belongs to the open file, which a forked child shares. The child closes its copies, so that a lease of its
parent ends with the parent; it never unlocks, since that would end the lease of both. It finds them in its own table of
descriptors, by the flags that only leases are opened with and by the folder they lie in: nothing has to be noted while a
shard is opened, and no fork, whatever another thread is doing at that moment, can hand down a lease that is overlooked.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
from typing import Protocol
from weakref import WeakSet


class Closable(Protocol):
    """Something that has a last word to say."""

    def close(self) -> None:
        """Say it, in bounded time."""


class Forkable(Protocol):
    """Something that must start anew in a forked child."""

    def forked(self) -> None:
        """Called in the child, before any other code of it runs."""


LEASED = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a lease is opened. Without O_NONBLOCK a FIFO in a shard's place would stop the reader."""
_MARK = os.O_NOFOLLOW | os.O_NONBLOCK

forkables: WeakSet[Forkable] = WeakSet()
farewells: WeakSet[Closable] = WeakSet()
"""Closed when the interpreter ends."""
folders: set[str] = set()
"""Cache directories that this process has leased from."""
epoch = [0]
"""One number: how many forks lie between this process and the one that first imported this module."""


def _in_child() -> None:
    epoch[0] += 1
    if folders:
        _close_leases()
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


@atexit.register
def _farewell() -> None:
    for one in list(farewells):
        with contextlib.suppress(Exception):  # the interpreter ends either way
            one.close()
