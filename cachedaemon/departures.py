"""What has left the index and takes room still: chosen to go, or in trash. Pure: no clock, no disk, no await.

A shard that is to go counts as a shard and with its bytes until it has been renamed, what is in trash with its bytes until
they are deleted. Both come back without anybody's doing, except what is stuck.
"""

from __future__ import annotations

from cachedaemon.entries import Entry, Short
from cachedaemon.model import Need


class Departures:
    """Shards that are to go, and the room of what is in trash."""

    def __init__(self) -> None:
        self._leaving: set[Entry] = set()
        self._leaving_bytes = 0
        self._trash = Need(0, 0)
        self._stuck = Need(0, 0)
        """The part of trash that cannot be deleted at present."""

    def __len__(self) -> int:
        """Shards that are to go."""
        return len(self._leaving)

    @property
    def bytes(self) -> int:
        """Allocated bytes of all."""
        return self._leaving_bytes + self._trash.bytes

    def leaving(self) -> list[Entry]:
        """Shards that are to go."""
        return list(self._leaving)

    def add(self, entry: Entry) -> None:
        """A shard has left the index and is to go."""
        self._leaving.add(entry)
        self._leaving_bytes += entry.blocks

    def end(self, entry: Entry) -> bool:
        """One way or the other a shard is not leaving any more; False when it was not (the folder was removed)."""
        if entry not in self._leaving:
            return False
        self._leaving.discard(entry)
        self._leaving_bytes -= entry.blocks
        return True

    def are_coming_back(self) -> bool:
        """Whether room comes back without anybody's doing."""
        return bool(self._leaving) or self._trash.bytes > self._stuck.bytes

    def relieve(self, short: Short) -> None:
        """Take what comes back without anybody's doing from what is missing."""
        for entry in self._leaving:
            short.take(entry)
        short.bytes -= self._trash.bytes - self._stuck.bytes
        short.inodes -= self._trash.inodes - self._stuck.inodes

    def leftover(self, room: Need) -> None:
        """Something is in trash."""
        self._trash = _sum(self._trash, room)

    def deleted(self, gone: Need) -> None:
        """Room in trash is free again."""
        self._trash = _less(self._trash, gone)

    def stuck(self, room: Need) -> None:
        """Something in trash cannot be deleted at present."""
        self._stuck = _sum(self._stuck, room)

    def unstuck(self, room: Need) -> None:
        """Its deletion is tried again."""
        self._stuck = _less(self._stuck, room)

    def empty_trash(self) -> None:
        """The folder was removed."""
        self._trash = self._stuck = Need(0, 0)


def _sum(one: Need, other: Need) -> Need:
    return Need(one.bytes + other.bytes, one.inodes + other.inodes)


def _less(one: Need, other: Need) -> Need:
    """Never below nothing: after the folder was removed, what was in it may still be reported as deleted."""
    return Need(max(0, one.bytes - other.bytes), max(0, one.inodes - other.inodes))
