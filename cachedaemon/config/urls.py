"""What a source's URL may look like, and what of it may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cachedaemon.config import buckets, extras, plugins
from cachedaemon.config.aistore import ais_url
from cachedaemon.config.effects import FSSPEC
from cachedaemon.config.values import kind_of

KEY = "{key}"
"""Where a key goes into a URL; a URL without it has the key appended."""


def schemes() -> tuple[str, ...]:
    """Schemes that a source can have without any other distribution."""
    return tuple(_CHECKS)


def scheme_of(url: str) -> str:
    """In lower case (RFC 3986, 3.1)."""
    return url.partition(":")[0].lower()


def public_url(url: str) -> str:
    """The URL without user, password, query and fragment: what messages, `hello` and the log may show."""
    shown = re.split("[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = shown.partition("://")
    if not separator:
        return shown.rpartition("@")[2]
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path


def redacted(url: object) -> str:
    """A URL that was refused, for the message: where it is not certain what is secret in it, all of it is."""
    if not isinstance(url, str):
        return kind_of(url)
    if "@" not in url:
        return repr(public_url(url))
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url)
    return repr(f"{scheme[0] if scheme else ''}...")


def folder_of(url: str) -> Path | None:
    """The folder that a `file` URL reads from, percent-escapes decoded; None for other schemes.

    Without a closing slash the last segment begins the keys' names, unless a folder has just that name.
    """
    if urlsplit(url).scheme != "file":
        return None
    whole = unquote(urlsplit(url).path.partition(KEY)[0])
    path = Path(whole)
    return path if whole.endswith("/") or path.is_dir() else path.parent


def source_url(value: object) -> str:
    """A source's URL, as it was given."""
    if not isinstance(value, str) or not value:
        raise ValueError(_allowed())
    scheme = scheme_of(value)
    check = _check_of(scheme)
    if check is None or ":" not in value:
        raise ValueError(_allowed())
    if value.count(KEY) > 1:
        msg = f"{KEY} stands in it more than once; allowed is at most once"
        raise ValueError(msg)
    if KEY in _authority(value) and scheme not in plugins.offered():
        msg = f"{KEY} stands in the host's (or bucket's) name; allowed is it behind that"
        raise ValueError(msg)
    check(value)
    return value


def _authority(url: str) -> str:
    """What stands between `//` and the path (RFC 3986, 3.2)."""
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]


def _check_of(scheme: str) -> Callable[[str], object] | None:
    if extras.is_fsspec(scheme):
        return extras.check_fsspec
    return _CHECKS.get(scheme) or (plugins.check if scheme in plugins.offered() else None)


def _allowed() -> str:
    ours = [f"{scheme}:" if scheme == extras.YTDLP else f"{scheme}://" for scheme in schemes()]
    others = [f"{scheme}:" for scheme in plugins.offered()]
    return "allowed are " + ", ".join([*ours, f"{FSSPEC}PROTOCOL://", *others])


def _check_file(url: str) -> None:
    parts = urlsplit(url)
    is_url = url.lower().startswith("file://") and parts.netloc in ("", "localhost")
    if not is_url or not parts.path.startswith("/") or parts.query or parts.fragment:
        msg = "allowed is file:// and an absolute path, such as file:///mnt/raid/set/ (write ? as %3F and # as %23)"
        raise ValueError(msg)
    if "\0" in unquote(url) or any(ord(c) < 32 for c in url):
        msg = "a path has no control characters"
        raise ValueError(msg)


def check_http(value: object) -> str:
    """An http or https URL that can go out byte for byte."""
    url = value if isinstance(value, str) else ""
    if not re.fullmatch(r"https?://[!-~]+", url, re.IGNORECASE):
        msg = "allowed are http:// and https:// with a host, in printable ASCII (anything else as %XX)"
        raise ValueError(msg)
    try:
        good = bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        good = False
    if not good or "#" in url or KEY in urlsplit(url).netloc:
        msg = "allowed are URLs with a host, a port from 1 to 65535 if any, and no fragment"
        raise ValueError(msg)
    return url


_CHECKS: dict[str, Callable[[str], object]] = {
    "file": _check_file,
    "http": check_http,
    "https": check_http,
    "ais": ais_url,
    **dict.fromkeys(buckets.SCHEMES, buckets.bucket_url),
    "ytdlp": extras.check_ytdlp,
}
"""What a URL of each scheme may look like; a ValueError says what is allowed."""
