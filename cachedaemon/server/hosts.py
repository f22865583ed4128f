"""Whose name the listener on TCP answers to.

A web page that somebody looks at on this machine can have its own name point here (DNS rebinding), and would then count as
being of one origin with the listener. What it cannot do is to ask under another name than its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web

from cachedaemon.errors import Forbidden

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def own_names_only(request: web.Request, handler: Next) -> web.StreamResponse:
    """Who reaches this machine by its loopback address must have asked for an address, or for localhost; else `Forbidden`.

    On other addresses the listener is open to the network, under whatever names that has for it.
    """
    host = _host(request.headers.get("Host", ""))
    if _is_loopback(_reached(request)) and not _is_own(host):
        raise Forbidden(f"the name {host!r} is not this machine's own: allowed are localhost and addresses")
    return await handler(request)


def _host(field: str) -> str:
    """The host of `host`, `host:port`, `[address]:port` (RFC 9110, 7.2)."""
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field.partition(":")[0].lower()


def _reached(request: web.Request) -> str:
    """The address of this end of the connection."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(name[0]) if name else ""


def _is_loopback(text: str) -> bool:
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _is_own(host: str) -> bool:
    return host in ("", "localhost") or host.endswith(".localhost") or _address(host) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
