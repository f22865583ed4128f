"""Waiting for a state, bounded; and what /proc says of processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def until(state: Callable[[], T], seconds: float = 10.0, what: str = "") -> T:
    """The first true value of `state()`; AssertionError naming `what` when there is none within `seconds`."""
    end = time.monotonic() + seconds
    step = 0.001
    while not (value := state()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what or getattr(state, '__name__', state)}")
        time.sleep(step)
        step = min(step * 1.5, 0.05)
    return value


def processes() -> Iterator[tuple[int, int, int, str]]:
    """(pid, parent, session, state letter) of every process (proc(5), stat)."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The command may hold blanks and brackets; the fields follow the last bracket.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(folder.name), int(fields[1]), int(fields[3]), fields[0]


def family(pid: int) -> list[int]:
    """Living processes that descend from `pid` or are in its session, without itself.

    A child whose parent died is handed on to another; its session tells where it came from.
    """
    rows = [row for row in processes() if row[3] not in "ZX" and row[0] != pid]
    found = {child for child, _, session, _ in rows if session == pid}
    while more := {child for child, parent, _, _ in rows if parent in found | {pid}} - found:
        found |= more
    return sorted(found)


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread has stopped: one on another processor runs on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: set(_threads(pid)) <= set("TZX"), 10, f"stop of all threads of {pid}")


def thaw(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)


def _threads(pid: int) -> Iterator[str]:
    """State letter of each thread of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield (task / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
