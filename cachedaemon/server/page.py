"""The page at `/`, and the feed that keeps it live: read-only, names of shards and no URLs.

The page is one file whose style and script stand in it; the browser runs no other (Content Security Policy Level 3), and
nothing that a key holds becomes markup. Only the page itself is let read the feed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from importlib import resources

from aiohttp import web

from cachedaemon.errors import Forbidden, TooMany
from cachedaemon.server.live import APART, Live

HTML = resources.files("cachedaemon.server").joinpath("page.html").read_text("utf-8")
VIEWERS = 16
"""Browsers that look at once."""
UNREAD = 30.0
"""Seconds that a viewer may take to read one snapshot."""


class Page:
    """Handlers of the page and its feed."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._viewers = 0
        self._headers = {
            "Content-Security-Policy": _policy(HTML),
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def page(self, _: web.Request) -> web.StreamResponse:
        """The page."""
        return web.Response(text=HTML, content_type="text/html", charset="utf-8", headers=self._headers)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events (HTML Living Standard, 9.2): `points` and `map` when they are new, then `now`, each second."""
        _require_same_origin(request)
        if self._viewers >= VIEWERS:
            raise TooMany(f"{VIEWERS} browsers look at this page already, and no more may")
        self._viewers += 1
        try:
            return await self._feed(request)
        finally:
            self._viewers -= 1

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        """Until the viewer leaves, or the daemon stops."""
        response = web.StreamResponse(headers=self._headers | {"Content-Type": "text/event-stream"})
        await response.prepare(request)
        since, cells = 0.0, ""
        while not self._live.ended.is_set():
            snapshot = await self._live.now()
            told = []
            if points := self._live.history.points(since):
                since = points[-1]["at"]
                told.append(_event("points", json.dumps(points, separators=(",", ":"))))
            if snapshot.map_text != cells:
                cells = snapshot.map_text
                told.append(_event("map", cells))
            told.append(_event("now", snapshot.text))
            if not await _is_read(request, response, "".join(told)):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._live.ended.wait(), APART)
        return response


async def _is_read(request: web.Request, response: web.StreamResponse, text: str) -> bool:
    """Send it; one who does not read keeps no place that others could have."""
    try:
        async with asyncio.timeout(UNREAD):
            await response.write(text.encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    return True


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def _policy(html: str) -> str:
    """Only the style and the script of the page itself, known by their digests; no request but to the feed."""
    own = {kind: _digest(re.findall(f"<{kind}>(.*?)</{kind}>", html, re.DOTALL)) for kind in ("style", "script")}
    return (
        f"default-src 'none'; style-src {own['style']}; script-src {own['script']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _digest(texts: list[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in texts)


def _require_same_origin(request: web.Request) -> None:
    """Browsers say whose script asks (Fetch Metadata, Sec-Fetch-Site); others than browsers say nothing."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise Forbidden("the page's feed is for the page alone, and was asked for by another site's")


Handler = Callable[[Page, web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", Page.page),
    ("GET", "/page/events", Page.events),
)
