"""Events of a folder by inotify(7), as far as they say that a look is worth while."""

from __future__ import annotations

import os
import warnings
from threading import Event

from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.inotify import InotifyObserver

_WANTED: list[type[FileSystemEvent]] = [
    FileClosedEvent,
    FileMovedEvent,
    FileCreatedEvent,
    DirCreatedEvent,
    DirMovedEvent,
]
"""Who only reads the folder stirs nothing."""

# It tells of a folder that it meets twice, as it comes and as it looks through the one above: nothing is wrong then.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, module=r"watchdog\.")


class _Handler(FileSystemEventHandler):
    def __init__(self, stirred: Event) -> None:
        self._stirred = stirred

    def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002 - which one makes no difference
        """Note that something happened."""
        self._stirred.set()


class Stirs:
    """Sets `stirred` whenever something happens below a folder, while it is subscribed to."""

    def __init__(self, top: str, stirred: Event) -> None:
        self._top = top
        self._handler = _Handler(stirred)
        self._observer: InotifyObserver | None = None
        self._of: tuple[int, int] | None = None

    def follow(self) -> None:
        """Be subscribed to the folder that is there now.

        Raises OSError: ENOSPC or EMFILE when this user's watches or instances are used up, others when the folder is away.
        """
        seen = os.stat(self._top)
        if self._of == (seen.st_dev, seen.st_ino):
            return
        self.leave()
        observer = InotifyObserver()
        try:
            observer.schedule(self._handler, self._top, recursive=True, event_filter=_WANTED)
            observer.start()
        except BaseException:
            observer.on_thread_stop()  # it never ran as a thread, and has an instance all the same
            raise
        self._observer, self._of = observer, (seen.st_dev, seen.st_ino)

    def leave(self) -> None:
        """Be subscribed to none."""
        if self._observer is not None:
            self._observer.stop()
        self._observer = self._of = None
