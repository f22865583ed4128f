"""What belongs to this process alone: descriptors that a forked child must close, never unlock.

`flock(2)` belongs to the open file, which a forked child shares. The child closes its copies here, so that the lease
of its parent ends with the parent; it never unlocks, since that would end the lease of both. `guard` is held while a
descriptor is opened and noted, and by every fork: no child can inherit one that nobody noted. It is re-entrant, since
a signal handler may open a shard in the middle of an open.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
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


guard = threading.RLock()
held: set[int] = set()
"""Descriptors of this process that carry a lease or a plan."""
forkables: WeakSet[Forkable] = WeakSet()

farewells: WeakSet[Closable] = WeakSet()
"""Closed when the interpreter ends."""


class _Epoch:
    """Counts the forks that lie between this process and the one that first imported this module."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


epoch = _Epoch()


def _in_child() -> None:
    epoch.number += 1
    for descriptor in held:
        with contextlib.suppress(OSError):  # closed by the thread that forked, in a signal handler
            os.close(descriptor)
    held.clear()
    for one in list(forkables):
        one.forked()
    guard.release()


os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=_in_child)


@atexit.register
def _farewell() -> None:
    for one in list(farewells):
        with contextlib.suppress(Exception):  # the interpreter ends either way
            one.close()
