"""Digests that others give of an object's bytes: which kinds there are, and how several are taken at once.

Values are bytes as the tools print them in hex: of a CRC, the most significant byte first.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, Self, TypeAlias

import anycrc  # type: ignore[import-untyped]
import xxhash

from cachedaemon.model import Digest

Piece: TypeAlias = bytes | memoryview


class Hash(Protocol):
    """One digest under way, as in hashlib."""

    def update(self, piece: Piece, /) -> None:
        """Take more bytes."""

    def digest(self) -> bytes:
        """Of the bytes so far."""

    def copy(self) -> Self:
        """Another one at the same place."""


class Crc:
    """A CRC under way; `extend(piece, crc)` gives the CRC of what came before with the piece behind it."""

    def __init__(self, extend: Callable[[Piece, int], int], width: int, value: int = 0) -> None:
        self._extend = extend
        self._width = width
        self._value = value

    def update(self, piece: Piece, /) -> None:
        """Take more bytes."""
        self._value = self._extend(piece, self._value)

    def digest(self) -> bytes:
        """Big-endian, as object stores encode it."""
        return self._value.to_bytes(self._width, "big")

    def copy(self) -> Crc:
        """Another one at the same place."""
        return Crc(self._extend, self._width, self._value)


def _hashlib(kind: str) -> Callable[[], Hash]:
    # They find damage here and keep no secret: a system in FIPS mode must not refuse md5.
    return partial(hashlib.new, kind, usedforsecurity=False)


KINDS: Mapping[str, Callable[[], Hash]] = {
    **{kind: _hashlib(kind) for kind in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")},
    "crc32": partial(Crc, zlib.crc32, 4),
    "crc32c": partial(Crc, anycrc.Model("CRC32C").calc, 4),  # RFC 3720, Castagnoli
    "crc64nvme": partial(Crc, anycrc.Model("CRC64-NVME").calc, 8),  # NVM Command Set Specification, 64-bit guard
    "xxh64": xxhash.xxh64,
    "xxh3-128": xxhash.xxh3_128,
}
"""The kinds that can be checked, and how to begin each."""


class Hashes:
    """Digests of several kinds, all of the same bytes. A kind that is not one of `KINDS` is a KeyError."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._hashes = {kind: KINDS[kind]() for kind in kinds}

    def update(self, piece: Piece) -> None:
        """Take more bytes. Without the interpreter's lock where the piece is not small."""
        for one in self._hashes.values():
            one.update(piece)

    def copy(self) -> Hashes:
        """The same at this place, to go on by itself."""
        other = Hashes(())
        other._hashes = {kind: one.copy() for kind, one in self._hashes.items()}
        return other

    def mismatch(self, expected: Iterable[Digest]) -> str | None:
        """What the bytes so far do not come to, with kind, got and expected; None when every digest is right.

        Each kind that is expected must be one of those that are taken.
        """
        wrong = (_differs(one, self._hashes[one.kind].digest()) for one in expected)
        return "; ".join(filter(None, wrong)) or None


def _differs(expected: Digest, got: bytes) -> str | None:
    if got == expected.value:
        return None
    return f"{expected.kind} is {got.hex()}, expected {expected.value.hex()}"
