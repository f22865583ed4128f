"""Origins as a transfer uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from cachedaemon.config import Fetch, Source
from cachedaemon.metrics import Metrics
from cachedaemon.origins import Origin, origin_of
from tests.contract.origins.places import STALL


@asynccontextmanager
async def opened(url: str, settings: Mapping[str, object] | None = None, **fetch: object) -> AsyncIterator[Origin]:
    """The origin of a source "s" at this URL; `fetch` as in the configuration."""
    limits = {"connect_timeout": "5s", "stall_timeout": f"{STALL}s", **fetch}
    source = await asyncio.to_thread(Source.model_validate, {"url": url, **(settings or {})})
    origin = origin_of("s", source, Fetch.model_validate(limits), Metrics("test"))
    try:
        yield origin
    finally:
        await origin.close()


async def read(origin: Origin, key: str, then: Callable[[], None] = lambda: None) -> bytes:
    """All of an object, taken as a landing takes it: each list is done with before the next one.

    `then` is called once the object is open.
    """
    got = bytearray()
    async with origin.open(key) as stream:
        then()
        async for pieces in stream.pieces():
            for piece in pieces:
                got += piece
        assert stream.size in (None, len(got))
    return bytes(got)
