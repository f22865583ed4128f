"""What went wrong in yt-dlp, as the daemon tells it.

Where a site says no, yt-dlp has its words only; these are looked at, and never handed on.
"""

from __future__ import annotations

import re

from yt_dlp.networking.exceptions import HTTPError, RequestError  # type: ignore[import-untyped]
from yt_dlp.utils import (  # type: ignore[import-untyped]
    DownloadError,
    ExtractorError,
    GeoRestrictedError,
    UnsupportedError,
)

from cachedaemon.foreign.failures import kind_of
from cachedaemon.foreign.process import Failure

_CLOSED = re.compile(
    r"private|sign in|log ?in|member|subscri|premium|password|\bage\b|purchase|rent|cookies|copyright|blocked|country|geo",
    re.IGNORECASE,
)
_NO_FORMAT = re.compile(r"requested format|drm", re.IGNORECASE)
_GONE = re.compile(r"unavailable|not available|removed|deleted|not exist|not found|no longer|terminated", re.IGNORECASE)


def failed(cause: BaseException, *refused_address: bool) -> Failure:
    """A failure of yt-dlp, or of what it is built on."""
    if any(refused_address):
        return Failure("OriginRefused", "the page leads to an address that is not public")
    deep = _root(cause)
    if isinstance(deep, HTTPError):
        return Failure(kind_of(deep.status), f"the site answered {deep.status}")
    if isinstance(deep, RequestError | OSError | EOFError):
        return Failure("OriginUnavailable", f"the site cannot be read ({type(deep).__name__})")
    if isinstance(deep, ExtractorError):
        return _of_site(deep)
    return Failure("OriginRefused", f"yt-dlp fails ({type(deep).__name__})")


def _root(cause: BaseException) -> BaseException:
    """What yt-dlp has wrapped, down to what the network said."""
    inner = cause.exc_info[1] if isinstance(cause, DownloadError) and cause.exc_info else None
    if isinstance(cause, ExtractorError) and isinstance(cause.cause, Exception):
        inner = cause.cause
    return cause if inner is None or inner is cause else _root(inner)


def _of_site(cause: ExtractorError) -> Failure:
    said = cause.orig_msg or ""
    if isinstance(cause, UnsupportedError):
        return Failure("OriginRefused", "yt-dlp finds no video on the page")
    if _NO_FORMAT.search(said):
        return Failure("OriginRefused", "the video does not come as one file")
    if isinstance(cause, GeoRestrictedError) or _CLOSED.search(said):
        return Failure("OriginRefused", "the site does not show the video to everybody")
    if cause.expected and _GONE.search(said):
        return Failure("Missing", "the site has no such video")
    return Failure("OriginRefused", "yt-dlp cannot read the page")
