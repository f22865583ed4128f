"""The daemon's side of a mount's helper process. Nothing here blocks, and whatever is given up is given up at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from typing import Any

_MODULE = "cachedaemon.mounts.helper"
_PIPE = 1 << 20
"""Bytes of a pipe; more needs a privilege."""
# Neither secrets of the environment nor modules of the working directory are passed on.
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry),
    "PYTHONUTF8": "1",
}
LONGEST_BATCH = 0.25
"""Seconds that bytes which came are kept back for more."""
_FAREWELL = 0.5
"""Seconds that a helper may take to end; one that hangs is left to the kernel."""


class Link:
    """One request to the helper: a conversation, and a pipe for data. Closing it ends the request, whatever it does."""

    def __init__(self, link: socket.socket, data: int) -> None:
        self._link = link
        self._data = data
        self._heard = bytearray()
        self._loop = asyncio.get_running_loop()

    async def say(self, word: str) -> None:
        """Ask for more."""
        await self._loop.sock_sendall(self._link, word.encode() + b"\n")

    async def hear(self) -> Any:
        """The next answer. Raises the OSError that the helper met, ENOTCONN when it has ended."""
        while (end := self._heard.find(b"\n")) < 0:
            piece = await self._loop.sock_recv(self._link, 1 << 16)
            if not piece:
                raise OSError(errno.ENOTCONN, "its reader has ended")
            self._heard += piece
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        said = json.loads(line)
        if isinstance(said, dict) and "errno" in said:
            raise OSError(said["errno"], said["why"])
        return said

    async def fill(self, buffer: memoryview, within: Callable[[], asyncio.Timeout]) -> int:
        """Fill a buffer as far as the data goes; each wait for some is `within` its limit.

        From a slow origin it comes less full, so that a transfer shows how far it is.
        """
        got, began = 0, self._loop.time()
        while got < len(buffer) and not (got and self._loop.time() > began + LONGEST_BATCH):
            try:
                count = os.readv(self._data, [buffer[got:]])
            except BlockingIOError:
                async with within():
                    await self._is_readable()
                continue
            if not count:
                break
            got += count
        return got

    async def _is_readable(self) -> None:
        some = asyncio.Event()
        self._loop.add_reader(self._data, some.set)
        try:
            await some.wait()
        finally:
            self._loop.remove_reader(self._data)

    def close(self) -> None:
        """Let go of both."""
        self._link.close()
        os.close(self._data)


class Mounted:
    """One mounted folder, and the helper that reads it, started when it is first needed and again when it has died."""

    def __init__(self, place: str, threads: int) -> None:
        self._place = place
        self._threads = threads
        self._process: Process | None = None
        self._requests: socket.socket | None = None
        self._starting: asyncio.Task[None] | None = None

    async def ask(self, request: dict[str, object]) -> Link:
        """Begin a request. Raises OSError."""
        await self._be_there()
        try:
            return self._begun(request)
        except (BrokenPipeError, ConnectionResetError):
            self._process = None  # it has died, and the loop has not heard of it yet
        await self._be_there()
        return self._begun(request)

    def _begun(self, request: dict[str, object]) -> Link:
        if self._requests is None:
            raise OSError(errno.ENOTCONN, "the source is being closed")
        return begun(self._requests, request)

    async def _be_there(self) -> None:
        """Have a helper that lives. Who starts one may leave: the others want it too."""
        if self._process is not None and self._process.returncode is None:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name="mount helper")
            self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        """The loop itself has to start it: the kernel sends the death signal when the *thread* that started it ends."""
        self._drop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = (sys.executable, "-P", "-m", _MODULE, str(os.getpid()), self._place, str(self._threads))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL, cwd="/", env=_ENVIRONMENT
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._requests = ours

    def _drop(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    async def close(self) -> None:
        """End the helper; one that hangs in its mount is left behind, with nothing of the daemon's."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        self._drop()
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._process.wait()


def begun(requests: socket.socket, request: dict[str, object]) -> Link:
    """Begin a request to whoever reads `requests`. Raises OSError."""
    with contextlib.ExitStack() as given:
        ours, theirs = socket.socketpair()
        given.callback(theirs.close)
        with contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            data, pour = os.pipe2(os.O_CLOEXEC)
            given.callback(os.close, pour)
            failed.callback(os.close, data)
            ours.setblocking(False)
            os.set_blocking(data, False)
            _enlarge(data)
            socket.send_fds(requests, [json.dumps(request).encode()], [theirs.fileno(), pour])
            failed.pop_all()
    return Link(ours, data)


def _enlarge(pipe: int) -> None:
    """Fewer turns of the loop per MiB; a user with many pipes may get no more than the usual size (pipe(7))."""
    with contextlib.suppress(PermissionError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
