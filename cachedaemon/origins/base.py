"""What an origin is: it opens objects as streams, and tells its failures apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from cachedaemon.errors import BadRequest
from cachedaemon.model import Validators

Piece = bytes | memoryview
KEY = "{key}"
"""Where a key goes in a URL; without it, at the end."""
PIECE = 1 << 20
"""Bytes that are handed on at once, about."""


class Stream(Protocol):
    """One object, opened."""

    size: int | None
    """Bytes, as announced; None where the origin does not say."""
    validators: Validators

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The bytes, about a MiB at a time; each list is valid until the next one is asked for.

        Raises `Cut`, `Changed`, `OriginUnavailable`.
        """


class Origin(Protocol):
    """Where the shards of one source come from. Opening raises `Missing`, `OriginRefused` or `OriginUnavailable`."""

    async def look(self) -> None:
        """`OriginUnavailable` when it is not there, as far as that can be told without a key."""

    def check_key(self, key: str) -> None:
        """`BadRequest` for a key that this origin can never have."""

    def open(self, key: str) -> AbstractAsyncContextManager[Stream]:
        """An object's bytes, for a key that `check_key` lets pass."""

    async def keys(self) -> list[str]:
        """All keys, in order; `BadRequest` where the origin cannot list them."""

    async def close(self) -> None:
        """Give up connections and threads, without waiting for a thread that hangs."""


def refuse_dots(source: str, key: str) -> None:
    """A key must not climb out of its source: no segment may be `.` or `..`, no byte NUL."""
    if "\0" in key or any(segment in (".", "..") for segment in key.split("/")):
        raise BadRequest(f"{source}: the key {key!r} has a '.' or '..' segment or a NUL byte")
