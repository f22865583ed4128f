"""URLs as they go out: byte for byte what was configured, or what a redirect says. Nothing is normalised.

A signature covers the target as it was written, so `%2f` stays `%2f`, and `a/../b` stays `a/../b` (RFC 3986, 6.2.2 would
take them for the same as others).
"""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.parse import quote, unquote, urljoin

from yarl import URL

from cachedaemon.origins.base import KEY

_WHOLE = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.IGNORECASE)
_PLACE = re.compile(r"(?:.*@)?(?:[^\[\]:@]+|\[[0-9a-f:.]+(?:%25[^\[\]]+)?\])(?::\d*)?", re.IGNORECASE)
"""Host and port, after a user (RFC 3986, 3.2): a name, or an address of IPv6 in brackets."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PRINTABLE = bytes(range(0x21, 0x7F))
_SEGMENT = "/!$&'()*+,;=:@-._~"
"""What a key keeps of itself: everything a path may carry (RFC 3986, pchar and the slash)."""
_IN_A_QUERY = "/!$'()*,:@-._~"
"""Of these, what a query may carry where it is a list of names and values."""


def placed(url: str, key: str) -> str:
    """A source's URL with a key in its place; of the key only what that place cannot carry is encoded.

    A URL that ends with its host has an empty path, whose slash is put in (RFC 9110, 4.2.3): no key may become a part of
    the host, which secrets are sent to.
    """
    before, found, after = url.partition(KEY)
    if not found and not _split(url)[2]:
        before += "/"
    return before + quote(key, safe=_IN_A_QUERY if found and "?" in before else _SEGMENT) + after


def without_user(url: str) -> tuple[str, str]:
    """A URL without user and password, and what a header says in their place (RFC 7617), if they are there.

    They must not follow a redirect elsewhere. Both are percent-decoded.
    """
    scheme, authority, target = _split(url)
    user, found, place = authority.rpartition("@")
    if not found:
        return url, ""
    name, _, word = user.partition(":")
    token = b64encode(f"{unquote(name)}:{unquote(word)}".encode()).decode()
    return f"{scheme}://{place}{target}", f"Basic {token}"


def followed(url: str, location: str) -> str:
    """Where a redirect leads (RFC 9110, 10.2.2). Bytes that no URL has, such as spaces, are encoded.

    What is not there in full is completed; in paths that are written from the root on, dots stay.
    """
    said = quote(location.encode("utf-8", "surrogateescape"), safe=_PRINTABLE)
    scheme, authority, _ = _split(url)
    if _SCHEME.match(said):
        return said
    if said.startswith("//"):
        return f"{scheme}:{said}"
    return f"{scheme}://{authority}{said}" if said.startswith("/") else urljoin(url, said)


def sendable(url: str) -> URL:
    """A URL whose target goes out as it stands, an empty query too. ValueError where no request can be made of it."""
    scheme, authority, target = _split(url)
    if _PLACE.fullmatch(authority) is None:
        msg = "no host, or no port"
        raise ValueError(msg)
    path = target if target.startswith("/") else f"/{target}"
    return URL.build(scheme=scheme.lower(), authority=authority, path=path, encoded=True)


def is_same_site(first: str, second: str) -> bool:
    """Whether two URLs are of one host and port; TLS may come in, never go."""
    one, other = (_site(url) for url in (first, second))
    return one == other or (one == ("http", one[1], 80) and other == ("https", one[1], 443))


def _site(url: str) -> tuple[str, str | None, int | None]:
    place = sendable(url)
    return place.scheme, place.host, place.port


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, authority, and the target without its fragment."""
    found = _WHOLE.match(url)
    if found is None:
        msg = "neither http:// nor https://"
        raise ValueError(msg)
    return found[1], found[2], found[3]
