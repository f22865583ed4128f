"""What an origin is: it opens objects as streams, and tells its failures apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from cachedaemon.errors import BadRequest
from cachedaemon.model import Digest, Validators

Piece = bytes | memoryview
KEY = "{key}"
"""Where a key goes in a URL; without it, at the end."""
PIECE = 1 << 20
"""Bytes that are handed on at once, about."""


class Stream(Protocol):
    """One version of one object, opened."""

    size: int | None
    """Bytes, as announced; None where the origin does not say."""
    validators: Validators
    digests: tuple[Digest, ...]
    """What the origin says that the bytes come to; whoever takes them checks it."""
    has_parts: bool
    """Whether `part` can give any part of this version, and of no other: the origin has a strong validator for it."""

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, about a MiB at a time; each list is valid until the next one is asked for.

        A generator that is closed before its end lets go of its connection, where it has one: others take the rest.
        Raises `Cut`, `Changed`, `OriginUnavailable`.
        """

    def part(self, start: int, stop: int) -> AbstractAsyncContextManager[AsyncIterator[list[Piece]]]:
        """The bytes from `start` up to `stop` (not included, `start < stop <= size`) of this version, by a request of its own.

        Entering asks for them and has the answer's head; the iterator ends after just so many bytes, or raises `Cut`.
        Raises `Changed` when the origin has another version by now, `NoParts` when it sends something else than asked
        for, and what `open` raises.
        """


class Origin(Protocol):
    """Where the shards of one source come from. Opening raises `Missing`, `OriginRefused` or `OriginUnavailable`."""

    async def look(self) -> None:
        """`OriginUnavailable` when it is not there, as far as that can be told without a key."""

    def check_key(self, key: str) -> None:
        """`BadRequest` for a key that this origin can never have."""

    def open(self, key: str, known: Validators | None = None) -> AbstractAsyncContextManager[Stream | None]:
        """An object, for a key that `check_key` lets pass; None when it is still the version that is `known`.

        Any difference in validators is another version; without any, nothing can be told and the object is opened.
        """

    async def keys(self) -> list[str]:
        """All keys, in order; `BadRequest` where the origin cannot list them."""

    async def close(self) -> None:
        """Give up connections and threads, without waiting for a thread that hangs."""


def is_still(known: Validators | None, now: Validators) -> bool:
    """Whether these are the validators of the version that is known, and tell versions apart at all."""
    return known is not None and known == now and now != Validators()


def refuse_dots(source: str, key: str) -> None:
    """A key must not climb out of its source: no segment may be `.` or `..`, no byte NUL."""
    if "\0" in key or any(segment in (".", "..") for segment in key.split("/")):
        raise BadRequest(f"{source}: the key {key!r} has a '.' or '..' segment or a NUL byte")
