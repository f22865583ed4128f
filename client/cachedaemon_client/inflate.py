"""Inflating members of archives, by the methods of zip that the standard library has, within bounds."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any, Protocol

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14  # as in zip, APPNOTE 4.4.5


class Decompressor(Protocol):
    """What zlib, bz2 and lzma have in common here: output is bounded by `most`, input left over is kept."""

    def feed(self, data: bytes, most: int) -> bytes:
        """Inflate up to `most` bytes of this data and what was kept; raises ValueError for damaged data."""

    @property
    def complete(self) -> bool:
        """Whether the stream has come to its end."""

    @property
    def surplus(self) -> bool:
        """Whether there is input behind the end."""

    @property
    def hungry(self) -> bool:
        """Whether nothing more comes out without more input."""


class _Deflate:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._kept = b""
        self.hungry = True

    def feed(self, data: bytes, most: int) -> bytes:
        try:
            out = self._stream.decompress(self._kept + data if self._kept else data, most)
        except zlib.error as error:
            raise ValueError(f"deflated data is damaged: {error}") from error
        self._kept = self._stream.unconsumed_tail
        self.hungry = not self._kept and len(out) < most
        return out

    @property
    def complete(self) -> bool:
        return self._stream.eof

    @property
    def surplus(self) -> bool:
        return bool(self._stream.unused_data)


class _Bzip2:
    def __init__(self) -> None:
        import bz2  # may be absent from a Python, and is rare  # noqa: PLC0415

        self._stream = bz2.BZ2Decompressor()

    def feed(self, data: bytes, most: int) -> bytes:
        try:
            return self._stream.decompress(data, most)
        except (OSError, EOFError) as error:
            raise ValueError(f"bzip2 data is damaged: {error}") from error

    @property
    def complete(self) -> bool:
        return self._stream.eof

    @property
    def surplus(self) -> bool:
        return bool(self._stream.unused_data)

    @property
    def hungry(self) -> bool:
        return self._stream.needs_input


class _Lzma:
    """LZMA as zip has it: version, length of properties, properties, raw data (APPNOTE 5.8.8)."""

    _HEAD = 9

    def __init__(self) -> None:
        import lzma  # noqa: PLC0415

        self._lzma = lzma
        self._head = b""
        self._stream: lzma.LZMADecompressor | None = None

    def feed(self, data: bytes, most: int) -> bytes:
        if self._stream is None:
            self._head += data
            if len(self._head) < self._HEAD:
                return b""
            self._stream, data = self._start(self._head), self._head[self._HEAD :]
        try:
            return self._stream.decompress(data, most)
        except (self._lzma.LZMAError, EOFError) as error:
            raise ValueError(f"LZMA data is damaged: {error}") from error

    def _start(self, head: bytes) -> Any:
        length, flags, dictionary = struct.unpack_from("<2xHBI", head)
        if length != 5 or flags >= 9 * 5 * 5:
            raise ValueError("LZMA properties are damaged")
        chain = {"id": self._lzma.FILTER_LZMA1, "lc": flags % 9, "lp": flags // 9 % 5, "pb": flags // 45}
        try:
            return self._lzma.LZMADecompressor(self._lzma.FORMAT_RAW, filters=[chain | {"dict_size": dictionary}])
        except self._lzma.LZMAError as error:
            raise ValueError(f"LZMA properties are damaged: {error}") from error

    @property
    def complete(self) -> bool:
        return self._stream is not None and self._stream.eof

    @property
    def surplus(self) -> bool:
        return self._stream is not None and bool(self._stream.unused_data)

    @property
    def hungry(self) -> bool:
        return self._stream is None or self._stream.needs_input


_METHODS: dict[int, type[_Deflate | _Bzip2 | _Lzma]] = {DEFLATED: _Deflate, BZIP2: _Bzip2, LZMA: _Lzma}


def decompressor(method: int) -> Decompressor:
    """A fresh one; raises io.UnsupportedOperation for a method that is unknown, or absent from this Python."""
    try:
        return _METHODS[method]()
    except (KeyError, ImportError) as error:
        raise io.UnsupportedOperation(f"compression method {method} is not available") from error


def inflate(method: int, data: bytes, size: int, crc: int | None) -> bytes:
    """The `size` bytes that `data` inflates to, never more of them in memory; raises ValueError for anything else."""
    if size >= sys.maxsize:
        raise ValueError(f"cannot have {size} bytes")
    stream = decompressor(method)
    out = stream.feed(data, size + 1)
    while len(out) <= size and not stream.complete:
        more = stream.feed(b"", size + 1 - len(out))
        if not more:
            break
        out += more
    if len(out) != size or not ended(stream, method):
        raise ValueError(f"inflates to other than the {size} bytes that the archive says")
    if crc is not None and zlib.crc32(out) != crc:
        raise ValueError("its CRC is wrong")
    return out


def ended(stream: Decompressor, method: int) -> bool:
    """Whether the compressed data ended where the member ends; LZMA need not mark its end."""
    return (stream.complete or method == LZMA) and not stream.surplus
