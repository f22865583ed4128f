"""Shards that made room for others lately: one that comes back soon tells of a cap that is too small.

As the kernel's refaults do (mm/workingset.c): a shard that returns before as many others have gone as are here would
still be here, had there been room for twice as many.
"""

from __future__ import annotations

from cachedaemon.model import Ref


class Ghosts:
    """Names only, in the order of going, and no more of them than there were shards."""

    def __init__(self) -> None:
        self._gone: dict[Ref, None] = {}

    def went(self, ref: Ref, here: int) -> None:
        """A shard went to make room, and `here` shards are left: without it."""
        self._gone.pop(ref, None)
        self._gone[ref] = None
        while len(self._gone) > here + 1:
            del self._gone[next(iter(self._gone))]

    def came(self, ref: Ref) -> bool:
        """A shard was fetched; whether it is one of those that went."""
        return self._gone.pop(ref, False) is None
