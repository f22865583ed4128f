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
PIECE = 1 << 16
NO_DAEMON = "what it says is no daemon's answer"


class Told:
    """What came on one connection on which nothing but events comes. The base of both clients' feeds.

    It is asked for in HTTP/1.0, whose answers have no chunks to undo.
    """

    def __init__(self, path: str, target: str, source: str) -> None:
        self._path = path
        self._source = source
        self._request = f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
        self._status = 0
        """HTTP's; 0 as long as the head is not complete."""
        self._heard = b""
        self._last = time.monotonic()

    @property
    def _has_begun(self) -> bool:
        """Whether what comes from now on are events."""
        return 0 < self._status < 400

    @property
    def _silent_at(self) -> float:
        """When the connection will count as lost (monotonic seconds)."""
        return self._last + SILENCE

    def _take(self, piece: bytes) -> None:
        """What was received, nothing at the end. OSError when the connection is of no use, `CacheError` when the daemon refused."""
        if not piece:
            raise self._end()
        self._heard += piece
        self._last = time.monotonic()
        if not self._status:
            self._take_head()

    def _end(self) -> Exception:
        if self._status < 400:
            return ConnectionResetError("the daemon closed the connection")
        try:
            return from_answer(self._status, json.loads(self._heard), self._source)
        except ValueError:
            return ConnectionAbortedError(NO_DAEMON)

    def _take_head(self) -> None:
        head, found, rest = self._heard.partition(b"\r\n\r\n")
        if found:
            self._status, self._heard = _status_of(head), rest
        elif len(head) > HEAD_LIMIT:
            raise ConnectionAbortedError(NO_DAEMON)

    def _taken(self) -> list[dict[str, Any]]:
        """Events that are complete: an empty line ends each, and comments are signs of life."""
        whole, found, rest = self._heard.rpartition(b"\n\n")
        if not found:
            return []
        self._heard = rest
        return [event for block in whole.decode().split("\n\n") if (event := _parsed(block))]


class Feed(Told):
    """Such a connection."""

    def __init__(self, path: str, target: str, source: str, seconds: float = SILENCE) -> None:
        """Raises OSError when nobody is there, or says so within so many seconds; `CacheError` when the daemon refuses."""
        super().__init__(path, target, source)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            trust.check(path)
            self._begin(time.monotonic() + min(seconds, SILENCE))
        except BaseException:
            self.close()
            raise

    def _begin(self, until: float) -> None:
        """The daemon's word that events will come, by then (monotonic seconds)."""
        try:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            self._socket.connect(self._path)
            self._socket.sendall(self._request)
            while not self._has_begun:
                self._receive(until - time.monotonic())
        except TimeoutError:
            raise silent(self._path) from None

    def _receive(self, seconds: float) -> None:
        self._socket.settimeout(max(0.001, seconds))
        self._take(self._socket.recv(PIECE))

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """What has come within so many seconds, at least one event unless they pass. Raises OSError when the connection is lost."""
        until = time.monotonic() + seconds
        while not (events := self._taken()) and self._heard_more(until):
            pass
        return events

    def _heard_more(self, until: float) -> bool:
        """Whether it is worth while to look again. What came while nobody listened is heard first, whatever the clock says."""
        try:
            self._receive(min(until, self._silent_at) - time.monotonic())
        except TimeoutError:
            if time.monotonic() >= self._silent_at:
                raise silent(self._path) from None
            return time.monotonic() < until
        return True

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


def _status_of(head: bytes) -> int:
    """The status of an answer, which must be an error or the beginning of events."""
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ConnectionAbortedError(NO_DAEMON)
    status = int(words[1])
    if status < 400 and b"text/event-stream" not in head.lower():
        raise ConnectionAbortedError(NO_DAEMON)
    return status


def _parsed(block: str) -> dict[str, Any] | None:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    return {"event": fields.get("event")} | json.loads(fields["data"]) if "data" in fields else None
