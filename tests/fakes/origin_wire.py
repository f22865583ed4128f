"""The lying origin's side of one connection: HTTP/1.1 on raw asyncio streams."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import termios
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from tests.fakes.content import BLOCK
from tests.fakes.origin_object import Gate, Object, Reply, Request, Status, decide, plain

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """At most `bps` bytes a second, over all who take from it (None: no limit)."""

    def __init__(self, bps: float | None) -> None:
        """Unused so far."""
        self.bps = bps
        self._free = 0.0

    @property
    def step(self) -> int:
        """Bytes to take at once, so that the flow is even."""
        return max(1024, min(BLOCK, int(self.bps / 50))) if self.bps else BLOCK

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may go; a late waker catches up 50 ms at the most."""
        if not self.bps:
            return
        now = time.monotonic()
        self._free = max(self._free, now - 0.05) + count / self.bps
        if self._free > now:
            await asyncio.sleep(self._free - now)


@dataclass(eq=False)
class Shared:
    """What all connections of one origin share."""

    objects: dict[str, Object] = field(default_factory=dict)
    default: Callable[[str], Object | None] | None = None
    link: Pace = field(default_factory=lambda: Pace(None))
    connection_bps: float | None = None
    keep_alive: bool = True
    log: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    peak: int = 0
    thawed: asyncio.Event = field(default_factory=asyncio.Event)

    def find(self, target: str) -> Object | None:
        """The object of a raw target: by all of it, by its path, by its decoded path, or by `default`."""
        whole = target.removeprefix("/")
        path = whole.split("?", 1)[0]
        for name in (whole, path, unquote(path)):
            if name in self.objects:
                return self.objects[name]
        made = self.default(unquote(path)) if self.default else None
        if made:
            self.objects[made.name] = made
        return made


