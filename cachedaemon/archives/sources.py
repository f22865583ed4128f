"""Where tars are read from: a file, or a gzip or zstd stream that is inflated in steps of bounded size."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from cachedaemon.archives.names import bad

STEP = 1 << 18  # bytes read, and about the bytes inflated, at once

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = range(0x184D2A50, 0x184D2A60)  # RFC 8878, 3.1.2
_ZSTD_BLOCK_MOST = 1 << 17
_ZSTD_WINDOW_MOST = 1 << 27  # what the zstd command takes without being told otherwise


class FileSource:
    """A plain tar, read at offsets, so that data is stepped over without reading it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = os.fstat(fd).st_size
        self.position = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        data = os.pread(self._fd, size, self.position)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), self.position + len(data))
            if not more:
                break
            data += more
        self.position += len(data)
        return data

    def skip(self, size: int) -> bool:
        """Go forward; False when the end comes before."""
        self.position += size
        return self.position <= self._end


class StreamSource:
    """A stream of chunks, of which never more than `most` bytes are taken."""

    def __init__(self, chunks: Iterator[bytes], most: int) -> None:
        self._chunks = chunks
        self._kept = b""
        self._at = 0  # in the chunk that is kept
        self._left = most
        self.position = 0

    def _more(self) -> bool:
        self._kept, self._at = next(self._chunks, b""), 0
        self._left -= len(self._kept)
        if self._left < 0:
            raise bad("limit", None, "the archive inflates to more than is allowed")
        return bool(self._kept)

    def take(self, most: int) -> bytes:
        """Some bytes, as many as are at hand; none only at the end."""
        if self._at >= len(self._kept) and not self._more():
            return b""
        data = self._kept[self._at : self._at + most]
        self._at += len(data)
        self.position += len(data)
        return data

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        data = self.take(size)
        if len(data) == size:
            return data
        parts, left = [data], size - len(data)
        while left and (data := self.take(left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def skip(self, size: int) -> bool:
        """Go forward; False when the end comes before."""
        while size:
            data = self.take(size)
            if not data:
                return False
            size -= len(data)
        return True


def inflated(fd: int, kind: str) -> Iterator[bytes]:
    """The tar in a compressed one, or in a plain one under such a name: a proxy or the store may have inflated it.

    Chunks are never empty. Raises BadArchive.
    """
    start = os.pread(fd, 4, 0)
    if start.startswith(_GZIP):
        return _gunzip(fd)
    if start == _ZSTD or (len(start) == 4 and int.from_bytes(start, "little") in _ZSTD_SKIPPED):
        return _unzstd(fd)
    if not start:
        raise bad("truncated", None, f"not a {kind} archive: it is empty")
    return _plain(fd)


def _plain(fd: int) -> Iterator[bytes]:
    at = 0
    while data := os.pread(fd, STEP, at):
        at += len(data)
        yield data


def _gunzip(fd: int) -> Iterator[bytes]:
    """All members of a gzip file (RFC 1952, 2.2), each with its CRC and length checked by zlib."""
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    for data in _plain(fd):
        while data:
            if stream.eof:
                if not data.strip(b"\0"):
                    break  # padding, as tapes leave it
                stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
            out, data = _gunzip_step(stream, data)  # noqa: PLW2901
            if out:
                yield out
    if not stream.eof:
        yield from _gunzip_rest(stream)


def _gunzip_step(stream: zlib._Decompress, data: bytes) -> tuple[bytes, bytes]:
    try:
        out = stream.decompress(data, STEP)
    except zlib.error as error:
        raise bad("corrupt", None, f"the gzip stream is damaged: {error}") from error
    return out, stream.unused_data if stream.eof else stream.unconsumed_tail


def _gunzip_rest(stream: zlib._Decompress) -> Iterator[bytes]:
    """What zlib still holds after the last input; an end that does not come then is a cut."""
    while out := _gunzip_step(stream, b"")[0]:
        yield out
    if not stream.eof:
        raise bad("truncated", None, "the gzip stream is cut")


def _unzstd(fd: int) -> Iterator[bytes]:
    """All frames of a zstd file (RFC 8878), fed block by block.

    A block gives at most 128 KiB, so memory stays bounded, and the walk knows exactly when a frame is whole.
    """
    import zstandard  # the other kinds do without  # noqa: PLC0415

    at, end = 0, os.fstat(fd).st_size
    while at < end:
        skipped = _skippable(fd, at)
        if skipped:
            at += skipped
            if at > end:
                raise bad("truncated", None, "the zstd stream is cut")
            continue
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MOST).decompressobj()
        try:
            for piece in _zstd_pieces(fd, at):
                at += len(piece)
                if out := frame.decompress(piece):
                    yield out
        except zstandard.ZstdError as error:
            reason = "limit" if "memory" in str(error).lower() else "corrupt"
            raise bad(reason, None, f"the zstd stream is damaged: {error}") from error
        if not frame.eof:
            raise bad("corrupt", None, "a zstd frame does not end where its last block does")


def _skippable(fd: int, at: int) -> int:
    """Length of a skippable frame, 0 when there is none at this place."""
    head = _exactly(fd, at, 4)
    if int.from_bytes(head, "little") not in _ZSTD_SKIPPED:
        if head != _ZSTD:
            raise bad("corrupt", None, "there are bytes behind the zstd stream")
        return 0
    return 8 + int.from_bytes(_exactly(fd, at + 4, 4), "little")


def _zstd_pieces(fd: int, at: int) -> Iterator[bytes]:
    """A frame's header, its blocks, its checksum."""
    flags = _exactly(fd, at + 4, 1)[0]
    single, checksum = flags >> 5 & 1, flags >> 2 & 1
    content_size = (single, 2, 4, 8)[flags >> 6]
    head = _exactly(fd, at, 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + content_size)
    yield head
    at += len(head)
    last = 0
    while not last:
        block = int.from_bytes(_exactly(fd, at, 3), "little")
        last, form, size = block & 1, block >> 1 & 3, block >> 3
        if form == 3 or size > _ZSTD_BLOCK_MOST:
            raise bad("corrupt", None, "the zstd stream is damaged: a block that cannot be")
        data = _exactly(fd, at, 3 + (1 if form == 1 else size))
        at += len(data)
        yield data
    if checksum:
        yield _exactly(fd, at, 4)


def _exactly(fd: int, at: int, length: int) -> bytes:
    data = os.pread(fd, length, at)
    if len(data) < length:
        raise bad("truncated", None, "the zstd stream is cut")
    return data
