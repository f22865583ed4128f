"""Content codings (RFC 9110, 8.4.1) taken off a body as it comes, never much of it in memory at once.

A server that was asked for `identity` and codes all the same means the object inside. There is one exception: servers that
mark a stored `.gz` file as coded with gzip, by its suffix, mean the file. What such a name gets is gzip either way.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

from cachedaemon.origins.base import PIECE, Piece

KNOWN = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP, _ZLIB = zlib.MAX_WBITS | 16, zlib.MAX_WBITS
_MAGIC = b"\x1f\x8b"
"""First bytes of gzip (RFC 1952)."""


class Damaged(Exception):
    """The coded bytes are not what the coding says, or end early."""


class Decoder:
    """One coding of one body. A gzip body may have several members (RFC 1952, 2.2), and zeros as padding after them."""

    def __init__(self, coding: str) -> None:
        self._window = _ZLIB if coding == "deflate" else _GZIP
        self._member = zlib.decompressobj(self._window)

    def feed(self, data: Piece) -> Iterator[bytes]:
        """What a piece decodes to, about a MiB at a time. Raises `Damaged`."""
        while data and (not self._member.eof or (data := self._next_member(bytes(data)))):
            if plain := self._decoded(data):
                yield plain
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def _decoded(self, data: Piece) -> bytes:
        try:
            return self._member.decompress(data, PIECE)
        except zlib.error as cause:
            raise Damaged(f"is damaged ({cause})") from cause

    def _next_member(self, data: bytes) -> bytes:
        if self._window != _GZIP:
            raise Damaged("goes on after its end")
        rest = data.lstrip(b"\0")
        if rest:
            self._member = zlib.decompressobj(self._window)
        return rest

    def end(self) -> Iterator[bytes]:
        """What is still to come after the last piece. Raises `Damaged` when the coding has not come to its end."""
        while not self._member.eof and (plain := self._decoded(b"")):
            yield plain
        if not self._member.eof:
            raise Damaged("ends early")


async def decoded(coding: str, name: str, batches: AsyncIterator[list[Piece]]) -> AsyncIterator[list[Piece]]:
    """The object of that name inside a coded body."""
    decoder, keep = Decoder(coding), None
    async for batch in batches:
        if keep is None:
            keep = _is_the_file(coding, name, batch)
        if keep:
            yield batch
            continue
        for piece in batch:
            for plain in decoder.feed(piece):
                yield [plain]
    if not keep:
        for plain in decoder.end():
            yield [plain]


def _is_the_file(coding: str, name: str, begin: list[Piece]) -> bool:
    """Whether the coding is the stored file's own: its name says gzip, and what is inside is not gzip once more."""
    if coding == "deflate" or not name.lower().endswith((".gz", ".tgz")):
        return False
    try:
        inside = zlib.decompressobj(_GZIP).decompress(b"".join(begin), len(_MAGIC))
    except zlib.error:
        return False
    return inside != _MAGIC
