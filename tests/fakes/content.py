"""Shard bytes that nobody stores: (name, size, seed) always gives the same bytes, from any offset on.

A block of 64 KiB is a digest of (seed, name, block number) followed by a cut of one fixed pad at a place that the
digest picks. So bytes of another shard, another version or another offset never pass for the right ones, and making
them costs a copy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 16
_SPAN = 1 << 20
_PAD = memoryview(hashlib.shake_128(b"the pad that all shards are cut from").digest(_SPAN + BLOCK))


def _block(name: str, seed: int, number: int) -> bytes:
    mark = hashlib.blake2b(f"{seed}:{number}:{name}".encode(), digest_size=32).digest()
    at = int.from_bytes(mark[:4], "little") % _SPAN
    return mark + _PAD[at : at + BLOCK - len(mark)]


def pieces(name: str, start: int, stop: int, seed: int = 0) -> Iterator[bytes]:
    """The bytes from `start` up to `stop`, in pieces of at most 64 KiB."""
    while start < stop:
        number, at = divmod(start, BLOCK)
        piece = _block(name, seed, number)[at : at + stop - start]
        yield piece
        start += len(piece)


def data(name: str, size: int, seed: int = 0) -> bytes:
    """All bytes of a shard."""
    return b"".join(pieces(name, 0, size, seed))


def sha256(name: str, size: int, seed: int = 0) -> str:
    """The shard's sha256 in hex."""
    digest = hashlib.sha256()
    for piece in pieces(name, 0, size, seed):
        digest.update(piece)
    return digest.hexdigest()


def xxh3(name: str, size: int, seed: int = 0) -> str:
    """The shard's xxh3-128 in hex."""
    import xxhash  # not at the top: readers run on interpreters that have only the client

    digest = xxhash.xxh3_128()
    for piece in pieces(name, 0, size, seed):
        digest.update(piece)
    return digest.hexdigest()


def write(path: Path | str, name: str, size: int, seed: int = 0) -> None:
    """Store the shard at `path`, for mounted sources."""
    with Path(path).open("wb") as file:
        file.writelines(pieces(name, 0, size, seed))


def matches(path: Path | str, name: str, size: int, seed: int = 0) -> bool:
    """Whether the file at `path` holds exactly the shard's bytes."""
    with Path(path).open("rb") as file:
        return all(file.read(len(piece)) == piece for piece in pieces(name, 0, size, seed)) and not file.read(1)
