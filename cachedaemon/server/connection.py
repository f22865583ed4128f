"""Connections: how many there are, and what comes over one that is no request at all.

That gets an answer of the same form as every other error, and is no failure here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from cachedaemon.errors import BadRequest, TooMany
from cachedaemon.server.answers import GENERATION, answer_error
from cachedaemon.server.bodies import json_error
from cachedaemon.server.peers import NOBODY, is_own, user_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the connections of an application may be."""

    each: int
    """Of one user at once; over TCP, where nobody knows whose they are, of all together."""
    idle: float
    """Seconds that one may be open without a whole request: nothing sent, or half of one."""
    all: int = 1 << 20
    """Of all users at once: who comes then waits to be let in."""


BOUNDS: web.AppKey[Bounds] = web.AppKey("bounds")
ANY = Bounds(each=1 << 20, idle=3630.0)


class Guests:
    """The connections of an application, by whose they are."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._open = Counter[int]()
        self._all = 0

    def come(self, user: int) -> int:
        """One more; how many this user has."""
        self._all += 1
        self._open[user] += 1
        return self._open[user]

    def leave(self, user: int) -> None:
        """One less."""
        self._all -= 1
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]

    def are_all_here(self, coming: int) -> bool:
        """Whether there are as many as may be, with so many that were let in just now."""
        return self._all + coming >= self.bounds.all

    @property
    def told(self) -> str:
        """Why nobody is let in then."""
        return (
            f"all {self.bounds.all} connections that there are descriptors for are open; others wait until one ends "
            "or the daemon may have more descriptors (RLIMIT_NOFILE)"
        )


class Runner(web.AppRunner):
    """Serves an application, within its `BOUNDS`."""

    def __init__(self, app: web.Application, **how: object) -> None:
        super().__init__(app, **how)  # type: ignore[arg-type]
        self.guests = Guests(app.get(BOUNDS, ANY))

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        # No body is unpacked: 60 kB could become as many MB, of each of a user's connections.
        how = {"keepalive_timeout": self.guests.bounds.idle, "auto_decompress": False} | self._kwargs
        return _Server(made.request_handler, request_factory=made.request_factory, of=self, **how)


class _Server(web.Server):
    def __init__(self, *how: object, of: Runner, **more: object) -> None:
        super().__init__(*how, **more)  # type: ignore[arg-type]
        self.of = of

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ("_app", "_guests", "_user")

    def __init__(self, server: _Server, **how: object) -> None:
        super().__init__(server, **how)  # type: ignore[arg-type]
        self._app = server.of.app
        self._guests = server.of.guests
        self._user = NOBODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected; who has too many connections already is told so and let go of."""
        super().connection_made(transport)
        self._user = user_of(transport)
        most = self._guests.bounds.each
        if self._guests.come(self._user) > most and not is_own(self._user) and self.transport is not None:
            self.transport.write(_too_many(self._user, most))
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        super().connection_lost(exc)
        self._guests.leave(self._user)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What the parser refuses: the peer is told, the log only where it is asked for everything."""
        if status != HTTPStatus.BAD_REQUEST or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        said = next(iter((message or "").splitlines()), "") or "it is not HTTP/1.1"
        log.debug("a request cannot be read: %s", said)
        response = answer_error(BadRequest(f"the request cannot be read: {said}"))
        if generation := self._app.get(GENERATION):
            response.headers["Cachedaemon-Generation"] = generation()
        response.force_close()
        return response

    def log_exception(self, *args: object, **how: object) -> None:
        """The rest of a body that cannot be decoded is read once more before the connection closes: no failure either."""
        if not isinstance(how.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **how)


def _too_many(user: int, most: int) -> bytes:
    """The answer to whoever has too many connections, before anything was asked."""
    who = "this listener" if user == NOBODY else f"uid {user}"
    said = f"{who} has {most} connections open: allowed are no more at once"
    body = json.dumps(json_error(TooMany.code, said, retryable=True)).encode()
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
