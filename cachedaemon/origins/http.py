"""Any web server (RFC 9110). The object is what the server calls the identity form: content codings are taken off.

No probe comes first: a GET says all that a HEAD can, and servers lie in a HEAD more often.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp

from cachedaemon.config import Fetch, Source
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import is_still
from cachedaemon.origins.places import Listed, Places, Prefix
from cachedaemon.origins.web import Web
from cachedaemon.origins.webstream import PART, WebStream

_OK, _OK_OR_STILL = frozenset({200}), frozenset({200, 304})


class HttpOrigin:
    """Objects under a URL prefix, or at the URLs of a file."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._web = Web(name, source, fetch, metrics)
        self._places: Places = Prefix(name, source.url)
        if source.urls is not None:
            self._places = Listed(name, source.urls, fetch.connect_timeout or None, self._web.threads)

    async def look(self) -> None:
        """A server is asked for objects only."""
        await self._places.look()

    def check_key(self, key: str) -> None:
        """No key climbs out of the URL's path."""
        self._places.check_key(key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[WebStream | None]:
        """A GET of the key's URL, for another version than the known one where that has an ETag.

        A date is only compared: a condition on it would order versions, and a version put back is older than the known.
        """
        ref = Ref(self._name, key)

        def again(headers: Mapping[str, str]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
            return self._web.get(ref, self._places.find, headers, good=PART)

        condition = _unless(known)
        good = _OK_OR_STILL if condition else _OK
        async with self._web.get(ref, self._places.find, condition, good=good) as response:
            if response.status == 304:
                yield None
                return
            stream = WebStream(ref, response, again, self._web.stall)
            yield None if is_still(known, stream.validators) else stream

    async def keys(self) -> list[str]:
        """All keys of the file of URLs; `BadRequest` for a prefix: a web server has no list of its objects."""
        return await self._places.keys()

    async def close(self) -> None:
        """Close the connections."""
        await self._web.close()


def _unless(known: Validators | None) -> Mapping[str, str]:
    """The condition that an object is another version; none for a tag that no header can carry, which is compared only."""
    if known is None or not known.etag or not known.etag.isprintable():
        return {}
    return {"If-None-Match": known.etag}
