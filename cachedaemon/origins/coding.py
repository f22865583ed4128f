"""Content codings (RFC 9110, 8.4.1) taken off a body as it comes, never much of it in memory at once.

A server that was asked for `identity` and codes all the same means the object inside. There is one exception: servers that
mark a stored `.gz` file as coded with gzip, by its suffix, mean the file. What such a name gets is gzip either way.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator

from cachedaemon.origins.base import PIECE, Piece

KNOWN = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP, _ZLIB = zlib.MAX_WBITS | 16, zlib.MAX_WBITS
_MAGIC = b"\x1f\x8b"
"""First bytes of gzip (RFC 1952)."""
LEAST_REACH = 512
"""Bytes of a member that are looked at first: what lies behind its end is copied, and members may be small."""
STEPS = 256
"""Looks at the coded bytes, after which others have their turn, whether or not anything came out."""


class Damaged(Exception):
    """The coded bytes are not what the coding says, or end early."""


class Decoder:
    """One coding of one body. A gzip body may have several members (RFC 1952, 2.2), and zeros as padding after them."""

    def __init__(self, coding: str) -> None:
        self._window = _ZLIB if coding == "deflate" else _GZIP
        self._begin_member()

    def _begin_member(self) -> None:
        self._member = zlib.decompressobj(self._window)
        self._reach = LEAST_REACH

    def feed(self, data: Piece) -> Iterator[list[bytes]]:
        """What a piece decodes to, a MiB at a time at the most, and nothing where that takes long. Raises `Damaged`."""
        rest = memoryview(data)
        while rest:
            batch, size = [], 0
            for _ in range(STEPS):
                plain, rest = self._step(rest, PIECE - size)
                batch.append(plain)
                size += len(plain)
                if not rest or size == PIECE:
                    break
            yield [plain for plain in batch if plain]

    def _step(self, rest: memoryview, most: int) -> tuple[bytes, memoryview]:
        """Some plain bytes, and what is still coded."""
        part = rest[: self._reach]
        if self._member.eof:
            return b"", rest[self._next_member(part) :]
        plain = self._decoded(part, most)
        self._reach = min(PIECE, 2 * self._reach)
        left = self._member.unconsumed_tail or self._member.unused_data
        return plain, rest[len(part) - len(left) :]

    def _decoded(self, data: Piece, most: int = PIECE) -> bytes:
        try:
            return self._member.decompress(data, most)
        except zlib.error as cause:
            raise Damaged(f"is damaged ({cause})") from cause

    def _next_member(self, data: memoryview) -> int:
        """How much of this, which follows a member, is padding; what is not begins another."""
        if self._window != _GZIP:
            raise Damaged("goes on after its end")
        padding = len(data) - len(bytes(data).lstrip(b"\0"))
        if padding < len(data):
            self._begin_member()
        return padding

    def end(self) -> Iterator[bytes]:
        """What is still to come after the last piece. Raises `Damaged` when the coding has not come to its end."""
        while not self._member.eof and (plain := self._decoded(b"")):
            yield plain
        if not self._member.eof:
            raise Damaged("ends early")


async def decoded(coding: str, name: str, batches: AsyncIterator[list[Piece]]) -> AsyncIterator[list[Piece]]:
    """The object of that name inside a coded body. Other tasks have their turn between any two steps of a MiB."""
    begin, keep = await _begin(coding, name, batches)
    if keep:
        yield begin
        async for batch in batches:
            yield batch
        return
    decoder = Decoder(coding)
    async for batch in _after(begin, batches):
        for piece in batch:
            for plain in decoder.feed(piece):
                if plain:
                    yield [*plain]
                else:
                    await asyncio.sleep(0)
    for last in decoder.end():
        yield [last]


async def _after(begin: list[Piece], rest: AsyncIterator[list[Piece]]) -> AsyncIterator[list[Piece]]:
    yield begin
    async for batch in rest:
        yield batch


async def _begin(coding: str, name: str, batches: AsyncIterator[list[Piece]]) -> tuple[list[Piece], bool]:
    """The first pieces, and whether the coding is the stored file's own.

    It is when the name says gzip, and what is inside is not gzip once more.
    """
    begin: list[Piece] = []
    if coding == "deflate" or not name.lower().endswith((".gz", ".tgz")):
        return begin, False
    inside, member = b"", zlib.decompressobj(_GZIP)
    try:
        async for batch in batches:
            begin += batch
            inside += member.decompress(b"".join(batch), len(_MAGIC) - len(inside))
            if len(inside) == len(_MAGIC) or member.eof:
                break
    except zlib.error:
        return begin, False
    return begin, inside != _MAGIC
