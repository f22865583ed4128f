"""Any web server (RFC 9110). The object is what the server calls the identity form: content codings are taken off.

No probe comes first: a GET says all that a HEAD can, and servers lie in a HEAD more often.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import BadRequest
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import is_still, refuse_dots
from cachedaemon.origins.targets import placed
from cachedaemon.origins.web import Web
from cachedaemon.origins.webstream import PART, WebStream

_OK, _OK_OR_STILL = frozenset({200}), frozenset({200, 304})


class HttpOrigin:
    """Objects under a URL prefix."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._url = source.url
        self._web = Web(name, source, fetch, metrics)

    async def look(self) -> None:
        """A server is asked for objects only."""

    def check_key(self, key: str) -> None:
        """No key climbs out of the URL's path."""
        refuse_dots(self._name, key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[WebStream | None]:
        """A GET of the key's URL, for another version than the known one where that has an ETag.

        A date is only compared: a condition on it would order versions, and a version put back is older than the known.
        """
        ref, url = Ref(self._name, key), placed(self._url, key)

        def again(headers: Mapping[str, str]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
            return self._web.get(ref, url, headers, good=PART)

        condition = {"If-None-Match": known.etag} if known is not None and known.etag else {}
        async with self._web.get(ref, url, condition, good=_OK_OR_STILL if condition else _OK) as response:
            if response.status == 304:
                yield None
                return
            stream = WebStream(ref, response, again, self._web.stall)
            yield None if is_still(known, stream.validators) else stream

    async def keys(self) -> list[str]:
        """A web server has no list of its objects."""
        raise BadRequest(f"{self._name}: an http source cannot list its keys; name them")

    async def close(self) -> None:
        """Close the connections."""
        await self._web.close()
