"""HTTP over the Unix socket, and the read-only listener for scraping."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from cachedaemon import errors
from cachedaemon.errors import CacheDaemonError
from cachedaemon.server.api import ROUTES, Api
from cachedaemon.server.bodies import LARGEST, json_error
from cachedaemon.server.view import View
from cachedaemon.server.watch import ROUTES as WATCHED
from cachedaemon.server.watch import Watch

log = logging.getLogger(__name__)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


def application(api: Api, watch: Watch, generation: Callable[[], str]) -> web.Application:
    """What answers on the Unix socket."""
    app = web.Application(middlewares=[_errors], client_max_size=LARGEST)
    app.add_routes([web.route(method, path, _bound(api, handler)) for method, path, handler in ROUTES])
    app.add_routes(_watched(watch))

    async def mark(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Cachedaemon-Generation"] = generation()

    app.on_response_prepare.append(mark)
    return app


def scraping(watch: Watch) -> web.Application:
    """What answers on the TCP listener: nothing that changes anything."""
    app = web.Application(middlewares=[_errors])
    app.add_routes(_watched(watch))
    return app


def _watched(watch: Watch) -> list[web.RouteDef]:
    """Probes of other programs may come as HEAD."""
    return [web.get(path, _bound(watch, handler)) for _, path, handler in WATCHED]


def _bound(of: T, handler: Callable[[T, web.Request], Awaitable[web.StreamResponse]]) -> Next:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(of, request)

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
    if isinstance(cause, web.HTTPRequestEntityTooLarge):
        return errors.BadRequest(f"the body is too long; allowed are {LARGEST} bytes")
    return errors.BadRequest(f"{request.method} {request.path}: {cause.reason}")


def answer_error(cause: CacheDaemonError) -> web.Response:
    """The answer that an error stands for."""
    body = json_error(cause.code, str(cause), retryable=cause.retryable, **cause.details())
    wait = getattr(cause, "retry_after", None) or 1
    headers = {"Retry-After": str(math.ceil(wait))} if cause.status == 503 else {}
    return web.json_response(body, status=cause.status, headers=headers)


__all__ = ["Api", "View", "Watch", "application", "scraping"]
