"""Where the daemon lets people in: its applications, each at its sockets, and the one that clients find by its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from socket import socket

from aiohttp import web

from cachedaemon.errors import StartError
from cachedaemon.listen import Listener, Passed
from cachedaemon.server.connection import Runner
from cachedaemon.server.door import Door
from cachedaemon.store.trouble import Trouble

log = logging.getLogger(__name__)

FAREWELL = 2.0
"""Seconds that answers under way may take after everything else has ended."""
LOOK_AT_SOCKET = 5.0
"""Seconds between two looks whether the socket has its name."""


class Entrances:
    """All of them, from the first that is opened until nobody is let in any more and the last answer is out."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._runners: list[Runner] = []
        self._shut = False

    async def open(self, app: web.Application, links: Sequence[socket]) -> Runner:
        """Serve an application at these sockets."""
        runner = Runner(app, handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL)
        self._runners.append(runner)
        await runner.setup()
        for link in links:
            await Door(runner, link, self._nobody_let_in).start()
        return runner

    async def keep(self, listener: Listener | Passed, runner: Runner) -> None:
        """Clients find the daemon by the socket's name: where somebody has removed it, it is made anew. For ever."""
        while True:
            await asyncio.sleep(LOOK_AT_SOCKET)
            if await asyncio.to_thread(listener.is_gone):
                await self._open_again(listener, runner)
            else:
                self._trouble.over("socket")

    async def _open_again(self, listener: Listener | Passed, runner: Runner) -> None:
        """Whoever waits at the one without a name is let in as well."""
        try:
            link = await asyncio.to_thread(listener.bind)
        except StartError as cause:
            if self._trouble.report("socket", str(cause)):
                log.error("%s", cause)  # noqa: TRY400
            return
        if self._shut:
            link.close()
            return
        log.warning("the socket %s was removed by somebody: it is made anew", listener.path)
        await Door(runner, link, self._nobody_let_in).start()

    def _nobody_let_in(self, why: str | None) -> None:
        if why is None:
            self._trouble.over("connections")
        elif self._trouble.report("connections", why):
            log.warning("%s", why)

    async def shut(self) -> None:
        """Nobody is let in any more; who is in has answers still."""
        self._shut = True
        for runner in self._runners:
            for site in list(runner.sites):
                await site.stop()

    async def close(self) -> None:
        """The last answers go out."""
        for runner in self._runners:
            await runner.cleanup()
