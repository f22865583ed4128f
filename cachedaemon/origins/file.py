"""A mounted folder: RAID, NFS, Lustre, or any other. Plain reads in threads of a process of this source's own.

A mount that hangs keeps that process, and nothing else: no other code waits for it, its threads are bounded, and it holds
no lock and no file of the cache. See `cachedaemon.mounts`.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import (
    BadRequest,
    CacheDaemonError,
    Changed,
    Cut,
    Missing,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.base import KEY, PIECE, Piece, is_still, refuse_dots
from cachedaemon.origins.mounted import Link, Mounted

T = TypeVar("T")
State = dict[str, Any]
"""Of a file, as the helper says it: size, mtime, inode."""

_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL}
)
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


class FileOrigin:
    """Files below one folder."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._place = unquote(urlsplit(source.url).path)
        self._settle = source.settle
        self._stall = fetch.stall_timeout or None
        self._metrics = metrics
        # A transfer can hold a file open, or hang in it, while it reads a part by a request of its own.
        self._mount = Mounted(self._place, 2 * source.concurrency)

    async def look(self) -> None:
        """Whether the folder is there, and not empty as an unmounted one is."""
        what = f"source {self._name} ({self._place})"
        async with self._asking(what, {"check": True}) as link:
            await self.limited(what, link.hear())

    def check_key(self, key: str) -> None:
        """No key climbs out of the folder."""
        refuse_dots(self._name, key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[FileStream | None]:
        """The file of a key, once nobody writes to it any more; None when it is still as it was."""
        ref = Ref(self._name, key)
        async with self.file(ref) as (link, found):
            state = found
            while (wait := self._settle - abs(time.time() - state["mtime_ns"] / 1e9)) > 0:
                await asyncio.sleep(wait)
                await link.say("look")
                state = await self._counted(ref, link.hear())
            stream = FileStream(self, ref, link, state)
            yield None if is_still(known, stream.validators) else stream

    @asynccontextmanager
    async def file(self, ref: Ref) -> AsyncIterator[tuple[Link, State]]:
        """The file of a key, opened, and the state it is in."""
        async with self._asking(ref, {"open": ref.key}) as link:
            yield link, await self._counted(ref, link.hear())

    async def keys(self) -> list[str]:
        """All files below the folder, as keys."""
        if KEY in self._place:
            raise BadRequest(f"{self._name}: a source whose url has {KEY} cannot list its keys; name them")
        ref, found = Ref(self._name, "*"), list[str]()
        async with self._asking(ref, {"walk": True}) as link:
            while more := await self._counted(ref, link.hear()):
                found += more
        return sorted(found)

    async def close(self) -> None:
        """Leave the mount; what hangs in it is not waited for."""
        await self._mount.close()

    @asynccontextmanager
    async def _asking(self, ref: Ref | str, request: dict[str, object]) -> AsyncIterator[Link]:
        link = await self.limited(ref, self._mount.ask(request))
        try:
            yield link
        finally:
            link.close()

    async def _counted(self, ref: Ref, answer: Awaitable[T]) -> T:
        status = "ok"
        try:
            return await self.limited(ref, answer)
        except CacheDaemonError as cause:
            status = cause.code
            raise
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()

    def within(self) -> asyncio.Timeout:
        """The stall limit, from now."""
        return asyncio.timeout(self._stall)

    async def limited(self, ref: Ref | str, answer: Awaitable[T], *, waits: bool = True) -> T:
        """What the mount answers, which is not waited for longer than the stall limit; its errors mapped.

        `waits`: where the answer has no limit of its own.
        """
        try:
            async with self.within() if waits else asyncio.timeout(None):
                return await answer
        except TimeoutError as cause:
            if cause.errno is not None:  # the mount's own ETIMEDOUT
                raise _mapped(cause, ref) from cause
            raise Overloaded(f"{ref}: the mounted folder does not answer for {self._stall:g} s") from None
        except OSError as cause:
            raise _mapped(cause, ref) from cause


def _mapped(cause: OSError, ref: Ref | str) -> CacheDaemonError:
    reason = cause.strerror or str(cause)
    if cause.errno in _MISSING:
        return Missing(f"{ref}: no such file in the source's folder")
    if cause.errno in _REFUSED:
        return OriginRefused(f"{ref}: {reason}")
    return OriginUnavailable(f"{ref}: the mounted folder fails: {reason}")


class FileStream:
    """The bytes of one file; a change while it is read is noticed at the end."""

    def __init__(self, origin: FileOrigin, ref: Ref, link: Link, state: State) -> None:
        self._origin = origin
        self._ref = ref
        self._link = link
        self._state = state
        self._size: int = state["size"]
        self.size: int | None = self._size
        self.validators = Validators(version=str(self._size), modified=str(state["mtime_ns"]))
        self.digests: tuple[Digest, ...] = ()
        self.has_parts = True

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, about a MiB at a time, in one buffer that is used again."""
        return self._bytes(self._link, 0, self._size)

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """These bytes, from the path again: what was opened before may be stale by now."""
        async with self._origin.file(self._ref) as (link, state):
            self._compare(state)
            yield self._bytes(link, start, stop)

    async def _bytes(self, link: Link, start: int, stop: int) -> AsyncIterator[list[Piece]]:
        buffer, at, limited = memoryview(bytearray(PIECE)), start, self._origin.limited
        beyond = stop + (
            stop == self._size
        )  # a size can be stale, or mean nothing: whether the file ends there is seen
        await limited(self._ref, link.say(f"read {start} {beyond}"))
        while count := await limited(self._ref, link.fill(buffer, self._origin.within), waits=False):
            at += count
            if at > stop:
                raise Changed(f"{self._ref}: the file has more than the {self._size} bytes that it is said to have")
            yield [buffer[:count]]
        self._compare(await self._after(link))
        if at != stop:
            raise Cut(f"{self._ref}: got {at} of {self._size} bytes")

    async def _after(self, link: Link) -> State:
        """What the mount says of the file at the end. One that is gone is looked for anew: only who opens it can tell for certain."""
        try:
            return await self._origin.limited(self._ref, link.hear())
        except Missing as cause:
            raise Changed(f"{self._ref}: the file went while it was read") from cause

    def _compare(self, state: State) -> None:
        if state != self._state:
            raise Changed(f"{self._ref}: the file changed while it was read")
