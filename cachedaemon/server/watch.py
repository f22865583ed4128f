"""Metrics and health: what both listeners answer, and all that the one on TCP does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from cachedaemon.metrics import CONTENT_TYPE, Metrics
from cachedaemon.server.view import View


class Watch:
    """Handlers of the calls that change nothing."""

    def __init__(self, metrics: Metrics, view: View, is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._view = view
        self._is_ready = is_ready

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        """All metrics in the text format."""
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, _: web.Request) -> web.StreamResponse:
        """Alive; `degraded` names what is wrong. A degraded daemon still serves, so the status stays 200."""
        wrong = self._view.health()
        return web.json_response({"status": "degraded" if wrong else "ok", "reasons": wrong})

    async def readyz(self, _: web.Request) -> web.StreamResponse:
        """Whether requests are taken."""
        ready = self._is_ready()
        return web.json_response({"status": "ready" if ready else "stopping"}, status=200 if ready else 503)


Handler = Callable[[Watch, web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/metrics", Watch.metrics),
    ("GET", "/healthz", Watch.healthz),
    ("GET", "/readyz", Watch.readyz),
)
