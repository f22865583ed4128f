"""HTTP over the Unix socket, and the read-only listener for scraping."""

from __future__ import annotations

import itertools
import logging
import resource
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import HttpVersion11, web

from cachedaemon.errors import BadRequest, CacheDaemonError
from cachedaemon.logs import about
from cachedaemon.server.answers import GENERATION, answer_error, from_http
from cachedaemon.server.api import ROUTES, Api
from cachedaemon.server.bodies import LARGEST
from cachedaemon.server.connection import BOUNDS, Bounds
from cachedaemon.server.entrances import Entrances
from cachedaemon.server.gauges import Gauges
from cachedaemon.server.hosts import own_names_only
from cachedaemon.server.limits import UserLimits
from cachedaemon.server.live import Live
from cachedaemon.server.page import ROUTES as LOOKED_AT
from cachedaemon.server.page import Page
from cachedaemon.server.view import View
from cachedaemon.server.watch import ROUTES as WATCHED
from cachedaemon.server.watch import Watch

log = logging.getLogger(__name__)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

IDLE = 3600.0
"""Seconds that a reader's connection may have nothing to say: it makes another one when it needs one."""
SCRAPERS = 128
"""Whoever reaches the port may connect: few at once, and none that sends its request a letter at a time."""
SCRAPER_IDLE = 30.0
OWN = 64
"""Descriptors that the daemon needs before anybody asks for anything."""


def application(api: Api, watch: Watch, generation: Callable[[], str]) -> web.Application:
    """What answers on the Unix socket."""
    app = web.Application(middlewares=[_numbered, _errors], client_max_size=LARGEST)
    app[GENERATION] = generation
    app[BOUNDS] = _readers(_descriptors())
    app.add_routes(
        [web.route(method, path, _bound(api, handler), expect_handler=_expect) for method, path, handler in ROUTES]
    )
    app.add_routes(_watched(watch))

    async def mark(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Cachedaemon-Generation"] = generation()

    app.on_response_prepare.append(mark)
    return app


def scraping(watch: Watch, page: Page | None = None) -> web.Application:
    """What answers on the TCP listener: nothing that changes anything. `page`: for people, where it is wanted."""
    app = web.Application(middlewares=[_errors, own_names_only])
    app[BOUNDS] = Bounds(each=max(4, min(SCRAPERS, _descriptors() // 16)), idle=SCRAPER_IDLE)
    app.add_routes(_watched(watch))
    if page is not None:
        app.add_routes(
            [
                web.get(path, _bound(page, handler), allow_head=False, expect_handler=_expect)
                for _, path, handler in LOOKED_AT
            ]
        )
    return app


def _descriptors() -> int:
    """How many the daemon may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _readers(descriptors: int) -> Bounds:
    """Half of the descriptors for one user at the most, and a quarter of them for what the connections ask for."""
    most = max(descriptors // 4, (descriptors - OWN) * 3 // 4)
    return Bounds(each=min(descriptors // 2, most), idle=IDLE, all=most)


def _watched(watch: Watch) -> list[web.RouteDef]:
    """Probes of other programs may come as HEAD."""
    return [web.get(path, _bound(watch, handler), expect_handler=_expect) for _, path, handler in WATCHED]


def _bound(of: T, handler: Callable[[T, web.Request], Awaitable[web.StreamResponse]]) -> Next:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(of, request)

    return answer


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """What a request may expect is to be let go on (RFC 9110, 10.1.1)."""
    said = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None
    if said.lower() != "100-continue":
        return answer_error(
            BadRequest(f"{request.method} {request.path}: nothing here does what 'Expect: {said}' asks")
        )
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # an interim answer is not yet the answer
    return None


_numbers = itertools.count(1)


@web.middleware
async def _numbered(request: web.Request, handler: Next) -> web.StreamResponse:
    """Lines of the log that come from one request have its number."""
    with about(request=next(_numbers)):
        return await handler(request)


@web.middleware
async def _errors(request: web.Request, handler: Next) -> web.StreamResponse:
    """Every error answers in one form."""
    try:
        return await handler(request)
    except CacheDaemonError as cause:
        return answer_error(cause)
    except web.HTTPException as cause:
        return answer_error(from_http(request, cause))
    except web.RequestPayloadError:
        return answer_error(BadRequest(f"{request.method} {request.path}: the body cannot be decoded"))
    except Exception as cause:
        if isinstance(cause, ConnectionError) and _has_left(request):
            return web.Response()  # to nobody
        log.exception("%s %s failed", request.method, request.path)
        return answer_error(CacheDaemonError("the daemon failed to answer; its log says why"))


def _has_left(request: web.Request) -> bool:
    """Whether the asker is gone."""
    return request.transport is None or request.transport.is_closing()


__all__ = ["Api", "Entrances", "Gauges", "Live", "Page", "UserLimits", "View", "Watch", "application", "scraping"]
