"""Sources that need an extra of this distribution: `fsspec+PROTOCOL://` and `ytdlp:`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cachedaemon.config.effects import FSSPEC
from cachedaemon.config.secret import json_of
from cachedaemon.errors import ConfigError

if TYPE_CHECKING:
    from cachedaemon.config.settings import Source

YTDLP = "ytdlp"
YOUTUBE = "https://www.youtube.com/watch?v={key}"
"""What the url `ytdlp:` stands for."""
_OURS = {"file": "file://", "local": "file://", "http": "http://", "https": "https://"}
_CACHES = frozenset({"filecache", "blockcache", "simplecache", "cached"})
_PACKAGES = {"smb": ("smbclient", "smbprotocol")}
"""By protocol, the module that fsspec's own implementation imports, and the package that brings it under another name."""


def is_fsspec(scheme: str) -> bool:
    """Whether a URL of this scheme is for fsspec."""
    return scheme.startswith(FSSPEC)


def check_fsspec(url: str) -> str:
    """A URL of fsspec, without options: those have a place of their own. ValueError says what is allowed."""
    found = re.fullmatch(r"fsspec\+([a-z][a-z0-9+.-]*)://([^/]*)(/.*)?", url, re.IGNORECASE)
    if not found or not url.isprintable() or "?" in url or "#" in url or "{key}" in found[2]:
        msg = "allowed is fsspec+PROTOCOL://HOST/PATH; storage options go into credentials, as a JSON object"
        raise ValueError(msg)
    protocol = found[1].lower()
    if protocol in _OURS:
        msg = f"allowed is {_OURS[protocol]}, which reads that without fsspec"
        raise ValueError(msg)
    if protocol in _CACHES or "::" in url:
        msg = "what fsspec would keep on the disk, no cap would count: allowed is one protocol that keeps nothing"
        raise ValueError(msg)
    return url


def check_ytdlp(url: str) -> str:
    """`ytdlp:` alone, or with the URL of a page whose host no key can change. ValueError says what is allowed."""
    page = url.partition(":")[2]
    if not page:
        return url
    try:
        parts = urlsplit(page)
        good = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"[!-~]+", page) or "#" in page or "{key}" in parts.netloc:
        msg = "allowed are ytdlp: for videos of YouTube by their id, and ytdlp:https://HOST/PAGE?v={key}"
        raise ValueError(msg)
    if "{key}" not in page and not parts.path:
        msg = "a key would become part of the host's name: allowed is a path, at least /"
        raise ValueError(msg)
    return url


def problems(path: str, source: Source) -> Iterator[str]:
    """What is missing."""
    scheme = source.url.partition(":")[0].lower()
    kind, package = (FSSPEC, "fsspec") if is_fsspec(scheme) else (YTDLP, "yt_dlp")
    if find_spec(package) is None:
        extra = package.replace("_", "")
        yield (
            f"{path}.url: {scheme} needs a package that is not installed: "
            f"pip install ./client '.[{extra}]' in a checkout of cachedaemon brings it"
        )
    elif kind == FSSPEC:
        yield from _of_fsspec(path, scheme.removeprefix(FSSPEC), source)


def _of_fsspec(path: str, protocol: str, source: Source) -> Iterator[str]:
    from fsspec.registry import known_implementations  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    known = known_implementations.get(protocol)
    if known is None and not entry_points(group="fsspec.specs", name=protocol):
        allowed = ", ".join(name for name in sorted(known_implementations) if _is_allowed(name))
        yield f"{path}.url: fsspec has no protocol {protocol!r}: allowed are {allowed}"
    elif known is not None and (missing := _missing(protocol, known)):
        yield f"{path}.url: fsspec+{protocol} needs a package that is not installed: {missing}"
    if source.credentials is not None:
        yield from _options(path, source)


def _is_allowed(protocol: str) -> bool:
    try:
        check_fsspec(f"{FSSPEC}{protocol}://host/")
    except ValueError:
        return False
    return True


def _missing(protocol: str, known: Mapping[str, str]) -> str | None:
    """What to install for a protocol; None: nothing, as far as that can be told without importing it."""
    module, package = _PACKAGES.get(protocol, (known["class"].partition(".")[0], ""))
    if find_spec(module) is not None:
        return None
    return f"pip install {package}" if package else known.get("err", known["class"])


def _options(path: str, source: Source) -> Iterator[str]:
    try:
        good = isinstance(json_of(source.credentials.document() if source.credentials else "{}"), dict)
    except (ValueError, ConfigError):
        good = False
    if not good:
        yield f"{path}.credentials: its value is refused: allowed is a JSON object of storage options"
