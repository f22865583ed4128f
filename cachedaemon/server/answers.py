"""Errors as answers, all in one form."""

from __future__ import annotations

import math
from collections.abc import Callable

from aiohttp import web

from cachedaemon import errors
from cachedaemon.errors import CacheDaemonError
from cachedaemon.server.bodies import LARGEST, json_error

GENERATION: web.AppKey[Callable[[], str]] = web.AppKey("generation")
"""Of an application whose answers carry `Cachedaemon-Generation`."""


def answer_error(cause: CacheDaemonError) -> web.Response:
    """The answer that an error stands for."""
    body = json_error(cause.code, str(cause), retryable=cause.retryable, **cause.details())
    wait = getattr(cause, "retry_after", None) or 1
    headers = {"Retry-After": str(math.ceil(wait))} if cause.status in (429, 503) else {}
    return web.json_response(body, status=cause.status, headers=headers)


def from_http(request: web.Request, cause: web.HTTPException) -> CacheDaemonError:
    """The error that the web framework means."""
    if isinstance(cause, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(cause.allowed_methods))
        return errors.MethodNotAllowed(f"{request.method} {request.path}: allowed are {allowed}")
    if isinstance(cause, web.HTTPNotFound):
        return errors.NotFound(f"nothing answers at {request.path}")
    if isinstance(cause, web.HTTPRequestEntityTooLarge):
        return errors.BadRequest(f"the body is too long; allowed are {LARGEST} bytes")
    return errors.BadRequest(f"{request.method} {request.path}: {cause.reason}")
