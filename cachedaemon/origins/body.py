"""The bytes of one answer, as they come: in pieces, with a limit for silence, and never short or long without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp

from cachedaemon.errors import Cut, OriginRefused
from cachedaemon.model import Ref
from cachedaemon.origins.base import PIECE, Piece
from cachedaemon.origins.refusals import words

LONGEST_BATCH = 0.25
"""Seconds that bytes which came are kept back for more."""
SMALL_PIECE = 4096
"""Bytes; what came in smaller pieces is joined."""


class Body:
    """What follows one head. `stall`: seconds that its bytes may be waited for, None for no limit.

    Raises `OriginRefused` for a framing that nobody asked for: the object is what it is without it.
    """

    def __init__(self, ref: Ref, response: aiohttp.ClientResponse, stall: float | None) -> None:
        framing = _transfer_codings(response)
        if framing not in ([], ["chunked"]):
            said = ", ".join(framing)
            raise OriginRefused(f"{ref}: the origin sends the transfer coding {said!r}, which nobody asked for")
        self._ref = ref
        self._response = response
        self._content = response.content
        self._stall = stall
        # What comes in chunks has no other length, whatever else the head says (RFC 9112, 6.3).
        self.length = None if "Transfer-Encoding" in response.headers else response.content_length
        """Bytes, as announced; None where the head does not say."""

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """About a MiB at a time, in the pieces that it came in: to join them took a tenth of all CPU (bench/fill.py).

        From a slow origin less, so that a transfer shows how far it is. Raises `Cut` when less comes than was announced.
        Closed before the end, it lets go of the connection.
        """
        content, batch = self._content, list[Piece]()
        try:
            while await self._fill(batch):
                yield batch
                batch = []
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            if batch:  # what came before the failure need not come again
                yield batch
            raise self._cut(f": {words(cause)}") from cause
        except GeneratorExit:
            let_go(self._response)
            raise
        if self.length is not None and content.total_bytes != self.length:
            raise self._cut()

    async def _fill(self, batch: list[Piece]) -> bool:
        """Take the next bytes into the batch; False at the end. Only the object's bytes count against a stall."""
        now = asyncio.get_running_loop().time
        size, began = 0, now()
        async with asyncio.timeout(self._stall and self._stall + LONGEST_BATCH):
            while not size or (size < PIECE and now() - began <= LONGEST_BATCH):
                piece, is_end_of_chunk = await self._content.readchunk()
                if len(piece) < SMALL_PIECE:
                    piece += self._content.read_nowait()
                if piece:
                    batch.append(piece)
                    size += len(piece)
                elif not is_end_of_chunk:
                    break
        return bool(batch)

    def _cut(self, why: str = "") -> Cut:
        expected = "an unknown number of" if self.length is None else self.length
        return Cut(f"{self._ref}: got {self._content.total_bytes} of {expected} bytes{why}")


def let_go(response: aiohttp.ClientResponse) -> None:
    """Keep its connection for the next request, or abort it in mid-body: a TLS farewell would go on taking bytes in."""
    connection = response.connection
    if connection is not None and connection.transport is not None and not response.content.is_eof():
        connection.transport.abort()
    response.release()


@contextmanager
def ended_with_connection(response: aiohttp.ClientResponse) -> Iterator[None]:
    """While a body is read, its connection's end ends it too.

    The parser closes the connection on a malformed chunk, and with it go its time limits, without a word to who reads.
    """
    content = response.content

    def end(_: object = None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    if response.connection is None or response.connection.protocol is None:  # the body was complete with the head
        yield
        return
    closed = response.connection.protocol.closed
    if closed is None:
        end()
        yield
        return
    closed.remove_done_callback(_note)
    closed.add_done_callback(_note)
    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)


def _note(closed: asyncio.Future[None]) -> None:
    """How a connection that is kept for later ends is of no interest."""
    if not closed.cancelled():
        closed.exception()


def _transfer_codings(response: aiohttp.ClientResponse) -> list[str]:
    """What the body was coded with on its way (RFC 9112, 6.1), in that order; `identity` is the old word for nothing."""
    said = ",".join(response.headers.getall("Transfer-Encoding", [])).lower().split(",")
    return [one for word in said if (one := word.strip()) not in ("", "identity")]
