"""The daemon's API as both sides write it: HTTP/1.1 (RFC 9112) with JSON, and the requests' members.

Nothing here touches a socket: `request` makes the bytes that go out, `Answer` takes those that come in. The dataclasses
are the bodies of the calls; the daemon validates what it is sent against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

PROTOCOL = 1
FORMAT = 1
"""Version of the layout on disk."""
GENERATION = "cachedaemon-generation"
"""Header of every answer; changes when what a client has read of the daemon may no longer hold."""
HEAD_LIMIT = 64 << 10
"""Bytes of an answer's head that are taken at the most."""


@dataclass(frozen=True)
class Acquire:
    """Body of `POST /v1/acquire`."""

    source: str
    key: str
    wait: float = 600.0
    """Seconds; 0: only if it is here."""


@dataclass(frozen=True)
class Prefetch:
    """Body of `POST /v1/prefetch`; without keys: all that the origin lists."""

    source: str
    keys: list[str] | None = None


@dataclass(frozen=True)
class Verify:
    """Body of `POST /v1/verify`; without a source: all that is here, without keys: all of the source that is here."""

    source: str | None = None
    keys: list[str] | None = None


@dataclass(frozen=True)
class PutPlan:
    """Body of `PUT /v1/plans/{id}`."""

    source: str
    keys: list[str]
    position: int = 0
    """Index of the next key to open."""
    holds: int = 1
    """Shards that the consumer has open at once."""


@dataclass(frozen=True)
class Touch:
    """Body of `POST /v1/touch`."""

    source: str
    used: list[tuple[str, float]] = field(default_factory=list)
    """Keys, and how many seconds ago each was used."""
    plan: str | None = None
    position: int | None = None


def request(method: str, target: str, body: Any = None) -> bytes:
    """One request, ready to be sent on a connection that stays open."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode("ascii") + b"\r\n" + data


def touch(source: str, used: Iterable[tuple[str, float]], now: float, place: tuple[str, int] | None) -> bytes:
    """Body of `POST /v1/touch`: keys and times of use, and a plan's place. Written out, since readers wait meanwhile.

    Another thread's use may be younger than `now`; no use lies in the future.
    """
    uses = ",".join([f"[{quoted(key)},{now - at if at < now else 0.0:.3f}]" for key, at in used])
    plan = f',"plan":{quoted(place[0])},"position":{place[1]}' if place else ""
    return f'{{"source":{quoted(source)},"used":[{uses}]{plan}}}'.encode("ascii")


class Answer:
    """An answer that comes in pieces; `done` once it is whole. The daemon always announces the length."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pieces = bytearray()
        self._length = -1

    @property
    def done(self) -> bool:
        """Whether nothing is missing any more."""
        return self._length >= 0 and len(self._pieces) >= self._length

    @property
    def wanted(self) -> int:
        """Bytes worth reading next."""
        return 65536 if self._length < 0 else max(0, self._length - len(self._pieces))

    def feed(self, piece: bytes) -> None:
        """Take what came; ValueError when it is no HTTP answer of this daemon."""
        self._pieces += piece
        if self._length < 0 and (end := self._pieces.find(b"\r\n\r\n")) >= 0:
            self._head(bytes(self._pieces[:end]).decode("latin-1"))
            del self._pieces[: end + 4]
        elif self._length < 0 and len(self._pieces) > HEAD_LIMIT:
            raise ValueError("an answer without an end of its head")

    def _head(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise ValueError(f"not an HTTP answer: {first[:60]!r}")
        self.status = int(parts[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._length = 0 if self.status == 204 else int(self.headers.get("content-length", "0"))

    def json(self) -> Any:
        """The body; None where there is none. ValueError when it is not JSON."""
        return json.loads(self._pieces) if self._pieces else None
