"""Reads archives from asyncio: a bounded pool of worker processes, each kept warm for the next job.

Every call is safe to cancel: when it returns or raises, its worker is either idle or has been killed and waited for, and
after a failure neither the table nor the folder is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from cachedaemon.archives import Kind
from cachedaemon.archives.answers import Unpacked, cause_of_death, count, members, need, refusal, unpacked
from cachedaemon.archives.process import Died, Lied, Worker, to_its_end
from cachedaemon.archives.tree import Modes
from cachedaemon.errors import BadArchive, CacheDaemonError, Stopping
from cachedaemon.model import Need, Stamp

__all__ = ["Limits", "Modes", "Unpacked", "Unpacking", "Workers"]

R = TypeVar("R")

_TRIES = 2
_MEMORY = 256 << 20  # bytes for a worker, and for each member allowed:
_MEMORY_EACH = 1024
_WRONG_ANSWER = "the process that read the archive gave a wrong answer"


@dataclass(frozen=True, slots=True)
class Limits:
    """For one archive: members, bytes of all members together, seconds of work."""

    members: int
    bytes: int
    seconds: float


class Workers:
    """At most `most` worker processes. Belongs to one loop; `close` ends them all."""

    def __init__(self, *, limits: Limits, most: int) -> None:
        self.limits = limits
        self._free = asyncio.Semaphore(most)
        self._warm: list[Worker] = []
        self._busy: set[Worker] = set()
        self._starting: asyncio.Task[None] | None = None
        """A worker that nobody has asked for yet."""
        self._closed = False

    async def index(self, kind: Kind, archive: Path, table: Path, stamp: Stamp, *, verify: bool) -> int:
        """Check a zip or tar, with the CRC of every member if `verify`, and write its table, a new file.

        Returns the number of members. Raises BadArchive; NoSpace when the disk refuses; Stopping after `close`;
        CacheDaemonError when no worker can be had.
        """
        request = self._request("index", kind, archive) | {"table": str(table), "verify": verify}
        request |= {"inode": stamp.inode, "size": stamp.size, "mtime_ns": stamp.mtime_ns}
        call = _Call(self, request, table, lambda done: count(done, "members"))
        found = await call.advance()
        if isinstance(found, Need):  # an index needs no room that a reservation has to cover
            await call.abort()
            raise BadArchive(_WRONG_ANSWER, reason="corrupt")
        return found

    def unpack(self, kind: Kind, archive: Path, folder: Path, modes: Modes) -> Unpacking:
        """Unpack into `folder`, which must not exist: iterate over the result."""
        request = self._request("unpack", kind, archive) | {"folder": str(folder), "modes": list(modes)}
        return Unpacking(_Call(self, request, folder, unpacked))

    def _request(self, job: str, kind: Kind, archive: Path) -> dict[str, object]:
        bounds = [self.limits.members, self.limits.bytes]
        return {"job": job, "kind": kind, "archive": str(archive), "bounds": bounds}

    def expect(self) -> None:
        """An archive is on its way: where no worker waits for it, one starts meanwhile."""
        waits = self._starting or any(worker.alive for worker in self._warm)
        if not (self._closed or waits or self._free.locked()):
            self._starting = asyncio.create_task(self._start_early(), name="a worker for archives")

    async def _start_early(self) -> None:
        gone, self._warm = self._warm, []
        try:
            for worker in gone:
                await self.drop(worker)
            self._warm.append(await self._start())
        except CacheDaemonError:
            pass  # whoever needs one is told why there is none
        finally:
            self._starting = None

    async def close(self) -> None:
        """End all workers; calls under way raise Stopping."""
        self._closed = True
        if self._starting:
            await to_its_end(self._starting)
        ending, self._warm = [*self._warm, *self._busy], []
        await to_its_end(asyncio.gather(*(worker.end() for worker in ending)))

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    async def take_slot(self) -> None:
        """Wait until fewer than `most` calls are under way."""
        await self._free.acquire()

    async def take(self) -> Worker:
        """A warm worker, or a new one; whoever takes it gives it back or drops it."""
        if self._starting and not self._warm:
            await asyncio.wait([self._starting])
        while self._warm and not self._closed:
            worker = self._warm.pop()
            if worker.alive:
                self._busy.add(worker)
                return worker
            await self.drop(worker)
        if self._closed:
            raise Stopping("the daemon is stopping")
        worker = await self._start()
        self._busy.add(worker)
        return worker

    async def _start(self) -> Worker:
        worker = await Worker.start(_MEMORY + _MEMORY_EACH * self.limits.members)
        if self.closed:  # while it was starting
            await self.drop(worker)
            raise Stopping("the daemon is stopping")
        return worker

    async def drop(self, worker: Worker, *, patience: float = 0) -> None:
        """End a worker, at once or when it does not end by itself within so many seconds."""
        self._busy.add(worker)
        try:
            await to_its_end(worker.end(patience=patience))
        finally:
            self._busy.discard(worker)

    def keep(self, worker: Worker) -> None:
        """Keep a worker for the next call."""
        worker.used = True
        self._busy.discard(worker)
        self._warm.append(worker)

    def give_slot(self) -> None:
        """Let the next call have its turn."""
        self._free.release()


class _Call(Generic[R]):
    """One job from its first word to its end, over as many workers as it takes."""

    def __init__(
        self,
        workers: Workers,
        request: dict[str, object],
        output: Path,
        read: Callable[[dict[str, object]], R],
    ) -> None:
        self._workers = workers
        self._request = request
        self._output = output
        self._read = read
        self._worker: Worker | None = None
        self._left = workers.limits.seconds
        self._deaths = 0
        self._granted = Need(0, 0)
        self._holds_slot = False
        self.over = False

    async def advance(self) -> Need | R:
        """Go on until the worker needs room, or has done; whatever is raised, nothing of the call is left."""
        if not self._holds_slot:
            await self._workers.take_slot()
            self._holds_slot = True
        try:
            answer = await self._timed()
        except BaseException:
            await self.abort()
            raise
        if not isinstance(answer, Need):
            self._finish()
        return answer

    async def _timed(self) -> Need | R:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left) as limit:
                return await self._answer()
        except TimeoutError:
            if not limit.expired():
                raise
            seconds = self._workers.limits.seconds
            raise BadArchive(f"reading the archive takes more than {seconds:g} s", reason="limit") from None
        except Lied as error:
            raise BadArchive(f"{_WRONG_ANSWER}: {error}", reason="corrupt") from error
        finally:
            self._left -= clock() - began

    async def _answer(self) -> Need | R:
        while True:
            message: dict[str, object] = {"go": True}
            if self._worker is None:
                self._worker, message = await self._workers.take(), self._request
            try:
                answer = await self._worker.exchange(message)
            except Died:
                await self._bury(first_word=message is self._request)
                continue
            if "done" in answer:
                return self._read(members(answer["done"]))
            if "need" not in answer:
                raise refusal(answer)
            asked, had = need(answer["need"]), self._granted
            # A second worker begins again: what the first was granted is still there.
            if asked.bytes > had.bytes or asked.inodes > had.inodes:
                self._granted = Need(max(asked.bytes, had.bytes), max(asked.inodes, had.inodes))
                return self._granted

    async def _bury(self, *, first_word: bool) -> None:
        """After a worker's death: clear up, and raise unless another one may try."""
        worker, self._worker = self._worker, None
        assert worker is not None
        # Its output has ended, so it is about to; killing it meanwhile would take the true cause's place.
        await self._workers.drop(worker, patience=1)
        await _discard(self._output)
        if self._workers.closed:
            raise Stopping("the daemon is stopping")
        if first_word and worker.used and worker.status == 0:
            return  # it had been idle for too long just then
        self._deaths += 1
        if self._deaths >= _TRIES:
            raise cause_of_death(worker.status)

    def _finish(self) -> None:
        self.over = True
        worker, self._worker = self._worker, None
        if worker is not None:
            self._workers.keep(worker)
        self._give_slot()

    def _give_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._workers.give_slot()

    async def abort(self) -> None:
        """End the call: its worker has gone and its output too, when this returns. Nothing to do after its end."""
        self.over = True
        if self._holds_slot:
            await to_its_end(self._clear())

    async def _clear(self) -> None:
        worker, self._worker = self._worker, None
        try:
            if worker is not None:
                await self._workers.drop(worker)
            await _discard(self._output)
        finally:
            self._give_slot()


class Unpacking:
    """Unpacking under way: each `Need` is the room for all so far, and iterating on is the permission to use it.

    The iteration begins nothing before it is asked for its first item. Whoever stops before its end calls `aclose`, or
    uses it as `async with`: then the worker is gone, and the folder too. Raises as `Workers.index` does.
    """

    def __init__(self, call: _Call[Unpacked]) -> None:
        self._call = call
        self._result: Unpacked | None = None

    @property
    def result(self) -> Unpacked:
        """After the last item; raises AttributeError before."""
        if self._result is None:
            raise AttributeError("result: unpacking has not come to its end")
        return self._result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Need:
        if self._call.over:
            raise StopAsyncIteration
        answer = await self._call.advance()
        if isinstance(answer, Need):
            return answer
        self._result = answer
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop; nothing is left unless unpacking has come to its end."""
        await self._call.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _discard(output: Path) -> None:
    await to_its_end(asyncio.to_thread(_remove, output))


def _remove(output: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        else:
            os.unlink(output)
