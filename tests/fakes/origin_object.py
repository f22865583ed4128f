"""One object of the lying origin: what it holds, how it misbehaves, what was asked of it; and the answer it gives.

Everything here is synchronous: `decide` turns a request into the answer that is to be sent, `origin_wire` sends it.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.fakes import content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    line: str
    """The raw request line, byte for byte (latin-1)."""
    fields: tuple[tuple[str, str], ...]
    """Header fields in their order, names as sent."""
    at: float
    """Monotonic seconds."""
    connection: int
    """Which connection carried it."""

    @property
    def method(self) -> str:
        """The method as sent."""
        return self.line.split(" ", 1)[0]

    @property
    def target(self) -> str:
        """The raw request target."""
        return self.line.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        """Header fields by lower-case name; of several the last."""
        return {name.lower(): value for name, value in self.fields}


@dataclass(frozen=True, slots=True)
class Status:
    """An answer instead of the object."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"refused"


def busy(retry_after: object = None, code: int = 503) -> Status:
    """A refusal for now, with `Retry-After` as given (seconds, a date or nonsense)."""
    return Status(code, {} if retry_after is None else {"Retry-After": str(retry_after)}, b"slow down")


class Gate:
    """Bodies pause at `offset` of their object until `open()`; `reached` tells the test that one has come there."""

    def __init__(self, offset: int) -> None:
        """Shut, for transfers that come to byte `offset`."""
        self.offset = offset
        self.reached = threading.Event()
        self._opened = False
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], object]] = []

    def open(self) -> None:
        """Let all pass, those that wait and those to come."""
        with self._lock:
            self._opened = True
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def arrive(self, wake: Callable[[], object]) -> None:
        """`wake` is called when the gate is open, from the thread that opens it."""
        with self._lock:
            if not self._opened:
                self._wakers.append(wake)
        self.reached.set()
        if self._opened:
            wake()


@dataclass(eq=False, slots=True)
class Object:
    """One object. Every attribute may be changed while requests run; lists are used up one entry a GET."""

    name: str
    size: int = 0
    seed: int = 0
    data: bytes | None = None
    """Content of its own, in place of the bytes made from name, size and seed."""
    etag: str | None = ""
    """As sent, with quotes; "" makes one from name and seed; None sends none."""
    modified: str | None = None
    """Last-Modified."""
    latency: float = 0.0
    """Seconds before the answer."""
    bps: float | None = None
    """Bytes a second of one transfer."""
    cut: list[int | None] = field(default_factory=list)
    """Close after so many body bytes (None: do not)."""
    cut_always: int | None = None
    stall: list[int | None] = field(default_factory=list)
    """Go silent after so many body bytes, connection open."""
    stall_always: int | None = None
    gate: Gate | None = None
    statuses: list[Status | None] = field(default_factory=list)
    always: Status | None = None
    """For every GET and HEAD."""
    head: Status | Literal["hang"] | None = None
    """For HEAD only: refused, or never answered."""
    head_length: int | None = None
    """The Content-Length that HEAD claims."""
    ranges: Literal["yes", "no", "lie", "shift", "bare"] = "yes"
    """lie: advertised, answered 200; shift: 206 from one byte earlier, said so; bare: 206 without Content-Range."""
    if_range: Literal["strict", "ignore"] = "strict"
    framing: Literal["length", "chunked", "unfinished", "close"] = "length"
    """unfinished: chunked and closed without the final chunk; close: ended by the end of the connection."""
    claim: int | None = None
    """The Content-Length that GET claims, whatever is sent."""
    gzip: bool = False
    """Content-Encoding gzip that nobody asked for."""
    ending: Literal["keep", "half-close", "reset", "drop"] = "keep"
    """After the last byte: half-close waits for the other side; reset is an RST; drop closes ~1 ms after a clean reply."""
    redirect: str | None = None
    redirect_code: int = 302
    change: tuple[int, Callable[[Object], None]] | None = None
    """Called once, when a transfer reaches this offset, with the object: `lambda o: o.replace(seed=2)`."""
    splice: bool = False
    """Whether transfers under way go on with the changed bytes (else with those they began with)."""
    auth: Callable[[dict[str, str]], Status | None] | None = None
    on_get: Callable[[Object, Request], None] | None = None
    extra: dict[str, str] = field(default_factory=dict)
    """Further header fields of the object's answers."""
    gets: int = 0
    heads: int = 0
    sent: int = 0
    """Body bytes handed to the kernel."""
    open: int = 0
    """Transfers under way."""
    peak: int = 0
    aborted: int = 0
    """Transfers that the other side left."""
    version: int = 0
    """How often the object was replaced."""
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Complete what follows from the rest."""
        if self.data is not None:
            self.size = len(self.data)

    @property
    def tag(self) -> str | None:
        """The ETag sent."""
        return self.etag if self.etag != "" else f'"{zlib.crc32(self.name.encode()):08x}-{self.seed}"'

    @property
    def seen_ranges(self) -> list[str | None]:
        """The Range header of each GET, in order."""
        return [r.headers.get("range") for r in self.requests if r.method == "GET"]

    def replace(
        self, *, seed: int = 0, size: int | None = None, data: bytes | None = None, etag: str | None = ""
    ) -> None:
        """Put another version under the same name; transfers under way see it only with `splice`."""
        self.seed, self.data, self.etag, self.version = seed, data, etag, self.version + 1
        self.size = len(data) if data is not None else self.size if size is None else size

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Bytes of the version that is there now."""
        if self.data is not None:
            return iter([self.data[at : min(at + content.BLOCK, stop)] for at in range(start, stop, content.BLOCK)])
        return content.pieces(self.name, start, stop, self.seed)

    def whole(self) -> bytes:
        """All bytes of the version that is there now."""
        return b"".join(self.pieces(0, self.size))

    def zero(self) -> None:
        """Forget what was counted."""
        self.gets = self.heads = self.sent = self.peak = self.aborted = 0
        self.requests = []


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to send: its head, and which bytes of which body."""

    code: int
    headers: dict[str, str]
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))
    start: int = 0
    stop: int = 0
    of_object: bool = False
    """Whether the body is the object's, so that its faults apply."""


