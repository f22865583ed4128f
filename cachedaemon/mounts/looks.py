"""What looks at a watched folder come to: which files are complete, and which have gone. No clock, no disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

UNFINISHED = (".part", ".partial", ".filepart", ".tmp", ".temp", ".crdownload", ".download", ".aria2", ".ytdl")
"""How downloaders end the name of what they have not finished (case ignored)."""
_ARIA2 = ".aria2"
"""aria2 writes under the final name, and a file of this ending lies beside it until all is there."""


class Identity(NamedTuple):
    """Which file, and which state of it."""

    device: int
    inode: int
    mtime_ns: int
    size: int


class Look(NamedTuple):
    """What one look has found: complete files in order of arrival, and keys that are there no more."""

    complete: list[tuple[str, Identity]]
    gone: list[str]


def is_unfinished(key: str) -> bool:
    """Whether a name says that it is not for readers: hidden, in a hidden folder, or with the ending of a part."""
    return any(part.startswith(".") for part in key.split("/")) or key.lower().endswith(UNFINISHED)


class Looks:
    """The looks at one folder, of which each file in each of its states is told once.

    A file is complete when it has been seen in the same state for `settle` seconds by this machine's clock, whatever the
    server's says. Of the first look, one that was last changed so long ago is complete at once.
    """

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._told: dict[str, Identity] = {}
        self._growing: dict[str, tuple[Identity, float]] = {}
        """Files that are not complete yet, and since when (monotonic seconds) they are as they are."""
        self._is_first = True

    def take(self, seen: dict[str, Identity], now: float, wall: float) -> Look:
        """What is new; `now` in monotonic seconds, `wall` in seconds since 1970.

        A folder without any file says nothing: what is left of an unmounted file system looks just so.
        """
        if not seen:
            return Look([], [])
        gone = [key for key in self._told if key not in seen]
        for key in gone:
            del self._told[key]
        self._growing = dict(self._changed(seen, now))
        complete = sorted(self._settled(now, wall), key=lambda key: (self._since(key), seen[key].mtime_ns, key))
        for key in complete:
            self._told[key], _ = self._growing.pop(key)
        self._is_first = False
        return Look([(key, seen[key]) for key in complete], gone)

    def _changed(self, seen: dict[str, Identity], now: float) -> Iterator[tuple[str, tuple[Identity, float]]]:
        for key, identity in seen.items():
            if self._told.get(key) != identity and key + _ARIA2 not in seen and not is_unfinished(key):
                before = self._growing.get(key)
                yield key, before if before is not None and before[0] == identity else (identity, now)

    def _settled(self, now: float, wall: float) -> list[str]:
        return [
            key
            for key, (identity, since) in self._growing.items()
            if now - since >= self._settle or (self._is_first and wall - identity.mtime_ns / 1e9 >= self._settle)
        ]

    def _since(self, key: str) -> float:
        return self._growing[key][1]

    def due(self, now: float) -> float:
        """Seconds until a file that grows may be complete; infinite when none does."""
        first = min((since for _, since in self._growing.values()), default=float("inf"))
        return max(0.0, first + self._settle - now)
