"""Live progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cachedaemon.demo.trainer import Told

EVERY = 2.0
"""Seconds between two plain lines."""


def say(console: Console, *paragraphs: str) -> None:
    """Print paragraphs, broken between words where the terminal is too narrow."""
    for paragraph in paragraphs:
        console.print(paragraph, highlight=False, markup=False)


class Line:
    """How far one way to read is."""

    def __init__(self, console: Console, title: str, total: int, progress: Progress | None) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._progress = progress
        self._task = progress.add_task(title, total=total, note="") if progress else None
        self._next = time.monotonic() + EVERY

    def show(self, told: list[Told], note: str) -> None:
        """Show it now, or soon."""
        samples = sum(one.samples for one in told)
        seconds = max(one.seconds for one in told)
        words = f"{samples / seconds if seconds else 0:5.0f} samples/s{note}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=samples, note=words)
        elif time.monotonic() >= self._next or (samples == self._total and self._next < float("inf")):
            self._next = time.monotonic() + (EVERY if samples < self._total else float("inf"))
            self._console.print(f"  {self._title}: {samples} of {self._total} samples, {words.strip()}", soft_wrap=True)


@contextmanager
def line(console: Console, title: str, total: int) -> Iterator[Line]:
    """A line of progress; the bar stays when the block ends."""
    if not console.is_terminal:
        yield Line(console, title, total, None)
        return
    columns = (  # 80 characters with the longest note
        TextColumn("  {task.description:<22}"),
        BarColumn(10),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Line(console, title, total, progress)
