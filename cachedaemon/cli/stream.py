"""Server-sent events (HTML Living Standard, 9.2) over the daemon's socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from cachedaemon_client import trust
from cachedaemon_client.connection import Pause, unavailable
from cachedaemon_client.errors import from_answer

SILENCE = 60.0
"""Seconds without a sign of life after which the connection counts as lost; the daemon gives one every 15."""


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SILENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, if it is nobody else's who could say anything."""
        trust.check(self._path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SILENCE)
        self.sock.connect(self._path)


def events(path: str) -> Iterator[dict[str, Any]]:
    """All events, endlessly. Nobody there at the first try: `DaemonUnavailable`; later it is waited for."""
    pause: Pause | None = None
    while True:
        link = _OverUnix(path)
        try:
            link.request("GET", "/v1/events")
            answer = link.getresponse()
            if answer.status != http.client.OK:
                _refused(answer, is_first=pause is None)
            pause = Pause(float("inf"))
            yield from parsed(answer)
        except (OSError, http.client.HTTPException) as cause:
            if pause is None:
                raise unavailable(path, cause) from None
        finally:
            link.close()
        time.sleep(pause.next())


def _refused(answer: http.client.HTTPResponse, *, is_first: bool) -> NoReturn:
    """Raise what the daemon says; later than at the first try it is an outage, which is waited out."""
    if is_first:
        raise from_answer(answer.status, json.loads(answer.read()), None)
    raise ConnectionError(f"the daemon answered {answer.status}")


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Events of a stream; an event without its closing empty line is none, and comments are signs of life."""
    name, data = "message", []
    for raw in lines:
        field, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
        elif not field and not value:
            if data:
                yield {"event": name} | json.loads("\n".join(data))
            name, data = "message", []
