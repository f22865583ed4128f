"""What `kills.py` counts: what came out of all kills, and what is left of them when nobody reads."""

from __future__ import annotations

import collections
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kills_readers import Data, is_whole
from side_by_side import Daemon, until

from tests.fakes import disk

COUNTS = ("wrong bytes", "failed reads", "stale leases", "leaked bytes", "leaked plan files", "other complaints")
PATIENCE = 60.0
"""Seconds that something may take which does take a moment, on a machine that is busy."""


@dataclass
class Tally:
    """What came out."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    met: collections.Counter[str] = field(default_factory=collections.Counter)
    """What the daemon was in the middle of, as its cache directory showed afterwards."""
    found: collections.Counter[str] = field(default_factory=collections.Counter)
    details: list[str] = field(default_factory=list)
    reads: int = 0
    by_all: int = 0
    """Reads, by those who were killed too."""

    def add(self, what: str, count: int, detail: object) -> None:
        """Something that should not be."""
        if count:
            self.found[what] += count
            self.details.append(f"{what}: {detail}")

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing of that."""
        return not self.found.total()


def patiently(look: Callable[[], list[str]], seconds: float = 20.0) -> list[str]:
    """What is still found after so many seconds; nothing as soon as there is nothing."""
    found: list[str] = []

    def is_clean() -> bool:
        found[:] = look()
        return not found

    with contextlib.suppress(AssertionError):
        until(is_clean, seconds)
    return found


class Audit:
    """Counts what is left when nobody reads."""

    def __init__(self, daemon: Daemon, data: Data, notes: Path, tally: Tally) -> None:
        """`notes`: the folder to which readers write."""
        self.daemon, self.data, self.notes, self.tally = daemon, data, notes, tally

    def all(self) -> None:
        """Everything; the daemon answers, and no reader is under way."""
        until(lambda: not self._under_way(), PATIENCE, "the end of what is under way")
        self._count("stale leases", patiently(self._locked))
        self._count("leaked plan files", patiently(self._plans))
        self._bytes()
        wrong = [name for name in disk.published(self.daemon.cache) if not self._is_whole(name)]
        self._count("wrong bytes", wrong)

    def _count(self, what: str, found: list[str]) -> None:
        self.tally.add(what, len(found), ", ".join(found))

    def _under_way(self) -> bool:
        said = self.daemon.status()
        return bool(said["fetches"] or said["waiters"])

    def _locked(self) -> list[str]:
        """Shards that somebody holds by a lock, and those that the daemon calls leased."""
        held = disk.leased(self.daemon.cache)
        return held + [f"{one['source']}/{one['key']} (leased)" for one in self.daemon.shards() if one["leased"]]

    def _plans(self) -> list[str]:
        """Plans in force, and files of none. One whose owner was killed before it had the file lives for 10 minutes."""
        noted = self.notes / "plans"
        owned = set(noted.read_text().split()) if noted.exists() else set()
        running = {plan["id"] for plan in self.daemon.status()["plans"]}
        return sorted((running & owned) | (set(os.listdir(self.daemon.cache / "plans")) - running))

    def _bytes(self) -> None:
        """What the disk has and the daemon does not know, or will not remove; and disagreements of any other kind."""
        problems = patiently(self.daemon.problems)
        if problems:
            areas = [self.daemon.cache / area for area in ("staging", "trash", "suspect")]
            lost = disk.usage(self.daemon.cache) - self.daemon.status()["cache"]["bytes"]
            self.tally.add("leaked bytes", max(abs(lost), disk.blocks(*areas)), "; ".join(problems))
            self.tally.add("other complaints", len(problems), "see above")

    def _is_whole(self, name: str) -> bool:
        source, key = name.split("/")
        return is_whole(self.data, source, key, self.daemon.cache / "shards" / name)

    def last(self) -> None:
        """What the readers and the daemons have written."""
        self.tally.by_all = (self.notes / "reads").stat().st_size
        noted = self.notes / "wrong"
        for line in noted.read_text().splitlines() if noted.exists() else ():
            said = json.loads(line)
            self.tally.add({"wrong bytes": "wrong bytes"}.get(said["what"], "failed reads"), 1, line)
        log = self.daemon.log
        for word in ("Traceback", "is not the daemon's", "never retrieved"):
            self.tally.add("other complaints", log.count(word), f"{word!r} in the log: {_around(log, word)}")


def _around(log: str, word: str) -> str:
    at = log.find(word)
    return log[max(0, at - 300) : at + 1500] if at >= 0 else ""
