"""Progress on standard error, only where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cachedaemon.cli.words import size
from cachedaemon_client.errors import CacheError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cachedaemon.cli.coming import Coming

LOOK = 0.2
"""Seconds between two looks at what is under way."""


class Bar:
    """Progress over a number of keys, moved by their bytes; silent where nobody watches."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task
        self._lock = threading.Lock()
        self._here = 0
        self._bytes = 0
        self._shown = 0.0

    @property
    def is_seen(self) -> bool:
        """Whether anybody watches."""
        return self._progress is not None

    def put(self, line: str) -> None:
        """Print a line on standard output, above the bar."""
        if self._progress is not None and sys.stdout.isatty():
            self._progress.stop()
        print(line, flush=True)  # noqa: T201 - the command's output
        if self._progress is not None and sys.stdout.isatty():
            self._progress.start()

    def done(self, count: int) -> None:
        """One more key is here, with so many bytes."""
        with self._lock:
            self._here, self._bytes = self._here + 1, self._bytes + count
            self._show(self._here, self._bytes, pulsing=False)

    def coming(self, coming: Coming) -> None:
        """So much of the keys that are not here yet has come."""
        with self._lock:
            self._show(self._here + coming.shards, self._bytes + coming.bytes, pulsing=coming.unsized)

    def at(self, here: int, count: int, coming: Coming) -> None:
        """So many keys are here, and so many bytes, those under way among them."""
        with self._lock:
            self._show(here + coming.shards, count, pulsing=coming.unsized)

    def _show(self, shards: float, count: int, *, pulsing: bool) -> None:
        """Never backwards: what came ahead of its turn is under way no more, and not yet counted."""
        if self._progress is not None and self._task is not None:
            self._shown = max(self._shown, shards)
            self._progress.update(self._task, completed=self._shown, note=size(count), pulsing=pulsing)


@contextmanager
def of_keys(total: int) -> Iterator[Bar]:
    """A bar over `total` keys, gone when the block ends."""
    if not sys.stderr.isatty():
        yield Bar(None, None)
        return
    from cachedaemon.cli.drawn import drawn  # noqa: PLC0415 - rich is slow to load: only where somebody watches

    progress = drawn()
    with progress:
        yield Bar(progress, progress.add_task("", total=total, note="", pulsing=False))


@contextmanager
def watching(total: int, look: Callable[[], Coming]) -> Iterator[Bar]:
    """A bar that moves by itself while the block waits for shards: `look` is called now and then, in a thread."""
    with of_keys(total) as bar:
        if not bar.is_seen:
            yield bar
            return
        ended = threading.Event()
        thread = threading.Thread(target=_watch, args=(bar, look, ended), daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            ended.set()
            thread.join(LOOK)


def _watch(bar: Bar, look: Callable[[], Coming], ended: threading.Event) -> None:
    while not ended.wait(LOOK):
        with contextlib.suppress(CacheError):  # a daemon that restarts is waited for by whoever wants the shards
            bar.coming(look())
