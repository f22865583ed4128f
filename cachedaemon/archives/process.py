"""One worker process as the loop sees it: started, spoken to in JSON lines, killed and waited for.

The loop itself has to start it: the kernel sends the death signal when the *thread* that started a child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable
from typing import TypeVar

from cachedaemon.errors import Shortage

_LINE_MOST = 1 << 20  # bytes of one answer
_MODULE = "cachedaemon.archives.worker"

# The daemon's own environment may hold secrets, and its working directory modules of any kind: neither is passed on.
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry),
    "PYTHONUTF8": "1",
}

T = TypeVar("T")


class Died(Exception):
    """The worker has gone without an answer."""


class Lied(Exception):
    """The worker's answer is not one that it can give."""


async def to_its_end(awaitable: Awaitable[T]) -> T:
    """Await something that must finish: a cancellation is kept until it has, then raised."""
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that nothing complains that nobody did
    raise cancelled


class Worker:
    """A running worker; made by `start`, and ended by `end` in every case."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.used = False

    @classmethod
    async def start(cls, memory: int) -> Worker:
        """Start one that may use so many bytes of memory; raises `Shortage` when the system refuses."""
        task = asyncio.ensure_future(_spawn(memory))
        try:
            return cls(await to_its_end(task))
        except asyncio.CancelledError:
            if not task.cancelled() and task.exception() is None:
                await to_its_end(cls(task.result()).end())
            raise
        except OSError as error:
            raise Shortage(f"no process for reading archives could be started: {error.strerror}") from error

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, or minus the signal that ended it."""
        return self._process.returncode

    async def exchange(self, message: dict[str, object]) -> dict[str, object]:
        """Say something and wait for the answer; raises Died or Lied."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        except (OSError, RuntimeError) as error:  # uvloop's word for a pipe that it has closed is RuntimeError
            raise Died from error
        except ValueError as error:
            raise Lied("it does not end") from error
        if not line.endswith(b"\n"):
            raise Died
        return _object(line)

    async def end(self, *, patience: float = 0) -> None:
        """Wait so many seconds for an end of its own, then kill it, and wait until it has gone, with its pipes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._process.wait()
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with contextlib.suppress(OSError):
            await self._process.stdin.wait_closed()
        # Whoever is reading an answer just now gets the end of the pipe himself; that is RuntimeError here. A pipe that a
        # process of the worker's own holds open is not waited for.
        with contextlib.suppress(OSError, ValueError, RuntimeError, TimeoutError):
            async with asyncio.timeout(1):
                await self._process.stdout.read()


def _object(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Lied("it is not JSON") from error
    if not isinstance(found, dict) or len(found) != 1:
        raise Lied("it is not an object with one member")
    return found


async def _spawn(memory: int) -> Process:
    command = (sys.executable, "-P", "-m", _MODULE, str(os.getpid()), str(memory))
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env=_ENVIRONMENT, limit=_LINE_MOST
    )
