"""Whatever fsspec reads: `fsspec+sftp://user@host/folder/`, with any of its protocols and installed implementations.

fsspec runs in processes of the source's own; see `cachedaemon.foreign`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cachedaemon.config import Fetch, Source, whole_environment
from cachedaemon.errors import BadRequest
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import KEY, refuse_dots
from cachedaemon.origins.foreign import SPARE, Foreign, ForeignStream, Wanted, opened, options_of
from cachedaemon.origins.workers import Workers


class FsspecOrigin:
    """Objects below one URL of an fsspec file system."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._url = source.url.partition("+")[2]
        self._defaults: dict[str, object] = {"host_key_policy": "auto_add"} if source.insecure else {}
        workers = Workers("anything", whole_environment(), source.concurrency + SPARE, lasting=True)
        self._foreign = Foreign(name, source, fetch, metrics, workers)

    async def look(self) -> None:
        """Whether the file system can be reached, and the folder is there."""
        await self._first(f"source {self._name}", {"check": True})

    def check_key(self, key: str) -> None:
        """No key climbs out of the folder."""
        refuse_dots(self._name, key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[ForeignStream | None]:
        """The object of a key."""
        ref = Ref(self._name, key)
        wanted = Wanted(ref, await self._request(ref, {"open": key}), has_parts=True)
        async with opened(self._foreign, wanted, known) as stream:
            yield stream

    async def keys(self) -> list[str]:
        """All objects below the folder, as keys."""
        if KEY in self._url:
            raise BadRequest(f"{self._name}: a source whose url has {KEY} cannot list its keys; name them")
        ref, found = Ref(self._name, "*"), list[str]()
        async with self._foreign.asked(ref, await self._request(ref, {"walk": True})) as link:
            more = await self._foreign.head(ref, link)
            while more is not None:
                found += more
                more = await self._foreign.more(ref, link)
        return sorted(found)

    async def close(self) -> None:
        """End the processes."""
        await self._foreign.close()

    async def _first(self, ref: str, asked: dict[str, object]) -> Any:
        async with self._foreign.asked(ref, await self._request(ref, asked)) as link:
            return await self._foreign.head(ref, link)

    async def _request(self, ref: Ref | str, asked: dict[str, object]) -> dict[str, object]:
        options = self._defaults | options_of(ref, await self._foreign.secret(ref))
        return {"url": self._url, "options": options, **asked}
