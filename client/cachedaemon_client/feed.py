"""Server-sent events (HTML Living Standard, 9.2) of the daemon, heard without being waited for longer than wanted."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from cachedaemon_client import trust
from cachedaemon_client.connection import silent
from cachedaemon_client.errors import from_answer
from cachedaemon_client.wire import HEAD_LIMIT

SILENCE = 60.0
"""Seconds without a sign of life after which the connection counts as lost; the daemon gives one every 15."""
_PIECE = 1 << 16


class Feed:
    """One connection on which nothing but events comes. Asked for in HTTP/1.0, whose answers have no chunks to undo."""

    def __init__(self, path: str, target: str, source: str) -> None:
        """Raises OSError when nobody is there, `CacheError` when the daemon refuses."""
        self._path = path
        self._heard = b""
        self._last = time.monotonic()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(SILENCE)
            trust.check(path)
            self._socket.connect(path)
            self._socket.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            self._begin(source)
        except BaseException:
            self.close()
            raise

    def _begin(self, source: str) -> None:
        while b"\r\n\r\n" not in self._heard and len(self._heard) < HEAD_LIMIT:
            self._receive(SILENCE)
        head, _, self._heard = self._heard.partition(b"\r\n\r\n")
        status = int(head.split(maxsplit=2)[1])
        if status >= 400:
            raise from_answer(status, self._rest(), source)

    def _rest(self) -> Any:
        """The body of an error."""
        try:
            while True:
                self._receive(SILENCE)
        except ConnectionResetError:
            return json.loads(self._heard)

    def _receive(self, seconds: float) -> None:
        self._socket.settimeout(max(0.001, seconds))
        piece = self._socket.recv(_PIECE)
        if not piece:
            raise ConnectionResetError("the daemon closed the connection")
        self._heard += piece
        self._last = time.monotonic()

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """What has come within so many seconds, at least one event unless they pass. Raises OSError when the connection is lost."""
        until = time.monotonic() + seconds
        while not (events := self._taken()) and self._heard_more(until):
            pass
        return events

    def _heard_more(self, until: float) -> bool:
        """Whether it is worth while to look again. What came while nobody listened is heard first, whatever the clock says."""
        try:
            self._receive(min(until, self._last + SILENCE) - time.monotonic())
        except TimeoutError:
            if time.monotonic() >= self._last + SILENCE:
                raise silent(self._path) from None
            return time.monotonic() < until
        return True

    def _taken(self) -> list[dict[str, Any]]:
        """Events that are complete: an empty line ends each, and comments are signs of life."""
        whole, found, rest = self._heard.rpartition(b"\n\n")
        if not found:
            return []
        self._heard = rest
        return [event for block in whole.decode().split("\n\n") if (event := _parsed(block))]

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


def _parsed(block: str) -> dict[str, Any] | None:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    return {"event": fields.get("event")} | json.loads(fields["data"]) if "data" in fields else None
