"""GETs for one source: redirects followed, secrets kept where they belong, credentials renewed, failures mapped.

    async with web.get(ref, find, {"Range": "bytes=0-9"}, good=PART) as response:
        async for pieces in Body(ref, response, web.stall).pieces(): ...

is all that an origin which speaks HTTP needs; what it asks for and how it reads the head is its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import aiohttp
from multidict import CIMultiDict

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import OriginRefused
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.origins.body import ended_with_connection, let_go
from cachedaemon.origins.connections import Connections
from cachedaemon.origins.credentials import Credentials
from cachedaemon.origins.refusals import ORIGIN, UNAUTHORISED, no_answer, refusal
from cachedaemon.origins.targets import followed, is_same_site, without_user
from cachedaemon.pools import started

REDIRECTS = 10
THREADS = 4
"""Name look-ups and secrets of one source that are read at once."""
MOVED = frozenset({301, 302, 303, 307, 308})
_OK = frozenset({200})
_NOTHING: Mapping[str, str] = MappingProxyType({})

Find = Callable[[Ref], Awaitable[str]]
"""Where an object is now: its URL, with or without user and password."""


class Web:
    """What one source asks of web servers."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self.stall = fetch.stall_timeout or None
        """Seconds that bytes of a body may be waited for; None: no limit."""
        self.threads = started(THREADS, f"origin-{name}")
        self._credentials = Credentials(source.headers, fetch.connect_timeout or None, self.threads)
        self._who = f"{ORIGIN}, or the proxy before it," if source.proxy else ORIGIN
        self._connections = Connections(name, source, fetch, metrics, self.threads)

    @asynccontextmanager
    async def get(
        self, ref: Ref, find: Find, headers: Mapping[str, str] = _NOTHING, *, good: frozenset[int] = _OK
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET, after redirects, with a status that is `good`; let go of after the block.

        `headers` go to every server on the way; user and password of the URL, and what is configured, to its own site
        only. Raises `Missing`, `OriginRefused`, `OriginUnavailable`, and what `find` raises.
        """
        async with answer(ref, self._renewed(ref, find, headers), self._who) as response:
            if response.status not in good:
                who = self._who if response.url.scheme == "http" else ORIGIN
                raise refusal(ref, response.status, response.headers, who)
            yield response

    async def _renewed(self, ref: Ref, find: Find, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """An answer; a URL or credentials that were refused and have changed since are sent anew, once."""
        asked = await find(ref), await self._credentials.headers(ref)
        response = await self._followed(ref, *asked, headers)
        if response.status in UNAUTHORISED:
            let_go(response)
            renewed = await find(ref), await self._credentials.headers(ref)
            if renewed != asked:
                response = await self._followed(ref, *renewed, headers)
        return response

    async def _followed(
        self, ref: Ref, url: str, secrets: Mapping[str, str], headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """The answer behind all redirects. Once they have left the URL's site, secrets stay behind for good."""
        url, user = without_user(url)
        first, secrets, user = url, merged(_said(user), secrets), ""
        for _ in range(REDIRECTS + 1):
            response = await self._connections.ask(url, merged(secrets, _said(user), headers))
            location = response.headers.get("Location")
            if response.status not in MOVED or location is None:
                return response
            let_go(response)
            url, user = without_user(followed(url, location))
            secrets = secrets if is_same_site(first, url) else _NOTHING
        raise OriginRefused(f"{ref}: the origin redirects over {REDIRECTS} times")

    async def close(self) -> None:
        """Close the connections; a thread that hangs is left alone."""
        await self._connections.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


@asynccontextmanager
async def answer(
    what: Ref | str, asking: Awaitable[aiohttp.ClientResponse], who: str = ORIGIN
) -> AsyncIterator[aiohttp.ClientResponse]:
    """What a request is answered, whatever the status; let go of after the block. Raises `no_answer` where none comes.

    `who` was asked, for the message.
    """
    try:
        response = await asking
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as cause:
        raise no_answer(what, cause, who) from cause
    try:
        with ended_with_connection(response):
            yield response
    finally:
        let_go(response)


def _said(user: str) -> Mapping[str, str]:
    return {"Authorization": user} if user else _NOTHING


def merged(*parts: Mapping[str, str]) -> CIMultiDict[str]:
    """All these headers; of one that stands in several, in whatever case of letters, the last."""
    whole: CIMultiDict[str] = CIMultiDict()
    for part in parts:
        whole.update(part)
    return whole
