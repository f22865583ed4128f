"""The connections of one source: TLS, proxy, names and time limits, and one request at a time over them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any

import aiohttp

from cachedaemon.config import Fetch, Source
from cachedaemon.metrics import Metrics
from cachedaemon.origins.base import PIECE
from cachedaemon.origins.resolve import Resolver
from cachedaemon.origins.targets import sendable, without_user
from cachedaemon.origins.trust import Trust

AGENT = "cachedaemon"
HEAD_LINE = 64 << 10
"""Bytes of one line of an answer's head, at the most; a signed Location may be long."""


class Connections:
    """A pool of connections, made when the first request goes out. `threads` look names up and read certificates."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics, threads: Executor) -> None:
        patience, stall = fetch.connect_timeout or None, fetch.stall_timeout or None
        self._trust = Trust(source, threads)
        proxy, user = without_user(source.proxy) if source.proxy else ("", "")
        self._proxy = proxy or None
        self._proxy_headers = {"Proxy-Authorization": user} if user else {}
        self._head_limit = patience + stall if patience and stall else None
        self._patience, self._stall = patience, stall
        self._name, self._metrics = name, metrics
        self._threads = threads
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        patience: float | None = None,
    ) -> aiohttp.ClientResponse:
        """An answer's head, whatever its status. It has a limit as a whole: a server may go on with interim answers.

        `patience`: seconds of that limit, for an answer that may take longer than others to begin. Raises what aiohttp
        raises, TimeoutError, OSError and ValueError.
        """
        status = "failed"
        try:
            async with asyncio.timeout(patience or self._head_limit):
                response = await self._trusting(
                    method, url, headers=self._with_proxy(url, headers), data=body, timeout=self._limits(patience)
                )
            status = str(response.status)
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()
        return response

    async def _trusting(self, method: str, url: str, **how: Any) -> aiohttp.ClientResponse:
        """A certificate that is not trusted is looked at again, once, if the file of the authorities has changed."""
        try:
            return await self._unraced(method, url, ssl=await self._trust.context(), **how)
        except aiohttp.ClientConnectorCertificateError:
            if not await self._trust.has_changed():
                raise
        return await self._unraced(method, url, ssl=await self._trust.context(), **how)

    async def _unraced(self, method: str, url: str, **how: Any) -> aiohttp.ClientResponse:
        """A request that got no answer on a connection that had served before is repeated at once.

        The server was just closing it (RFC 9112, 9.3.1). Each repetition costs the pool a connection, so they end.
        """
        session = self._session or self._begin()
        while True:
            way = SimpleNamespace(used_before=False)
            try:
                return await session.request(
                    method,
                    sendable(url),
                    allow_redirects=False,
                    proxy=self._proxy,
                    proxy_headers=self._proxy_headers,
                    trace_request_ctx=way,
                    **how,
                )
            except _Lost as lost:
                if not way.used_before:
                    raise lost.cause from None

    def _with_proxy(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """What a proxy asks for goes to it with each plain request; with TLS only when the way is made (CONNECT)."""
        return {**headers, **self._proxy_headers} if url.lower().startswith("http:") else headers

    def _limits(self, patience: float | None) -> aiohttp.ClientTimeout:
        """Who reads the body has a limit of their own, if the one here is longer for the head's sake."""
        connect, read = self._patience, patience or self._stall
        return aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=read)

    def _begin(self) -> aiohttp.ClientSession:
        """The session that all requests share."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=Resolver(self._threads)),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": AGENT, "Accept-Encoding": "identity"},
            read_bufsize=PIECE,
            max_line_size=HEAD_LINE,
            max_field_size=HEAD_LINE,
            requote_redirect_url=False,
            middlewares=(_once,),
            trace_configs=[_ways()],
        )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


class _Lost(aiohttp.ClientError):
    """A connection that ended before the answer; aiohttp's own kinds for it would be tried again by aiohttp, once."""

    def __init__(self, cause: aiohttp.ClientError) -> None:
        super().__init__()
        self.cause = cause


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as cause:
        raise _Lost(cause) from cause


def _ways() -> aiohttp.TraceConfig:
    """Notes on each request whether its connection had served before."""

    async def note(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.used_before = True

    ways = aiohttp.TraceConfig()
    ways.on_connection_reuseconn.append(note)
    return ways
