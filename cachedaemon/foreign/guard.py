"""Which addresses a page may lead to: a page that anybody can write must not make the daemon read from its own network.

Python tells of each connection before it is made (PEP 578, `socket.connect`), so no redirect and no name whose address
changes gets around this.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Guard:
    """An audit hook: public addresses, besides what the configuration names, which is the page's own host and the proxy."""

    def __init__(self, *named: str | None) -> None:
        self._named = [_place(url) for url in named if url]
        self._known: set[tuple[str, int]] | None = None
        self.refused = False
        """Whether a connection was."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Raises PermissionError, which the caller of `connect` gets."""
        if event == "socket.connect" and not self._is_allowed(args[1]):
            self.refused = True
            raise PermissionError("not a public address")

    def _is_allowed(self, address: Any) -> bool:
        if not isinstance(address, tuple):
            return False  # a Unix socket
        return is_public(address[0]) or (address[0], address[1]) in self._resolved()

    def _resolved(self) -> set[tuple[str, int]]:
        if self._known is None:
            found = [one for host, port in self._named for one in socket.getaddrinfo(host, port)]
            self._known = {(str(place[0]), int(place[1])) for *_, place in found}
        return self._known


def is_public(host: str) -> bool:
    """Whether an address is one of the Internet (RFC 6890), seen through what stands for IPv4 in IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name, which nothing here connects to
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or _nat64(address) or address
    return address.is_global and not address.is_multicast


def _nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The address behind a translator (RFC 6052)."""
    if address in ipaddress.IPv6Network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme.lower(), 0)
