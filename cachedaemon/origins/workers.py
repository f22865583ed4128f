"""The daemon's side of the processes of `cachedaemon.foreign`: as many as a source has transfers, killed when they hang.

Nothing here blocks, and whatever is given up is given up at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager

from cachedaemon.origins.mounted import Link, begun

START = 60.0
"""Seconds that a process may take to start, on a machine that is busy."""
NOTICE = 1.0
"""Seconds in which a process must notice that its request was given up, before it is killed."""
IDLE = 60.0
"""Seconds after which a process that nobody needs ends, and with it its connections."""
SURPLUS = 2.0
"""Likewise for one that is idle beside others, or serves one request only and whose asker left while it started."""
_FAREWELL = 0.5
"""Seconds that a killed process is waited for; one that the kernel cannot end is left to it."""


class Worker:
    """One process; it serves one request at a time."""

    def __init__(self, process: Process, requests: socket.socket) -> None:
        self._process = process
        self.requests = requests
        self.leave: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        return self._process.returncode is None

    async def heard(self, word: bytes, seconds: float) -> bool:
        """Whether it says this within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().sock_recv(self.requests, 16) == word
        except (TimeoutError, OSError):
            return False

    def kill(self) -> None:
        """End it, with what it has started. Its id is its own until the loop has heard of its end."""
        if not self.alive:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group of its own yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Kill it and wait for that."""
        self.kill()
        self.requests.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._process.wait()


class Workers:
    """All processes of one source, which run one program: `most` at the most, kept for the next request if `lasting`."""

    def __init__(self, program: str, environment: Mapping[str, str], most: int, *, lasting: bool) -> None:
        self._program = program
        self._environment = environment
        self._most = most
        self._lasting = lasting
        self._turns = asyncio.Semaphore(most)
        self._idle: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._all: set[Worker] = set()
        self._closed = False

    @asynccontextmanager
    async def asked(self, request: dict[str, object]) -> AsyncIterator[Link]:
        """A conversation with a process that has nothing else to do. Raises OSError when none can be started."""
        async with self._turns:
            worker = await self._free()
            try:
                link = begun(worker.requests, request)
                try:
                    yield link
                finally:
                    link.close()
            finally:
                self._later(self._settle(worker))

    async def _free(self) -> Worker:
        """One that is idle, or about to be, or a new one."""
        while not (worker := self._taken()):
            if self._closed:
                raise OSError(errno.ENOTCONN, "the source is being closed")
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if not self._idle and self._count < self._most:
                self._count += 1
                start = self._later(self._start())
                await asyncio.shield(start)  # who starts one may leave: the next one takes it
        return worker

    def _taken(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.leave is not None:
                worker.leave.cancel()
            if worker.alive:
                return worker
            self._later(self._end(worker))
        return None

    async def _start(self) -> None:
        """The loop itself has to start it: the kernel sends the death signal when the *thread* that started it ends."""
        try:
            worker = await self._begun()
        except BaseException:
            self._count -= 1
            raise
        self._all.add(worker)
        if await worker.heard(b"ready", START) and not self._closed:
            self._rest(worker)
        else:
            await self._end(worker)
            raise OSError(errno.ENOTCONN, "the process that reads the source does not start")

    async def _begun(self) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = (sys.executable, "-P", "-m", f"cachedaemon.foreign.{self._program}", str(os.getpid()))
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL, cwd="/", env=self._environment
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Worker(process, ours)

    async def _settle(self, worker: Worker) -> None:
        """After a request: back to the idle ones if it says so, else killed."""
        if self._lasting and await worker.heard(b"free", NOTICE) and not self._closed:
            self._rest(worker)
        else:
            await self._end(worker)

    def _rest(self, worker: Worker) -> None:
        seconds = SURPLUS if self._idle or not self._lasting else IDLE
        worker.leave = asyncio.get_running_loop().call_later(seconds, self._dismiss, worker)
        self._idle.append(worker)

    def _dismiss(self, worker: Worker) -> None:
        self._idle.remove(worker)
        self._later(self._end(worker))

    async def _end(self, worker: Worker) -> None:
        try:
            await worker.ended()
        finally:
            self._all.discard(worker)
            self._count -= 1

    def _later(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it too

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        for worker in self._all:
            worker.kill()
        while (idle := self._taken()) is not None:
            self._later(self._end(idle))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=NOTICE + 2 * _FAREWELL)
