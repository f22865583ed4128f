"""Progress on standard error, only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cachedaemon.cli.words import plain

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Progress over a number of keys; silent where nobody watches."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def put(self, line: str) -> None:
        """Print a line on standard output, above the bar."""
        if self._progress is not None and sys.stdout.isatty():
            self._progress.stop()
        print(line, flush=True)  # noqa: T201 - the command's output
        if self._progress is not None and sys.stdout.isatty():
            self._progress.start()

    def done(self, key: str) -> None:
        """One more key is here."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, note=plain(key))

    def at(self, count: int, note: str) -> None:
        """So many keys are here."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=count, note=note)


@contextmanager
def of_keys(total: int) -> Iterator[Bar]:
    """A bar over `total` keys, gone when the block ends."""
    if not sys.stderr.isatty():
        yield Bar(None, None)
        return
    from rich.console import Console  # noqa: PLC0415 - only where somebody watches
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    shown = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}", markup=False))
    # Standard output is not redirected: it may be a pipe that wants the paths.
    progress = Progress(*shown, console=Console(stderr=True), transient=True, redirect_stdout=False)
    with progress:
        yield Bar(progress, progress.add_task("", total=total, note=""))
