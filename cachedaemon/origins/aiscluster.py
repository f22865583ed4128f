"""Requests to an AIStore cluster. A gateway is asked, and sends on to the target that has the object now.

That is never remembered: it changes as nodes come and go, and the URL may be signed for one use. The cluster's token goes
along to where the gateway sends, since targets may ask for it too, and no further: a target may send on to a
transformation's own server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

import aiohttp

from cachedaemon.config import Fetch, Secret, Source, ais_token
from cachedaemon.errors import OriginRefused
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.origins.body import let_go
from cachedaemon.origins.connections import Connections
from cachedaemon.origins.credentials import Credentials
from cachedaemon.origins.refusals import UNAUTHORISED
from cachedaemon.origins.targets import followed, without_user
from cachedaemon.origins.web import MOVED, REDIRECTS, THREADS, answer, merged
from cachedaemon.pools import started

FIRST_BYTE = 20
"""Stall limits that may pass before a target's answer begins: it first fetches all of a cold object from its backend."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Asked(NamedTuple):
    """A request, by its path below `/v1/` and its query."""

    target: str
    method: str = "GET"
    headers: Mapping[str, str] = _NOTHING
    body: bytes | None = None


class Cluster:
    """What one source asks of a cluster."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self.stall = fetch.stall_timeout or None
        """Seconds that bytes of a body may be waited for; None: no limit."""
        self._first_byte = self.stall and FIRST_BYTE * self.stall
        self._gateway = (source.endpoint or "").rstrip("/")
        self._threads = started(THREADS, f"origin-{name}")
        patience = fetch.connect_timeout or None
        token = {"Authorization": _Bearer(source.credentials)} if source.credentials else {}
        self._token = Credentials(token, patience, self._threads)
        self._headers = Credentials(source.headers, patience, self._threads)
        self._connections = Connections(name, source, fetch, metrics, self._threads)

    @asynccontextmanager
    async def answer(self, what: Ref | str, asked: Asked) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of whoever has it, whatever its status; let go of after the block.

        Raises `OriginRefused`, `OriginUnavailable`.
        """
        async with answer(what, self._renewed(what, asked)) as response:
            yield response

    async def _renewed(self, what: Ref | str, asked: Asked) -> aiohttp.ClientResponse:
        """An answer; a token that was refused and has changed since is sent anew, once."""
        token = await self._token.headers(what)
        response = await self._sent(what, asked, token)
        if response.status in UNAUTHORISED and (renewed := await self._token.headers(what)) != token:
            let_go(response)
            response = await self._sent(what, asked, renewed)
        return response

    async def _sent(self, what: Ref | str, asked: Asked, token: Mapping[str, str]) -> aiohttp.ClientResponse:
        """The answer behind all redirects. The one of the gateway takes the token along, the others take nothing."""
        url = f"{self._gateway}/v1/{asked.target}"
        secrets: Mapping[str, str] = merged(token, await self._headers.headers(what))
        # A gateway answers at once, but for a listing, which it first gathers from targets and backends.
        patience = self._first_byte if asked.body else None
        for _ in range(REDIRECTS + 1):
            response = await self._ask(url, asked, secrets, patience)
            location = response.headers.get("Location")
            if response.status not in MOVED or location is None:
                return response
            let_go(response)
            before, url = url, without_user(followed(url, location))[0]
            secrets = _NOTHING if _is_bared(before, url) else token
            token, patience = _NOTHING, self._first_byte
        raise OriginRefused(f"{what}: the cluster redirects over {REDIRECTS} times")

    async def _ask(
        self, url: str, asked: Asked, secrets: Mapping[str, str], patience: float | None
    ) -> aiohttp.ClientResponse:
        headers = merged(secrets, asked.headers, {"Content-Type": "application/json"} if asked.body else {})
        return await self._connections.ask(url, headers, method=asked.method, body=asked.body, patience=patience)

    async def close(self) -> None:
        """Close the connections; a thread that hangs is left alone."""
        await self._connections.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_bared(url: str, onward: str) -> bool:
    """Whether a redirect leads from TLS to a place without."""
    return url.lower().startswith("https:") and not onward.lower().startswith("https:")


class _Bearer:
    """A token as a header says it (RFC 6750)."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    def value(self) -> str:
        return f"Bearer {ais_token(self._secret)}"
