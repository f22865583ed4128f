"""Origins as a transfer uses them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from cachedaemon.config import Fetch, Source
from cachedaemon.conformance.place import STALL, Then, nothing
from cachedaemon.digests import Hashes
from cachedaemon.metrics import Metrics
from cachedaemon.origins import Origin, Stream, origin_of

NAME = "s"
"""Of the source under test."""


@asynccontextmanager
async def opened(url: str, settings: Mapping[str, object] | None = None, **fetch: object) -> AsyncIterator[Origin]:
    """The origin of a source "s" at this URL; `settings` and `fetch` as in the configuration."""
    limits = {"connect_timeout": "5s", "stall_timeout": f"{STALL}s", **fetch}
    source = await asyncio.to_thread(Source.model_validate, {"url": url, **(settings or {})})
    origin = origin_of(NAME, source, Fetch.model_validate(limits), Metrics("test"))
    try:
        yield origin
    finally:
        await origin.close()


@asynccontextmanager
async def stream_of(origin: Origin, key: str) -> AsyncIterator[Stream]:
    """An object, opened without knowing any version of it."""
    async with origin.open(key) as stream:
        assert stream is not None, "nothing was known, so it cannot be unchanged"
        yield stream


async def read(origin: Origin, key: str, then: Then = nothing) -> bytes:
    """All of an object, taken as a landing takes it: each list is done with before the next one.

    `then` is called once the object is open.
    """
    async with stream_of(origin, key) as stream:
        then()
        return await read_all(stream)


async def read_all(stream: Stream) -> bytes:
    """What a stream gives, which is as long as it said, and comes to the digests that it has."""
    got, hashes = bytearray(), Hashes(digest.kind for digest in stream.digests)
    async for pieces in stream.pieces():
        for piece in pieces:
            got += piece
            hashes.update(piece)
    assert stream.size in (None, len(got))
    assert hashes.mismatch(stream.digests) is None
    return bytes(got)


async def read_part(stream: Stream, start: int, stop: int, then: Then = nothing) -> bytes:
    """A part of this version; `then` is called once its answer has begun."""
    got = bytearray()
    async with stream.part(start, stop) as lists:
        then()
        async for pieces in lists:
            for piece in pieces:
                got += piece
    return bytes(got)


def bytes_of(name: str, size: int, version: int = 0) -> bytes:
    """Bytes that no other name or version has, the same each time."""
    return hashlib.shake_128(f"{version}:{name}".encode()).digest(size)
