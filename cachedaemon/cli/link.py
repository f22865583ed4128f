"""The way to the daemon, and the options that commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cachedaemon_client import ShardCache
from cachedaemon_client.connection import Connection, call
from cachedaemon_client.errors import CacheError
from cachedaemon_client.places import socket_path

Socket = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="The daemon's socket. Default: $CACHEDAEMON_SOCKET, the user's, the system's.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a shard, or a restart.")]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Name of the source.", show_default=False)]

PATIENCE = 600.0
"""Seconds that a shard is waited for."""
LONGEST = 7 * 86400.0
"""Seconds that the daemon lets anybody wait."""


class Link:
    """One connection. Nobody there at the first call: `DaemonUnavailable` at once, and no waiting for a restart."""

    def __init__(self, given: str | None) -> None:
        try:
            self.path = socket_path(given)
        except ValueError as cause:
            raise CacheError(str(cause), code="bad_request") from None
        self._link = Connection(self.path)

    def get(self, target: str) -> Any:
        """The JSON answer to a GET; `CacheError` otherwise."""
        return call(self._link, "GET", target, wait=0.0)

    def post(self, target: str, body: Any) -> Any:
        """The JSON answer to a POST; `CacheError` otherwise."""
        return call(self._link, "POST", target, body, wait=0.0)

    def delete(self, target: str, source: str, key: str) -> None:
        """A DELETE; `CacheError` when it is not done."""
        call(self._link, "DELETE", target, wait=0.0, source=source, key=key)


def cache_of(source: str, given: str | None, wait: float = PATIENCE) -> ShardCache:
    """A client of the daemon that is there now; from here on it waits out restarts."""
    if not 0 <= wait <= LONGEST:
        raise typer.BadParameter(f"--wait {wait:g}: allowed are 0 to {LONGEST:.0f} seconds")
    link = Link(given)
    link.get("/v1/hello")
    return ShardCache(source, socket=link.path, wait=wait)


def cap_of(cache: ShardCache) -> int | None:
    """How many shards can be here at once; None where only bytes are limited."""
    return int(cache.status()["cache"]["max_shards"]) or None
