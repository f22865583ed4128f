"""Object stores (S3, Google Cloud Storage, Azure) through obstore. The object is its bytes as they are stored.

What cannot be had through the library: checksums beside the ETag, which is no digest that could be trusted (that of an
object that came in parts, or is encrypted, is not one of its bytes), and how long the store asks to be left alone. So
bytes are held by their length and by TLS, and by a `checksums` manifest where the source has one.
"""

from __future__ import annotations

import asyncio
import bisect
import email.utils
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import obstore
from obstore.exceptions import InvalidPathError, NotModifiedError

from cachedaemon.config import Fetch, Source, bucket_url, name_fault
from cachedaemon.errors import BadRequest, Changed, Cut, NoParts, OriginRefused, Overloaded
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.base import KEY, PIECE, Piece, is_still, refuse_dots
from cachedaemon.origins.objects.access import Access, Way
from cachedaemon.origins.objects.failures import FOREIGN, Rejected, answered, dump, mapped, words

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, GetResult

T = TypeVar("T")

PAGE = 1000
"""Names of a listing that are taken at once: what the stores send."""


class ObjectOrigin:
    """Objects of one bucket, below one prefix."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._url = bucket_url(source.url)
        self._access = Access(name, self._url, source, fetch)
        patience, stall = fetch.connect_timeout, fetch.stall_timeout
        self._head_limit = patience + stall if patience and stall else None
        self._metrics = metrics

    async def look(self) -> None:
        """Whether the store can be asked as it is configured; it is asked for objects only."""
        await self._access.now(f"source {self._name}")

    def check_key(self, key: str) -> None:
        """No key climbs out of the prefix, or would be asked for by another name."""
        refuse_dots(self._name, key)
        if why := name_fault(self._url.name(key)):
            raise BadRequest(f"{self._name}: the key {key!r} makes an object's name that {why}")

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[ObjectStream | None]:
        """A GET of the object; where its version is known by an ETag, on the condition that it has another one."""
        ref = Ref(self._name, key)
        options = {"if_none_match": known.etag} if known is not None and known.etag else {}
        try:
            result = await self.get(ref, options)
        except NotModifiedError:
            yield None
            return
        stream = ObjectStream(self, ref, result)
        try:
            yield None if is_still(known, stream.validators) else stream
        finally:
            stream.close()

    async def get(self, ref: Ref, options: dict[str, Any]) -> GetResult:
        """An answer with an object. Raises `NotModifiedError` where the options have a condition."""
        return await self._with_credentials(ref, lambda way: self._get(ref, way, options))

    async def keys(self) -> list[str]:
        """All keys, as the store lists them."""
        if self._url.after:
            raise BadRequest(f"{self._name}: a source whose url goes on behind {KEY} cannot list its keys; name them")
        ref = Ref(self._name, "*")
        return await self._with_credentials(ref, lambda way: self._list(ref, way))

    async def close(self) -> None:
        """Forget the client; connections of transfers under way close with these."""
        self._access.close()

    async def _with_credentials(self, ref: Ref, ask: Callable[[Way], Awaitable[T]]) -> T:
        """What the store answers; one that refuses the credentials is asked once more, with others."""
        way = await self._access.now(ref)
        try:
            return await ask(way)
        except Rejected:
            other = await self._access.after(way, ref)
            if other is None:
                raise
        return await ask(other)

    async def _get(self, ref: Ref, way: Way, options: dict[str, Any]) -> GetResult:
        answer = obstore.get_async(way.store, self._url.name(ref.key), options=cast("GetOptions", options))
        return await self._counted(ref, _with_head(answer), "206" if "range" in options else "200")

    async def _list(self, ref: Ref, way: Way) -> list[str]:
        """Below the last slash of the prefix, which is where the library can list; the rest of the prefix is looked at here."""
        before, found, empty = self._url.before, list[str](), list[str]()
        pages = aiter(obstore.list(way.store, before.rpartition("/")[0] or None, chunk_size=PAGE))
        while page := await self._counted(ref, _next(pages, ()), "200"):
            for meta in page:
                if meta["path"].startswith(before):
                    (found if meta["size"] else empty).append(meta["path"].removeprefix(before))
        found.sort()
        return sorted(found + [key for key in empty if not _is_folder(key, found)])

    async def _counted(self, ref: Ref, answer: Awaitable[T], good: str) -> T:
        """An answer's head, within the limits of time; its failures mapped."""
        status = "failed"
        try:
            async with asyncio.timeout(self._head_limit):
                result = await answer
            status = good
        except NotModifiedError:
            status = "304"
            raise
        except TimeoutError:
            raise Overloaded(f"{ref}: the store does not answer in time") from None
        except InvalidPathError:
            raise OriginRefused(f"{ref}: the store lists a name that cannot be a key") from None
        except FOREIGN as cause:
            status = answered(cause) or status
            raise mapped(cause, ref) from None
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()
        return result


