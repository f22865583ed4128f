"""What happens in the cache, told to whoever listens. A listener that is too slow loses the oldest events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cachedaemon.model import Ref

KEPT = 10_000
"""Events that a slow listener may be behind."""


@dataclass(frozen=True, slots=True)
class Event:
    """`ready`, `evicted` or `failed`, and the shard."""

    name: str
    ref: Ref
    details: dict[str, str | int]


class Events:
    """Listeners of one daemon."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Event]] = set()

    def tell(self, name: str, ref: Ref, **details: str | int) -> None:
        """Tell all listeners, now."""
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(Event(name, ref, details))

    @contextmanager
    def listen(self) -> Iterator[asyncio.Queue[Event]]:
        """Events from now on."""
        queue: asyncio.Queue[Event] = asyncio.Queue(KEPT)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
