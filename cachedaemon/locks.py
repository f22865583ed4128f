"""Who holds a lock, as /proc/locks says (proc_locks(5)). Reading it stops every flock on the host, so it is read rarely."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from cachedaemon.model import Stamp

APART = 10.0
"""Seconds between two looks."""


class Holders:
    """The last look at the locks of this host."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._look: asyncio.Future[list[str]] | None = None

    async def of(self, path: str, stamp: Stamp) -> str:
        """Who locks a shard exclusively, in words."""
        now = time.monotonic()
        if self._look is None or now - self._looked >= APART:
            self._looked = now
            self._look = asyncio.ensure_future(asyncio.to_thread(_read))
        lines = await asyncio.shield(self._look)  # one look for all who ask meanwhile, and none is cancelled with one
        found = [pid for kind, pid, inode in _flocks(lines) if kind == "WRITE" and inode == stamp.inode]
        who = f"pid {found[0]}" if found else "a process that is not known"
        return f"{who} holds an exclusive lock on {os.path.basename(path)}; readers must take shared ones"


def shared() -> dict[int, list[int]]:
    """Pids of those that hold a shared flock, by inode. One look at the locks of the whole host, in this thread."""
    found: dict[int, list[int]] = {}
    for kind, pid, inode in _flocks(_read()):
        if kind == "READ":
            found.setdefault(inode, []).append(pid)
    return found


def _read() -> list[str]:
    try:
        return Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []


def _flocks(lines: list[str]) -> list[tuple[str, int, int]]:
    """Kind, pid and inode of every flock: `1: FLOCK ADVISORY WRITE 123 fd:00:4711 0 EOF`."""
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK":
            found.append((fields[3], int(fields[4]), int(fields[5].rsplit(":", 1)[1])))
    return found
