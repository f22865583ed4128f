"""Connections: what is no request at all gets an answer of the same form as every other error, and is no failure here."""

from __future__ import annotations

import logging
from http import HTTPStatus

from aiohttp import web

from cachedaemon.errors import BadRequest
from cachedaemon.server.answers import GENERATION, answer_error

log = logging.getLogger(__name__)


class Runner(web.AppRunner):
    """Serves an application."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, request_factory=made.request_factory, app=self.app, **self._kwargs)


class _Server(web.Server):
    def __init__(self, *how: object, app: web.Application, **more: object) -> None:
        super().__init__(*how, **more)  # type: ignore[arg-type]
        self.app = app

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ("_app",)

    def __init__(self, server: _Server, **how: object) -> None:
        super().__init__(server, **how)  # type: ignore[arg-type]
        self._app = server.app

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
