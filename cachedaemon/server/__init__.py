"""HTTP over the Unix socket, and the read-only listener for scraping."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from cachedaemon import errors
from cachedaemon.errors import CacheDaemonError
from cachedaemon.metrics import CONTENT_TYPE, Metrics
from cachedaemon.server.api import ROUTES, Api
from cachedaemon.server.bodies import LARGEST, json_error
from cachedaemon.server.view import View

log = logging.getLogger(__name__)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Watch:
    """Metrics and health, for both listeners."""

    def __init__(self, metrics: Metrics, view: View, is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._view = view
        self._is_ready = is_ready

    async def metrics(self, _: web.Request) -> web.Response:
        """All metrics in the text format."""
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, _: web.Request) -> web.Response:
        """Alive; `degraded` names what is wrong. A degraded daemon still serves, so the status stays 200."""
        wrong = self._view.health()
        return web.json_response({"status": "degraded" if wrong else "ok", "reasons": wrong})

    async def readyz(self, _: web.Request) -> web.Response:
        """Whether requests are taken."""
        ready = self._is_ready()
        return web.json_response({"status": "ready" if ready else "stopping"}, status=200 if ready else 503)

    def routes(self) -> list[web.RouteDef]:
        """What both listeners have."""
        return [
            web.get("/metrics", self.metrics),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
        ]


def application(api: Api, watch: Watch, generation: Callable[[], str]) -> web.Application:
    """What answers on the Unix socket."""
    app = web.Application(middlewares=[_errors], client_max_size=LARGEST)
    app.add_routes([web.route(method, path, _bound(api, handler)) for method, path, handler in ROUTES])
    app.add_routes(watch.routes())

    async def mark(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Cachedaemon-Generation"] = generation()

    app.on_response_prepare.append(mark)
    return app


def scraping(watch: Watch) -> web.Application:
    """What answers on the TCP listener: nothing that changes anything."""
    app = web.Application(middlewares=[_errors])
    app.add_routes(watch.routes())
    return app


def _bound(api: Api, handler: Callable[[Api, web.Request], Awaitable[web.StreamResponse]]) -> Next:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(api, request)

    return answer


@web.middleware
async def _errors(request: web.Request, handler: Next) -> web.StreamResponse:
    """Every error answers in one form."""
    try:
        return await handler(request)
    except CacheDaemonError as cause:
        return answer_error(cause)
    except web.HTTPException as cause:
        return answer_error(_from_http(request, cause))
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return answer_error(CacheDaemonError("the daemon failed to answer; its log says why"))


def _from_http(request: web.Request, cause: web.HTTPException) -> CacheDaemonError:
    if isinstance(cause, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(cause.allowed_methods))
        return errors.MethodNotAllowed(f"{request.method} {request.path}: allowed are {allowed}")
    if isinstance(cause, web.HTTPNotFound):
        return errors.NotFound(f"nothing answers at {request.path}")
    return errors.BadRequest(f"{request.method} {request.path}: {cause.reason}")


def answer_error(cause: CacheDaemonError) -> web.Response:
    """The answer that an error stands for."""
    body = json_error(cause.code, str(cause), retryable=cause.retryable, **cause.details())
    headers = {"Retry-After": "1"} if cause.status == 503 else {}
    return web.json_response(body, status=cause.status, headers=headers)


__all__ = ["Api", "View", "Watch", "application", "scraping"]
