"""A mounted folder: RAID, NFS, Lustre, or any other. Plain reads in threads of a process of this source's own.

A mount that hangs keeps that process, and nothing else: no other code waits for it, its threads are bounded, and it holds
no lock and no file of the cache. See `cachedaemon.mounts`.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import (
    BadRequest,
    CacheDaemonError,
    Changed,
    Cut,
    Missing,
    NoParts,
    OriginRefused,
    OriginUnavailable,
)
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.base import KEY, PIECE, Piece, is_still, refuse_dots
from cachedaemon.origins.mounted import Link, Mounted

T = TypeVar("T")

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
        self._mount = Mounted(self._place, source.concurrency)

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
        async with self._asking(ref, {"open": key}) as link:
            state = await self._counted(ref, link.hear())
            while (wait := self._settle - abs(time.time() - state["mtime_ns"] / 1e9)) > 0:
                await asyncio.sleep(wait)
                await link.say("look")
                state = await self._counted(ref, link.hear())
            stream = FileStream(self, ref, link, state)
            yield None if is_still(known, stream.validators) else stream

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
            raise OriginUnavailable(f"{ref}: the mounted folder does not answer for {self._stall:g} s") from None
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

    def __init__(self, origin: FileOrigin, ref: Ref, link: Link, state: dict[str, Any]) -> None:
        self._origin = origin
        self._ref = ref
        self._link = link
        self._before = state
        self.size: int | None = state["size"]
        self.validators = Validators(version=str(state["size"]), modified=str(state["mtime_ns"]))
        self.digests: tuple[Digest, ...] = ()
        self.has_parts = False

    def part(self, start: int, stop: int) -> AbstractAsyncContextManager[AsyncIterator[list[Piece]]]:
        """Not given."""
        raise NoParts(f"{self._ref}: no parts: {start} to {stop}")

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, about a MiB at a time, in one buffer that is used again."""
        buffer, total, size = memoryview(bytearray(PIECE)), 0, int(self._before["size"])
        await self._origin.limited(self._ref, self._link.say("read"))
        while count := await self._origin.limited(self._ref, self._link.fill(buffer, self._origin.within), waits=False):
            total += count
            if total > size:
                raise Changed(f"{self._ref}: the file grows while it is read")
            yield [buffer[:count]]
        after = await self._origin.limited(self._ref, self._link.hear())
        if after != self._before:
            raise Changed(f"{self._ref}: the file changed while it was read")
        if total != size:
            raise Cut(f"{self._ref}: got {total} of {size} bytes")