class Wire(asyncio.StreamReaderProtocol):
    """Streams that also tell when the other side has left."""

    def __init__(self, reader: asyncio.StreamReader, serve: Callable[..., None]) -> None:
        """`serve` gets reader, writer and the event."""
        self.gone = asyncio.Event()
        super().__init__(reader, lambda r, w: serve(r, w, self.gone))

    def eof_received(self) -> bool:
        """Half-closed by the other side: as good as gone for who waits, though what was asked is still answered."""
        self.gone.set()
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed or reset."""
        self.gone.set()
        super().connection_lost(exc)


class Left(ConnectionError):
    """The other side left while its transfer was paused."""


async def either(what: asyncio.Event, gone: asyncio.Event) -> None:
    """Wait for `what`; raises `Left` when the other side leaves first."""
    if what.is_set():
        return
    waits = [asyncio.ensure_future(e.wait()) for e in (what, gone)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not what.is_set():
        raise Left


class Connection:
    """Answers the requests of one connection, one after the other."""

    def __init__(
        self, shared: Shared, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        """Counted at once."""
        self.shared, self.reader, self.writer, self.gone = shared, reader, writer, gone
        self.pace = Pace(shared.connection_bps)
        self.socket: socket.socket = writer.get_extra_info("socket")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shared.connections += 1
        self.number = shared.connections

    async def serve(self) -> None:
        """Until either side ends it."""
        self.shared.open += 1
        self.shared.peak = max(self.shared.peak, self.shared.open)
        try:
            while await self._exchange(await self._request()):
                pass
            self.writer.close()
            await self.writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self.shared.open -= 1
            self.writer.transport.abort()

    async def _request(self) -> Request:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.rstrip("\r\n").split("\r\n")
        pairs = (part.partition(":") for part in rest)
        fields = tuple((name.strip(), value.strip()) for name, _, value in pairs)
        request = Request(line, fields, time.monotonic(), self.number)
        self.shared.log.append(request)
        return request

    async def _exchange(self, request: Request) -> bool:
        """Answer; whether the connection lives on."""
        await either(self.shared.thawed, self.gone)
        if request.method not in ("GET", "HEAD"):
            return await self._send_plain(request, Status(405, {"Connection": "close"}, b""))
        found = self.shared.find(request.target)
        if found is None:
            return await self._send_plain(request, Status(404, {}, b"no such object"))
        self._count(found, request)
        if found.latency:
            await asyncio.sleep(found.latency)
        if request.method == "HEAD" and found.head == "hang":
            await either(asyncio.Event(), self.gone)
        reply = decide(found, request)
        if request.method == "HEAD" or not reply.of_object:
            return await self._send_reply(request, reply)
        await self._head(reply)
        return await Transfer(self, found, reply).run() and self._stays(reply)

    @staticmethod
    def _count(found: Object, request: Request) -> None:
        found.requests.append(request)
        if request.method == "HEAD":
            found.heads += 1
            return
        found.gets += 1
        if found.on_get:
            found.on_get(found, request)

    async def _send_plain(self, request: Request, status: Status) -> bool:
        return await self._send_reply(request, plain(status))

    async def _send_reply(self, request: Request, reply: Reply) -> bool:
        await self._head(reply)
        bare = request.method == "HEAD" or reply.code in (204, 304)
        self.writer.write(b"" if bare else b"".join(reply.body))
        await self.writer.drain()
        return self._stays(reply)

    async def _head(self, reply: Reply) -> None:
        headers = dict(reply.headers)
        if not self.shared.keep_alive:
            headers["Connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 {reply.code} Said\r\n{lines}\r\n".encode("latin-1"))
        await self.writer.drain()

    def _stays(self, reply: Reply) -> bool:
        return self.shared.keep_alive and reply.headers.get("Connection") != "close"


class Transfer:
    """One body on its way, with the faults of its object."""

    def __init__(self, connection: Connection, found: Object, reply: Reply) -> None:
        """Takes this GET's entries off the object's lists."""
        self.c, self.o, self.reply = connection, found, reply
        self.cut = found.cut.pop(0) if found.cut else found.cut_always
        self.stall = found.stall.pop(0) if found.stall else found.stall_always
        self.gate = found.gate
        self.pace = Pace(found.bps)
        self.chunked = found.framing in ("chunked", "unfinished")
        self.version, self.body, self.rest = found.version, reply.body, memoryview(b"")
        self.sent = 0

    async def run(self) -> bool:
        """Send it all, or as much as the faults let through; whether the connection lives on."""
        self.o.open += 1
        self.o.peak = max(self.o.peak, self.o.open)
        try:
            whole = await self._body()
            await self.c.writer.drain()
            return whole and await self._end()
        except ConnectionError:
            self.o.aborted += 1
            raise
        finally:
            self.o.open -= 1

    @property
    def offset(self) -> int:
        """Where in the object the transfer is."""
        return self.reply.start + self.sent

    async def _body(self) -> bool:
        while True:
            await self._events()
            if self.cut is not None and self.sent >= self.cut:
                return False
            piece = self._next()
            if not piece:
                return True
            await self._put(piece)

    async def _events(self) -> None:
        """What is to happen at this very offset."""
        await either(self.c.shared.thawed, self.c.gone)
        if self.gate and self.gate.offset == self.offset:
            await self._pass(self.gate)
        if self.o.change and self.o.change[0] == self.offset:
            change, self.o.change = self.o.change[1], None
            change(self.o)
        if self.stall is not None and self.sent >= self.stall:
            await either(asyncio.Event(), self.c.gone)

    async def _pass(self, gate: Gate) -> None:
        opened, loop = asyncio.Event(), asyncio.get_running_loop()
        self.gate = None
        gate.arrive(lambda: loop.call_soon_threadsafe(opened.set))
        await either(opened, self.c.gone)

    def _next(self) -> memoryview:
        """The next bytes, up to the next offset at which something happens; empty at the end."""
        if self.o.splice and self.version != self.o.version:
            self.version, self.rest = self.o.version, memoryview(b"")
            self.body = self.o.pieces(self.offset, self.reply.stop)
        if not self.rest:
            self.rest = memoryview(next(self.body, b""))
        size = min(self._room(), self.pace.step, self.c.pace.step, self.c.shared.link.step)
        piece, self.rest = self.rest[:size], self.rest[size:]
        return piece

    def _room(self) -> int:
        marks = [m - self.sent for m in (self.cut, self.stall) if m is not None]
        marks += [self.gate.offset - self.offset] if self.gate else []
        marks += [self.o.change[0] - self.offset] if self.o.change else []
        return min((m for m in marks if m > 0), default=BLOCK)

    async def _put(self, piece: memoryview) -> None:
        if self.c.writer.transport.is_closing():  # uvloop refuses to write then, with an error of another kind
            raise Left
        self.c.writer.write(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)) if self.chunked else piece)
        await self.c.writer.drain()
        self.sent += len(piece)
        self.o.sent += len(piece)
        for pace in (self.pace, self.c.pace, self.c.shared.link):
            await pace.take(len(piece))

    async def _end(self) -> bool:
        if self.o.framing == "unfinished":
            return False
        if self.o.framing == "chunked":
            self.c.writer.write(b"0\r\n\r\n")
            await self.c.writer.drain()
        if self.o.ending == "half-close":
            self.c.writer.write_eof()
            await self.c.gone.wait()
        elif self.o.ending == "reset":
            await self._reset()
        elif self.o.ending == "drop":
            await self._drop()
        return self.o.ending == "keep" and self.reply.headers.get("Content-Length") == self._sent_length()

    def _sent_length(self) -> str | None:
        """What Content-Length must have said for the connection to be of further use."""
        return str(self.sent) if self.o.framing == "length" else None

    async def _reset(self) -> None:
        """An RST once the other side's kernel has everything: a reset drops what is still unsent."""
        while self.c.writer.transport.get_write_buffer_size() or unacknowledged(self.c.socket):  # noqa: ASYNC110 -- no event tells
            await asyncio.sleep(0.002)
        self.c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.c.writer.transport.abort()

    async def _drop(self) -> None:
        """Close about 1 ms after the reply; a request that arrives in between stays unread and is answered by RST."""
        cast("asyncio.Transport", self.c.writer.transport).pause_reading()
        await asyncio.sleep(0.001)
        self.c.writer.transport.abort()


def unacknowledged(sock: socket.socket) -> int:
    """Bytes in the send queue that the peer's kernel has not confirmed (SIOCOUTQ, tcp(7))."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    return count[0]
