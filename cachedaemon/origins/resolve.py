"""Names of hosts, looked up in threads of the source's own: one whose name server hangs holds up no other source."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Executor

from aiohttp.abc import AbstractResolver, ResolveResult


class Resolver(AbstractResolver):
    """`getaddrinfo` (RFC 3493) in the threads it is given."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of a host. Raises OSError."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads,
            lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG),
        )
        return [
            ResolveResult(
                hostname=host,
                host=_literal(address),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """The threads are their owner's."""


def _literal(address: tuple[object, ...]) -> str:
    """The address as text; a link-local one of IPv6 with its zone (RFC 4007)."""
    zone = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{zone}" if zone else str(address[0])
