"""The order in which one consumer will want shards, and where in it the consumer is. Pure: no clock, no disk, no await."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence


class Course:
    """Keys in the order of their use; the next use of each, kept as the consumer moves on.

    To make one takes about a microsecond a key: for a long one in a thread.
    """

    def __init__(self, keys: Sequence[str], position: int = 0) -> None:
        self.keys = keys
        self.position: int
        """Index of the next use."""
        self.order = hash(tuple(keys))
        """The same for consumers that follow the same order."""
        self._again = array("q", bytes(8 * len(keys)))
        """For each use, the index of the same key's next one; the number of keys when there is none."""
        self._next: dict[str, int] = {}
        for index in range(len(keys) - 1, -1, -1):
            self._again[index] = self._next.get(keys[index], len(keys))
            self._next[keys[index]] = index
        self.position = 0
        self.move(position)

    def __len__(self) -> int:
        """Uses in all."""
        return len(self.keys)

    def next_use(self, key: str) -> int | None:
        """Index of the next use of a key; None when there is none."""
        return self._next.get(key)

    def again(self, index: int) -> int | None:
        """Index of the use that follows one, of the same key; None when that is the last."""
        found = self._again[index]
        return found if found < len(self.keys) else None

    def move(self, position: int) -> list[str]:
        """Go to another index, mostly a later one; the keys whose next use is another one now."""
        before, self.position = self.position, min(max(0, position), len(self.keys))
        for index in range(before, self.position):
            if (again := self.again(index)) is None:
                del self._next[self.keys[index]]
            else:
                self._next[self.keys[index]] = again
        for index in range(before - 1, self.position - 1, -1):
            self._next[self.keys[index]] = index
        return list(self.keys[min(before, self.position) : max(before, self.position)])

    def ahead(self) -> Iterator[tuple[int, str]]:
        """Uses that are to come, with their indices."""
        for index in range(self.position, len(self.keys)):
            yield index, self.keys[index]
