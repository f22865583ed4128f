"""One version of one object on a web server: the body of the answer that opened it, and parts by further requests."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp

from cachedaemon.digests import Hashes
from cachedaemon.errors import Changed, Corrupt, Cut, NoParts, OriginRefused
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins import coding
from cachedaemon.origins.base import Piece
from cachedaemon.origins.body import Body
from cachedaemon.origins.digestfields import digests_of

PART = frozenset({200, 206, 412, 416})
"""What a request for a part may be answered: the part, the whole, another version, another length."""
_STRONG = re.compile(r'"[!#-~\x80-\ud7ff\ue000-\U0010ffff]*"')
"""An ETag that names just these bytes (RFC 9110, 8.8.3); a weak one, or one that is malformed, does not."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})", re.IGNORECASE)

Again = Callable[[Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]
"""Asks for the object once more, from its own URL on, with further request headers; lets statuses of `PART` pass."""


class WebStream:
    """The object of a `200`. `stall`: seconds that bytes may be waited for, None for no limit."""

    def __init__(self, ref: Ref, response: aiohttp.ClientResponse, again: Again, stall: float | None) -> None:
        self._ref = ref
        self._again = again
        self._stall = stall
        self._coding = _coding(response)
        if self._coding and self._coding not in coding.KNOWN:
            raise OriginRefused(f"{ref}: the origin sends the content coding {self._coding!r}, which nobody asked for")
        self._body = Body(ref, response, stall)
        self.size = None if self._coding else self._body.length
        self.validators = validators_of(response)
        said = digests_of(response.headers)
        self.digests: tuple[Digest, ...] = () if self._coding else said
        self._coded_digests = said if self._coding else ()
        self.has_parts = self.size is not None and is_strong(self.validators.etag) and not _without_ranges(response)

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The object's bytes, its content coding taken off."""
        return self._decoded() if self._coding else self._body.pieces()

    async def _decoded(self) -> AsyncIterator[list[Piece]]:
        try:
            async for batch in coding.decoded(self._coding, self._ref.key, self._coded()):
                yield batch
        except coding.Damaged as cause:
            raise Cut(f"{self._ref}: the {self._coding} coding of the body {cause}") from cause

    async def _coded(self) -> AsyncIterator[list[Piece]]:
        """The body as it comes; the digests in the head are of this form, and nobody else has it."""
        hashes = Hashes(digest.kind for digest in self._coded_digests)
        async for batch in self._body.pieces():
            for piece in batch:
                hashes.update(piece)
            yield batch
        if said := hashes.mismatch(self._coded_digests):
            raise Corrupt(f"{self._ref}: the bytes that came are not the object: {said}")

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """These bytes, by a request from the object's own URL on: what a redirect led to may have expired.

        It asks for this version only (`If-Range`, RFC 9110, 13.1.5); what comes instead is looked at all the same.
        """
        if not self.has_parts:
            raise NoParts(f"{self._ref}: the origin gives no parts of this version")
        asked = {"Range": f"bytes={start}-{stop - 1}", "If-Range": self.validators.etag or ""}
        async with self._again(asked) as response:
            self._check_part(response, start, stop)
            yield just(self._ref, Body(self._ref, response, self._stall), stop - start)

    def _check_part(self, response: aiohttp.ClientResponse, start: int, stop: int) -> None:
        """`Changed` or `NoParts` unless this is that part of this version."""
        status, now = response.status, validators_of(response)
        if self._is_named_otherwise(response, now):
            raise NoParts(f"{self._ref}: the origin has several ETags for this version")
        if status in (412, 416) or (now.etag is not None and now.etag != self.validators.etag):
            raise Changed(f"{self._ref}: the origin has another version by now")
        if status == 200 and now != self.validators:
            raise Changed(f"{self._ref}: the origin has another version by now")
        check_range(self._ref, response, (start, stop - 1, self.size))
        if now.etag is None or _coding(response):
            raise NoParts(f"{self._ref}: the origin sends a part and does not say of which version, or codes it")

    def _is_named_otherwise(self, response: aiohttp.ClientResponse, now: Validators) -> bool:
        """Whether only the ETag differs: servers of a farm make it from inodes, say, which each of them has others of.

        If it is a version of the same second and length after all, nothing is mixed either: without parts it comes whole.
        """
        return (
            response.status == 200
            and now.etag != self.validators.etag
            and now.modified is not None
            and now.modified == self.validators.modified
            and response.content_length == self.size
        )


def check_range(ref: Ref, response: aiohttp.ClientResponse, asked: tuple[int, int, int | None]) -> None:
    """`NoParts` unless a `206` has the part that was asked for: its first and last byte, and the object's size."""
    if response.status != 206:
        raise NoParts(f"{ref}: the origin was asked for a part and sends the whole")
    said = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if said is None or tuple(map(int, said.groups())) != asked:
        raise NoParts(f"{ref}: the origin was asked for a part and sends another, or does not say which")


def just(ref: Ref, body: Body, count: int) -> AsyncIterator[list[Piece]]:
    """So many bytes, of a body that has no more and no fewer; `NoParts` at once where it says that it has."""
    if body.length not in (None, count):
        raise NoParts(f"{ref}: the origin announces {body.length} bytes of a part of {count}")
    return _just(ref, body, count)


async def _just(ref: Ref, body: Body, count: int) -> AsyncIterator[list[Piece]]:
    got = 0
    async for pieces in body.pieces():
        got += sum(map(len, pieces))
        if got > count:
            raise NoParts(f"{ref}: the origin sends over {count} bytes of a part of just so many")
        yield pieces
    if got < count:
        raise Cut(f"{ref}: got {got} of the {count} bytes of a part")


def validators_of(response: aiohttp.ClientResponse) -> Validators:
    """What a head says of the version."""
    return Validators(etag=response.headers.get("ETag"), modified=response.headers.get("Last-Modified"))


def is_strong(etag: str | None) -> bool:
    """Whether two versions with this ETag are the same in every byte."""
    return etag is not None and _STRONG.fullmatch(etag) is not None


def _without_ranges(response: aiohttp.ClientResponse) -> bool:
    """Whether the server says that it gives no parts (RFC 9110, 14.3); most that give them say nothing."""
    return response.headers.get("Accept-Ranges", "").strip().lower() == "none"


def _coding(response: aiohttp.ClientResponse) -> str:
    """The content coding, in lower case; empty for none."""
    said = response.headers.get("Content-Encoding", "").strip().lower()
    return "" if said == "identity" else said
