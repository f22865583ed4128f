"""Failures of web servers in the daemon's own words: answers that are no object (RFC 9110, 15), and requests without one.

No message shows a URL, which may be signed, nor a header's value.
"""

from __future__ import annotations

import email.utils
import os
import ssl
import time
from collections.abc import Mapping

import aiohttp

from cachedaemon.errors import SHORT, CacheDaemonError, Missing, OriginRefused, OriginUnavailable, Overloaded, Shortage
from cachedaemon.model import Ref
from cachedaemon.origins.trust import NoAuthorities

ORIGIN = "the origin"
UNAUTHORISED = frozenset({401, 403})
_MISSING = frozenset({404, 410})
_OVERLOADED = frozenset({429, 503})
_UNAVAILABLE = frozenset({408, 409, 421, 423, 425})
_WHY = {401: ": credentials rejected, or none configured", 403: ": credentials rejected, or they do not allow it"}
LONGEST_WAIT = 300.0
"""Seconds that a `Retry-After` is followed at the most."""
BELIEVABLE = 86400.0
"""Seconds; a `Retry-After` beyond a day is taken for nonsense."""
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, "{who} does not answer in time"),
    (aiohttp.ServerDisconnectedError, "{who} closed the connection without an answer"),
    (aiohttp.ClientPayloadError, "the connection ended within the body, or the body is malformed"),
    (aiohttp.ClientResponseError, "{who} sent what is no answer in HTTP"),
    (NoAuthorities, "the certificates of its setting `ca` cannot be read"),
    (aiohttp.ClientConnectorSSLError, "no TLS with {who}: {why}"),
    (aiohttp.ClientProxyConnectionError, "the proxy cannot be reached: {why}"),
    (aiohttp.ClientConnectorError, "{who} cannot be reached: {why}"),
)


def refusal(ref: Ref | str, status: int, headers: Mapping[str, str], who: str = ORIGIN) -> CacheDaemonError:
    """An answer that is not what was asked for. `who` answered, as far as that is known."""
    if status == 407:
        return OriginRefused(f"{ref}: the proxy answered 407: user and password rejected, or none configured")
    said = f"{ref}: {who} answered {status}{_WHY.get(status, '')}"
    return Missing(said) if status in _MISSING else _refusal(said, status, headers)


def _refusal(said: str, status: int, headers: Mapping[str, str]) -> CacheDaemonError:
    if status in _OVERLOADED:
        return Overloaded(said, retry_after=retry_after(headers.get("Retry-After")))
    if status >= 500 or status in _UNAVAILABLE or status < 400:
        return OriginUnavailable(said, retry_after=retry_after(headers.get("Retry-After")))
    return OriginRefused(said)


def no_answer(ref: Ref | str, cause: Exception, who: str = ORIGIN) -> CacheDaemonError:
    """A request that got no answer, from whom it was asked of; or that could not be made, which is no fault of theirs."""
    if isinstance(cause, OSError) and cause.errno in SHORT:
        return Shortage(f"{ref}: the daemon is short of something: {os.strerror(cause.errno)}")
    if isinstance(cause, aiohttp.ClientHttpProxyError):
        return _refused_by_proxy(ref, cause)
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return OriginRefused(f"{ref}: the origin's certificate is not trusted: {_fault(cause)}")
    if isinstance(cause, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
        return OriginRefused(f"{ref}: the URL, or where it redirects to, cannot be requested ({type(cause).__name__})")
    if isinstance(cause, TimeoutError):
        return Overloaded(f"{ref}: {words(cause, who)}")
    return OriginUnavailable(f"{ref}: {words(cause, who)}")


def _refused_by_proxy(ref: Ref | str, cause: aiohttp.ClientHttpProxyError) -> CacheDaemonError:
    """The proxy makes no way to the origin, which says nothing of the object."""
    if cause.status == 407:
        return refusal(ref, 407, {})
    return _refusal(f"{ref}: the proxy answered {cause.status}", cause.status, cause.headers or {})


def _fault(cause: aiohttp.ClientConnectorCertificateError) -> str:
    """Such as `certificate has expired`, in the words of OpenSSL."""
    return (getattr(cause.certificate_error, "verify_message", "") or "no reason given").rstrip(".")


def words(cause: Exception, who: str = ORIGIN) -> str:
    """What happened to a connection."""
    for kind, said in _WORDS:
        if isinstance(cause, kind):
            return said.format(who=who, why=_reason(cause))
    return f"the connection to {who} failed ({type(cause).__name__})"


def _reason(cause: Exception) -> str:
    """The system's word for why no connection was made, or that of OpenSSL, such as `WRONG_VERSION_NUMBER`."""
    beneath = getattr(cause, "os_error", None)
    why = beneath.reason.lower().replace("_", " ") if isinstance(beneath, ssl.SSLError) and beneath.reason else None
    return why or getattr(beneath, "strerror", None) or "no connection"


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
