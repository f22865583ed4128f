"""An HTTP proxy: plain requests in absolute form, ways through to servers with TLS (CONNECT), refusals on request."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """Where it listens, what it asks for, and the heads of the requests so far."""

    port: int = 0
    user: str | None = None
    """`user:password` that it wants to see."""
    refuse: int | None = None
    """A status that everything is answered with."""
    delay: float = 0.0
    """Seconds that each piece of what comes back takes longer."""
    heads: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        """Request lines so far."""
        return [head.split("\r\n", 1)[0] for head in self.heads]

    def refusal(self, head: str) -> int | None:
        """The status of an answer of its own."""
        if self.user is None:
            return self.refuse
        wanted = f"Proxy-Authorization: Basic {b64encode(self.user.encode()).decode()}"
        return self.refuse if wanted in head else 407


@contextlib.asynccontextmanager
async def proxying(user: str | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy on a loopback port, itself reached with TLS where there is a context for it."""
    proxy, tasks = Proxy(user=user), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await _serve(proxy, reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        async with asyncio.timeout(20):  # they end with their clients
            await asyncio.gather(*tasks)


async def _serve(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    proxy.heads.append(head)
    if status := proxy.refusal(head):
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return
    way = re.match(r"CONNECT ([^ ]+):(\d+) ", head) or re.match(r"GET http://([^/:]+):(\d+)", head)
    assert way is not None, head
    from_there, to_there = await asyncio.open_connection(way[1], int(way[2]))
    try:
        if head.startswith("CONNECT"):
            writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
        else:
            rest = re.sub(r"Proxy-[^\r]*\r\n", "", head[way.end() :])
            to_there.write(f"GET {rest}".encode("latin-1"))
            answer = await from_there.readuntil(b"\r\n\r\n")
            writer.write(answer[:-2] + b"Connection: close\r\n\r\n")
        await asyncio.gather(_pass(reader, to_there), _pass(from_there, writer, lambda: proxy.delay))
    finally:
        to_there.transport.abort()


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Callable[[], float] = lambda: 0.0
) -> None:
    while data := await reader.read(1 << 16):
        await asyncio.sleep(delay())
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
