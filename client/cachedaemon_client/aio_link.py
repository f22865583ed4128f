"""One connection to the daemon for asyncio. It belongs to no loop, so that a forked child can close it by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from cachedaemon_client import trust
from cachedaemon_client.connection import silent
from cachedaemon_client.wire import Answer


class Link:
    """A connection, for one call at a time. OSError when it fails, ValueError when what comes is no HTTP."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._owed = 0
        self._out = bytearray()
        self._answer = Answer()
        self._coming: asyncio.Future[Answer] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            trust.check(path)
            self._socket.connect(path)  # at once, or EAGAIN: a Unix socket's connect never goes on in the background
        except BaseException:
            self._socket.close()
            raise

    async def ask(self, data: bytes, seconds: float) -> Answer:
        """One call, for so many seconds at the most; after a failure the connection is of no use."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._fail, silent(self._path))
        try:
            while self._owed:
                await self._next(loop)
                self._owed -= 1
            self._out += data
            return await self._next(loop)
        finally:
            timer.cancel()

    def tell(self, data: bytes) -> None:
        """A call whose answer is read before the next one."""
        self._out += data
        self._owed += 1
        self._push()

    async def farewell(self, seconds: float) -> None:
        """Read what is owed, then close: a daemon drops what it was told by somebody who has gone."""
        try:
            timer = asyncio.get_running_loop().call_later(seconds, self._fail, silent(self._path))
            while self._owed:
                await self._next(asyncio.get_running_loop())
                self._owed -= 1
            timer.cancel()
        except (OSError, ValueError):
            return
        finally:
            self.close()

    async def _next(self, loop: asyncio.AbstractEventLoop) -> Answer:
        """Send what is to be sent, and wait for one answer."""
        number = self._socket.fileno()
        if number < 0:
            raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
        coming: asyncio.Future[Answer] = loop.create_future()
        self._coming = coming
        self._answer = Answer()
        loop.add_reader(number, self._readable)
        self._push()
        if self._out:
            loop.add_writer(number, self._writable, loop)
        try:
            return await coming
        finally:
            self._coming = None
            loop.remove_reader(number)
            loop.remove_writer(number)

    def _push(self) -> None:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError as cause:
            self._fail(cause)

    def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        self._push()
        if not self._out:
            loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            piece = self._socket.recv(self._answer.wanted)
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, "the daemon closed the connection")
            self._answer.feed(piece)
        except BlockingIOError:
            return
        except (OSError, ValueError) as cause:
            self._fail(cause)
            return
        if self._answer.done and self._coming is not None and not self._coming.done():
            self._coming.set_result(self._answer)

    def _fail(self, cause: Exception) -> None:
        if self._coming is not None and not self._coming.done():
            self._coming.set_exception(cause)

    def close(self) -> None:
        """Close it; also in a forked child, whatever the parent's loop does with it at that moment."""
        number = self._socket.detach()
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        """A client that was dropped without `close` leaves no descriptor, and no warning of its own."""
        if hasattr(self, "_socket"):
            self.close()