async def _with_head(answer: Awaitable[GetResult]) -> GetResult:
    """The answer, once what its head says of the object has been understood: the library looks at times only then."""
    result = await answer
    _ = result.meta
    return result


async def _next(them: AsyncIterator[T], end: T) -> T:
    """The next of them, or `end`. The library's iterators cannot take the builtin `anext` with its default."""
    try:
        return await anext(them)
    except StopAsyncIteration:
        return end


def _is_folder(key: str, found: list[str]) -> bool:
    """Whether an empty object stands for a folder only: others lie below it."""
    at = bisect.bisect(found, key + "/")
    return at < len(found) and found[at].startswith(key + "/")


class ObjectStream:
    """The body of one answer."""

    def __init__(self, origin: ObjectOrigin, ref: Ref, result: GetResult) -> None:
        self._origin = origin
        self._ref = ref
        self._body: BytesStream | None = result.stream(PIECE)
        self._size = result.meta["size"]
        self.size: int | None = self._size
        self.validators = _validators(result)
        self.digests: tuple[Digest, ...] = ()
        self._etag = self.validators.etag
        self.has_parts = self._etag is not None and not self._etag.startswith("W/")

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The object's bytes."""
        return self._all(0, self._size)

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """A range, on the condition that the object is still this one; stores that know no conditions are looked after."""
        if not self.has_parts:
            raise NoParts(f"{self._ref}: the store gives the object no strong ETag, so its parts cannot be told apart")
        result = await self._origin.get(self._ref, {"range": (start, stop), "if_match": self._etag})
        if _validators(result) != self.validators or result.meta["size"] != self._size:
            raise Changed(f"{self._ref}: the object changed while it was read")
        part = ObjectStream(self._origin, self._ref, result)
        try:
            yield part._all(start, stop)
        finally:
            part.close()

    def close(self) -> None:
        """Let go of the connection, at once where the body is not at its end."""
        self._body = None

    async def _all(self, start: int, stop: int) -> AsyncIterator[list[Piece]]:
        at = start
        try:
            while piece := await self._next(at - start, stop - start):
                at += len(piece)
                yield [piece]
        finally:  # also where it is left before the end
            self.close()
        if at != stop:
            raise Cut(f"{self._ref}: got {at - start} of {stop - start} bytes")

    async def _next(self, got: int, expected: int) -> bytes:
        """About a MiB; nothing at the end. The library itself watches for silence, and knows no other limit."""
        if self._body is None:
            return b""
        try:
            return await _next(self._body, b"")
        except FOREIGN as cause:
            raise Cut(f"{self._ref}: got {got} of {expected} bytes: {words(dump(cause))}") from None


def _validators(result: GetResult) -> Validators:
    meta = result.meta
    modified = meta["last_modified"]
    return Validators(
        etag=meta["e_tag"],
        version=meta["version"],
        modified=email.utils.format_datetime(modified, usegmt=True) if modified.timestamp() else None,
    )
