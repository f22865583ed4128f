"""Origins whose objects are read with somebody else's library, in a process of its own: what they have in common."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachedaemon import errors
from cachedaemon.config import Fetch, Source, json_of
from cachedaemon.errors import (
    CacheDaemonError,
    Changed,
    Cut,
    NoParts,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.base import PIECE, Piece, is_still
from cachedaemon.origins.credentials import in_time
from cachedaemon.origins.mounted import Link
from cachedaemon.origins.workers import Workers
from cachedaemon.pools import started

T = TypeVar("T")

SPARE = 2
"""Processes besides those of transfers: a listing, and a look whether something has changed."""


class Foreign:
    """One source, as its processes answer for it.

    `work` are the seconds that a process may itself be busy for an answer, besides the time that its source takes.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what every origin is made from, and its processes
        self, name: str, source: Source, fetch: Fetch, metrics: Metrics, workers: Workers, work: float = 0.0
    ) -> None:
        self.name = name
        self._work = work
        self.workers = workers
        self._credentials = source.credentials
        self._stall = fetch.stall_timeout or None
        self._patience = fetch.connect_timeout or None
        self._metrics = metrics
        self._threads = started(1, f"origin-{name}")

    async def secret(self, ref: Ref | str) -> str | None:
        """The configured credentials now; their file is read in a thread, since its mount can hang like any other."""
        if self._credentials is None:
            return None
        read = asyncio.get_running_loop().run_in_executor(self._threads, self._credentials.document)
        said = (f"{ref}: the file of its credentials", f"{ref}: its credentials cannot be used")
        return await in_time(read, self._patience, *said)

    @asynccontextmanager
    async def asked(self, ref: Ref | str, request: dict[str, object]) -> AsyncIterator[Link]:
        """A conversation with a process, which is free of it at the block's end."""
        async with AsyncExitStack() as stack:
            try:
                link = await stack.enter_async_context(self.workers.asked(request))
            except OSError as cause:
                raise OriginUnavailable(f"{ref}: {_said(cause)}") from cause
            yield link

    async def head(self, ref: Ref | str, link: Link) -> Any:
        """The first answer of a conversation, counted: the source is reached, and answers, within both limits."""
        status = "ok"
        most = self._patience + self._stall + self._work if self._patience and self._stall else None
        said: Any = True
        try:
            while said is True:  # a step was done, and the next one has the limits anew
                said = await self._within(ref, link.hear(), most)
        except CacheDaemonError as cause:
            status = cause.code
            raise
        else:
            return said
        finally:
            self._metrics.origin_requests.labels(self.name, status).inc()

    async def say(self, ref: Ref, link: Link, words: str) -> None:
        """Ask for more."""
        await self._within(ref, link.say(words), self._stall)

    async def more(self, ref: Ref | str, link: Link) -> Any:
        """A further answer."""
        return await self._within(ref, link.hear(), self._stall)

    async def filled(self, ref: Ref, link: Link, buffer: memoryview) -> int:
        """Bytes that came into the buffer; each wait for some has the stall limit."""
        return await self._within(ref, link.fill(buffer, lambda: asyncio.timeout(self._stall)), None)

    async def _within(self, ref: Ref | str, answer: Awaitable[T], seconds: float | None) -> T:
        try:
            async with asyncio.timeout(seconds):
                said = await answer
        except TimeoutError:
            raise Overloaded(f"{ref}: the origin does not answer in time") from None
        except OSError as cause:
            raise OriginUnavailable(f"{ref}: {_said(cause)}") from cause
        if isinstance(said, dict) and "failed" in said:
            raise _error(said["failed"])(f"{ref}: {said['why']}")
        return said

    async def close(self) -> None:
        """End the processes; a thread that hangs is left alone."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self.workers.close()


def _error(kind: str) -> type[CacheDaemonError]:
    found: type[CacheDaemonError] = getattr(errors, kind)
    return found


def _said(cause: OSError) -> str:
    if cause.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
        return "the process that reads it has ended"
    return f"the process that reads it cannot be asked: {cause.strerror}"


def options_of(ref: Ref | str, secret: str | None) -> dict[str, object]:
    """Storage options, from credentials that are a JSON object."""
    try:
        options = json_of(secret or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OriginRefused(f"{ref}: its credentials are no JSON object of storage options")
    return options


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object, and the request that opens it."""

    ref: Ref
    request: dict[str, object] = field(repr=False)  # it holds credentials
    has_parts: bool
    """Whether any part of it can be asked for."""


class ForeignStream:
    """One version of one object. `state` is what its process says of it."""

    def __init__(self, origin: Foreign, wanted: Wanted, link: Link, state: dict[str, Any]) -> None:
        self._origin, self._ref, self._request = origin, wanted.ref, wanted.request
        self._link, self._before = link, state
        self.size: int | None = state["size"]
        self.validators = validators(state)
        self.digests: tuple[Digest, ...] = ()
        self.has_parts = wanted.has_parts and self.size is not None and is_strong(self.validators)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, about a MiB at a time, in one buffer that is used again."""
        async for batch in self._poured(self._link, 0, self.size):
            yield batch

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """A part, by a process of its own."""
        if not self.has_parts:
            raise NoParts(f"{self._ref}: its origin cannot give a part of a version")
        async with self._origin.asked(self._ref, self._request) as link:
            if await self._origin.head(self._ref, link) != self._before:
                raise Changed(f"{self._ref}: the origin has another version by now")
            yield self._poured(link, start, stop)

    async def _poured(self, link: Link, start: int, stop: int | None) -> AsyncIterator[list[Piece]]:
        buffer, at = memoryview(bytearray(PIECE)), start
        await self._origin.say(self._ref, link, f"read {start} {-1 if stop is None else stop}")
        while count := await self._origin.filled(self._ref, link, buffer):
            at += count
            yield [buffer[:count]]
        if await self._after(link, at - start) != self._before:
            raise Changed(f"{self._ref}: the object changed while it was read")
        if stop is not None and at != stop:
            raise Cut(f"{self._ref}: got {at - start} of {stop - start} bytes")

    async def _after(self, link: Link, got: int) -> Any:
        """The state after so many bytes; an outage now has cut the transfer."""
        try:
            return await self._origin.more(self._ref, link)
        except Overloaded:
            raise
        except OriginUnavailable as cause:
            raise Cut(f"{cause}, after {got} bytes") from cause


def validators(state: dict[str, Any]) -> Validators:
    """As a process says them. With nothing but a time, the size tells versions apart too, as on a mount."""
    etag, version, modified = state["etag"], state["version"], state["modified"]
    if modified and not etag and not version:
        version = str(state["size"])
    return Validators(etag=etag, version=version, modified=modified)


def is_strong(found: Validators) -> bool:
    """Whether they tell any two versions apart; a weak ETag does not (RFC 9110, 8.8.1)."""
    return bool((found.etag and not found.etag.startswith("W/")) or found.version)


@asynccontextmanager
async def opened(origin: Foreign, wanted: Wanted, known: Validators | None) -> AsyncIterator[ForeignStream | None]:
    """An object; None when it is still the version that is known."""
    async with origin.asked(wanted.ref, wanted.request) as link:
        stream = ForeignStream(origin, wanted, link, await origin.head(wanted.ref, link))
        yield None if is_still(known, stream.validators) else stream
