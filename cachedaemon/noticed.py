"""Files that have appeared in watched folders, told to whoever listens: those that lie there, and each new one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachedaemon.errors import BadRequest
from cachedaemon.events import Event, Events
from cachedaemon.model import Ref

ENDED = "ended"
"""The event after which a listener hears nothing more: the source's settings have changed, or it is no more."""


@dataclass(slots=True)
class _Folder:
    files: dict[str, Event] = field(default_factory=dict)
    """`appeared` of each file that is there, in order of arrival."""
    away: Event | None = None
    queues: set[asyncio.Queue[Event]] = field(default_factory=set)


class Noticed:
    """All watched folders, by source. Who listens to one loses nothing, however slow: its queue has no bound but theirs."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._folders: dict[str, _Folder] = {}

    def begin(self, source: str) -> None:
        """Its folder is watched from now on."""
        self._folders.setdefault(source, _Folder())

    def end(self, source: str) -> None:
        """Its folder is watched no more; whoever listens hears `ended` and nothing more."""
        folder = self._folders.pop(source, None)
        if folder is not None:
            self._tell(folder, Event(ENDED, Ref(source, "*"), {}))

    def knows(self, source: str, key: str) -> bool:
        """Whether this key has appeared and not gone."""
        return key in self._folders[source].files

    def appeared(self, source: str, key: str, size: int, version: str) -> None:
        """A file is complete; the same version of it is told once."""
        folder = self._folders[source]
        event = Event("appeared", Ref(source, key), {"size": size, "version": version})
        if folder.files.get(key) == event:
            return
        folder.files.pop(key, None)
        folder.files[key] = event
        self._events.tell(event.name, event.ref, **event.details)
        self._tell(folder, event)

    def gone(self, source: str, keys: list[str]) -> None:
        """These files are there no more. Nobody is told: what the cache has of them stays."""
        for key in keys:
            self._folders[source].files.pop(key, None)

    def away(self, source: str, message: str) -> bool:
        """The folder cannot be read. Whether that is news."""
        folder = self._folders[source]
        event = Event("away", Ref(source, "*"), {"message": message})
        is_news, folder.away = folder.away != event, event
        if is_news:
            self._tell(folder, event)
        return is_news

    def back(self, source: str) -> bool:
        """The folder can be read. Whether that is news."""
        folder = self._folders[source]
        was, folder.away = folder.away, None
        if was is not None:
            self._tell(folder, Event("back", Ref(source, "*"), {}))
        return was is not None

    @staticmethod
    def _tell(folder: _Folder, event: Event) -> None:
        for queue in folder.queues:
            queue.put_nowait(event)

    @contextmanager
    def listen(self, source: str) -> Iterator[asyncio.Queue[Event]]:
        """`appeared` of what lies in the folder, then of what comes; `away` and `back` when it cannot be read, and can again."""
        folder = self._folders.get(source)
        if folder is None:
            raise BadRequest(f"source {source}: its folder is not watched: allowed are sources with watch = true")
        queue: asyncio.Queue[Event] = asyncio.Queue()
        for event in [*folder.files.values(), *([folder.away] if folder.away else [])]:
            queue.put_nowait(event)
        folder.queues.add(queue)
        try:
            yield queue
        finally:
            folder.queues.discard(queue)
