"""The way in: connections are taken as long as there are descriptors for them and for what they ask for, and wait outside otherwise.

The loops' own servers take what they cannot keep: asyncio tells of it with a traceback each time, libuv hangs up on whoever finds no
descriptor left, and where another thread took the one that it kept for this, uvloop closes the listening socket for good.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from cachedaemon.server.connection import Runner

AT_ONCE = 64
"""Connections that are taken before the loop goes on with other work."""
PAUSE = 0.1
"""Seconds until it is seen whether there is room for more."""


class Door(web.BaseSite):
    """One listening socket, which is closed with it.

    `full` is told why nobody is let in, each time that it is looked at, and None once nobody waits any more.
    """

    __slots__ = ("_coming", "_full", "_guests", "_link", "_loop", "_timer", "_waited")

    def __init__(self, runner: Runner, link: socket.socket, full: Callable[[str | None], object]) -> None:
        super().__init__(runner)
        self._guests = runner.guests
        self._link = link
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waited = False

    @property
    def name(self) -> str:
        """Where it is."""
        return f"socket {self._link.getsockname()}"

    async def start(self) -> None:
        """Let in whoever comes."""
        await super().start()
        self._open()

    async def stop(self) -> None:
        """Let in nobody any more. Who was let in just now is served."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._link)
        self._link.close()
        if self._coming:
            await asyncio.wait(self._coming)
        await super().stop()

    def _open(self) -> None:
        self._timer = None
        self._loop.add_reader(self._link, self._let_in)

    def _pause(self, why: str) -> None:
        self._waited = True
        self._full(why)
        self._loop.remove_reader(self._link)
        self._timer = self._loop.call_later(PAUSE, self._open)

    def _let_in(self) -> None:
        for _ in range(AT_ONCE):
            if self._guests.are_all_here(len(self._coming)):
                return self._pause(self._guests.told)
            try:
                link, _ = self._link.accept()
            except BlockingIOError:
                return self._none_wait()
            except ConnectionAbortedError:
                continue
            except OSError as cause:  # no descriptor, no memory: it passes
                return self._pause(f"no more connections can be taken: {cause.strerror}")
            self._take(link)
        return None

    def _none_wait(self) -> None:
        if self._waited:
            self._waited = False
            self._full(None)

    def _take(self, link: socket.socket) -> None:
        link.setblocking(False)
        task = self._loop.create_task(self._serve(link))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _serve(self, link: socket.socket) -> None:
        assert self._runner.server is not None
        try:
            await self._loop.connect_accepted_socket(self._runner.server, link)
        except OSError:  # it has gone again
            link.close()
