"""Failures of web servers in the daemon's own words: answers that are no object (RFC 9110, 15), and requests without one.

No message shows a URL, which may be signed, nor a header's value.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

import aiohttp

from cachedaemon.errors import CacheDaemonError, Missing, OriginRefused, OriginUnavailable, Overloaded
from cachedaemon.model import Ref

UNAUTHORISED = frozenset({401, 403})
_MISSING = frozenset({404, 410})
_OVERLOADED = frozenset({429, 503})
_UNAVAILABLE = frozenset({408, 409, 421, 423, 425})
LONGEST_WAIT = 300.0
"""Seconds that a `Retry-After` is followed at the most."""
BELIEVABLE = 86400.0
"""Seconds; a `Retry-After` beyond a day is taken for nonsense."""


def refusal(ref: Ref | str, status: int, headers: Mapping[str, str]) -> CacheDaemonError:
    """An answer that is not what was asked for."""
    said = f"{ref}: the origin answered {status}"
    if status in _MISSING:
        return Missing(said)
    if status in _OVERLOADED:
        return Overloaded(said, retry_after=retry_after(headers.get("Retry-After")))
    if status >= 500 or status in _UNAVAILABLE or status < 400:
        return OriginUnavailable(said, retry_after=retry_after(headers.get("Retry-After")))
    return OriginRefused(said)


def no_answer(ref: Ref | str, cause: Exception) -> CacheDaemonError:
    """A request that got no answer."""
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return OriginRefused(f"{ref}: the origin's certificate is not trusted: {cause.certificate_error}")
    if isinstance(cause, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
        return OriginRefused(f"{ref}: the URL cannot be requested ({type(cause).__name__})")
    if isinstance(cause, TimeoutError):
        return Overloaded(f"{ref}: {words(cause)}")
    return OriginUnavailable(f"{ref}: {words(cause)}")


def words(cause: Exception) -> str:
    """What happened to a connection."""
    if isinstance(cause, TimeoutError):
        return "the origin does not answer in time"
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        return "the origin closed the connection without an answer"
    if isinstance(cause, aiohttp.ClientConnectorError):
        return f"the origin cannot be reached: {cause.os_error.strerror or 'no connection'}"
    if isinstance(cause, aiohttp.ClientPayloadError):
        return "the connection ended within the body, or the body is malformed"
    return f"the connection to the origin failed ({type(cause).__name__})"


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` asks for (RFC 9110, 10.2.3): a number or a date; None for what cannot be meant."""
    if value is None:
        return None
    value = value.strip()
    try:
        if value.isascii() and value.isdigit():
            asked = float(value)
        else:
            asked = max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
    return min(asked, LONGEST_WAIT) if asked <= BELIEVABLE else None
