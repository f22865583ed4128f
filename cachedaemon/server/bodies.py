"""Requests: JSON bodies against the client distribution's dataclasses, and query strings."""

from __future__ import annotations

import asyncio
import math
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from cachedaemon.errors import BadRequest
from cachedaemon_client.wire import Acquire, Prefetch, PutPlan, Touch, Verify

T = TypeVar("T")

COMES_WITHIN = 10.0
"""Seconds that a body may take: it comes from a process on this machine."""

LARGEST = 64 << 20
"""Bytes of a body: a plan of a million keys."""
SMALL = 4 << 20
"""Bytes of a body that names one shard, or the last uses of one client."""
OLDEST_USE = 1e9
"""Seconds that a use may be ago."""
LONGEST_WAIT = 7 * 86400.0
"""Seconds."""

ACQUIRE: TypeAdapter[Acquire] = TypeAdapter(Acquire)
PREFETCH: TypeAdapter[Prefetch] = TypeAdapter(Prefetch)
VERIFY: TypeAdapter[Verify] = TypeAdapter(Verify)
PLAN: TypeAdapter[PutPlan] = TypeAdapter(PutPlan)
TOUCH: TypeAdapter[Touch] = TypeAdapter(Touch)


async def body(request: web.Request, kind: TypeAdapter[T], most: int = SMALL) -> T:
    """The request's body; `BadRequest` names the member, and what is allowed. Members that nobody knows are ignored."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequest("the body has a Content-Encoding; allowed is none")
    if (request.content_length or 0) > most or len(text := await _read(request)) > most:
        raise BadRequest(f"the body is too long; allowed are {most} bytes")
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as cause:
        first = cause.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"body{'.' if place else ''}{place}: {first['msg']}") from None


async def _read(request: web.Request) -> bytes:
    """The whole body. One that stops half-way, or whose chunks are none, must not keep its connection for ever."""
    try:
        async with asyncio.timeout(COMES_WITHIN):
            return await request.read()
    except TimeoutError:
        raise BadRequest(f"the body did not come to its end within {COMES_WITHIN:g} s") from None


def wait_of(seconds: float) -> float:
    """A time to wait that can be meant."""
    if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST_WAIT:
        raise BadRequest(f"body.wait: {seconds} is not possible; allowed are 0 to {LONGEST_WAIT:.0f} seconds")
    return seconds


def age_of(seconds: float) -> float:
    """How long ago a use was."""
    if not math.isfinite(seconds) or not 0 <= seconds <= OLDEST_USE:
        raise BadRequest(f"body.used: an age of {seconds} is not possible; allowed are 0 to {OLDEST_USE:.0f} seconds")
    return seconds


def number(request: web.Request, name: str, default: int, most: int) -> int:
    """A number of the query."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and 1 <= int(text) <= most):
        raise BadRequest(f"{name}={text!r}: allowed are 1 to {most}")
    return int(text)


def moment(request: web.Request, name: str) -> float:
    """A time of the query, in Unix seconds; 0 where there is none."""
    text = request.query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name}={text!r}: allowed are Unix seconds")
    return value


def needed(request: web.Request, name: str) -> str:
    """A word of the query that must be there."""
    value = request.query.get(name)
    if not value:
        raise BadRequest(f"the query has no {name!r}")
    return value


def json_error(code: str, message: str, *, retryable: bool, **details: Any) -> dict[str, Any]:
    """The body of every error."""
    return {"error": {"code": code, "message": message, "retryable": retryable, **details}}
