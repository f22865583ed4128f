"""Server-sent events of the daemon, for asyncio. A feed belongs to no loop, so that a forked child can close it by itself."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

from cachedaemon_client import process, trust
from cachedaemon_client.connection import silent
from cachedaemon_client.feed import PIECE, Told


class Feed(Told):
    """One connection on which nothing but events comes, for one task at a time. It is asked for by `begin`."""

    def __init__(self, path: str, target: str, source: str) -> None:
        """Raises OSError when nobody is there."""
        super().__init__(path, target, source)
        self._coming: asyncio.Future[None] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        process.forkables.add(self)
        try:
            trust.check(path)
            self._socket.connect(path)  # at once, or EAGAIN: a Unix socket's connect never goes on in the background
            self._socket.send(self._request)  # nothing else was sent before: there is room for it
        except BaseException:
            self.drop()
            raise

    async def begin(self, seconds: float) -> None:
        """The daemon's word that events will come, within so many seconds.

        Raises OSError when it does not come or the connection is lost, `CacheError` when the daemon refuses.
        """
        until = time.monotonic() + seconds
        while not self._has_begun:
            if not await self._receive(until):
                raise silent(self._path)

    async def hear(self, seconds: float) -> list[dict[str, Any]]:
        """What has come within so many seconds, at least one event unless they pass. Raises OSError when the connection is lost.

        A call that is cancelled loses nothing: what came is heard by the next one.
        """
        until = time.monotonic() + seconds
        while not (events := self._taken()) and await self._receive(until):
            pass
        return events

    async def _receive(self, until: float) -> bool:
        """Whether something came by then (monotonic seconds)."""
        if await self._is_readable(min(until, self._silent_at) - time.monotonic()):
            self._take(self._socket.recv(PIECE))
            return True
        if time.monotonic() >= self._silent_at:
            raise silent(self._path)
        return False

    async def _is_readable(self, seconds: float) -> bool:
        """Whether there is something to receive within so many seconds. What came while nobody listened is, whatever the clock says."""
        loop = asyncio.get_running_loop()
        number = self._socket.fileno()
        if number < 0:
            raise ConnectionAbortedError("the feed is closed")
        coming = self._coming = loop.create_future()
        loop.add_reader(number, _wake, coming)
        try:
            await asyncio.wait({coming}, timeout=max(0.001, seconds))
        finally:
            self._coming = None
            if self._socket.fileno() == number:
                loop.remove_reader(number)
        return coming.done()

    def close(self) -> None:
        """Hear no more; who is hearing gets an OSError."""
        if self._coming is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            _wake(self._coming)
        self.drop()

    def forked(self) -> None:
        """In a forked child: the connection is the parent's, and so is the loop that may be hearing it."""
        self.drop()

    def drop(self) -> None:
        """Close it where no loop runs: nobody is told."""
        self._coming = None
        number = self._socket.detach()
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        """One that was dropped without `close` leaves no descriptor."""
        if hasattr(self, "_socket"):
            self.drop()


def _wake(coming: asyncio.Future[None]) -> None:
    if not coming.done():
        coming.set_result(None)