def plain(status: Status) -> Reply:
    """The answer for a status of its own."""
    return Reply(status.code, {"Content-Length": str(len(status.body)), **status.headers}, iter([status.body]))


def decide(o: Object, request: Request) -> Reply:
    """The answer of `o` to a GET or HEAD."""
    if instead := _refusal(o, request) or _condition(o, request):
        return plain(instead)
    span = _span(o, request)
    if span is None:
        return plain(Status(416, {"Content-Range": f"bytes */{o.size}"}, b""))
    return _whole_or_part(o, request, *span)


def _refusal(o: Object, request: Request) -> Status | None:
    if o.auth and (refused := o.auth(request.headers)):
        return refused
    if request.method == "HEAD" and isinstance(o.head, Status):
        return o.head
    if o.always:
        return o.always
    if request.method == "GET" and o.statuses and (listed := o.statuses.pop(0)):
        return listed
    return Status(o.redirect_code, {"Location": o.redirect}, b"") if o.redirect else None


def _condition(o: Object, request: Request) -> Status | None:
    """If-Match and If-None-Match (RFC 9110, section 13)."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if match is not None and match not in ("*", o.tag):
        return Status(412, {}, b"")
    if none_match is not None and none_match in ("*", o.tag):
        return Status(304, {"ETag": o.tag or ""}, b"")
    return None


def _span(o: Object, request: Request) -> tuple[int, int, int] | None:
    """Code, first byte and end of what is sent; None where the range cannot be satisfied."""
    wanted = request.headers.get("range", "")
    if request.method == "HEAD" or o.ranges in ("no", "lie") or not _single(wanted) or not _fresh(o, request):
        return 200, 0, o.size
    first, last = wanted.removeprefix("bytes=").split("-")
    start = int(first) if first else max(0, o.size - int(last))
    stop = min(int(last) + 1, o.size) if first and last else o.size
    if start >= stop:
        return None
    moved = 1 if o.ranges == "shift" and start else 0
    return 206, start - moved, stop - moved


def _single(wanted: str) -> bool:
    first, dash, last = wanted.removeprefix("bytes=").partition("-")
    numbers = (first + last).isdecimal()
    return wanted.startswith("bytes=") and bool(dash) and numbers


def _fresh(o: Object, request: Request) -> bool:
    condition = request.headers.get("if-range")
    if condition is None or o.if_range == "ignore":
        return True
    return not condition.startswith("W/") and condition in (o.tag, o.modified)


def _whole_or_part(o: Object, request: Request, code: int, start: int, stop: int) -> Reply:
    body, length = _coded(o, start, stop)
    headers = {"Content-Type": "application/octet-stream", **_validators(o), **o.extra}
    if code == 206 and o.ranges != "bare":
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{o.size}"
    if o.gzip:
        headers["Content-Encoding"] = "gzip"
    if request.method == "HEAD":
        return Reply(code, {**headers, "Content-Length": str(length if o.head_length is None else o.head_length)})
    if o.framing in ("chunked", "unfinished"):
        headers["Transfer-Encoding"] = "chunked"
    elif o.framing == "close":
        headers["Connection"] = "close"
    else:
        headers["Content-Length"] = str(length if o.claim is None else o.claim)
    return Reply(code, headers, body, start, stop, of_object=True)


def _validators(o: Object) -> dict[str, str]:
    said = {"Accept-Ranges": "bytes" if o.ranges != "no" else None, "ETag": o.tag, "Last-Modified": o.modified}
    return {name: value for name, value in said.items() if value is not None}


def _coded(o: Object, start: int, stop: int) -> tuple[Iterator[bytes], int]:
    if o.gzip:
        packed = gzip.compress(b"".join(o.pieces(start, stop)), 1, mtime=0)
        return iter([packed[at : at + content.BLOCK] for at in range(0, len(packed), content.BLOCK)]), len(packed)
    return o.pieces(start, stop), stop - start
