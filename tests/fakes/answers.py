"""A server that gives answers byte for byte, one a request, for heads that no real server would send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Answers:
    """Where it listens, and the heads of the requests so far."""

    url: str = ""
    requests: list[str] = field(default_factory=list)


def answer(head: str, body: bytes = b"") -> bytes:
    """An answer with a length, of header lines that begin with the status."""
    lines = [line.strip() for line in head.strip().splitlines()]
    return (
        "\r\n".join([f"HTTP/1.1 {lines[0]} Said", *lines[1:], f"Content-Length: {len(body)}", "", ""]).encode() + body
    )


@contextlib.asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[Answers]:
    """The n-th request gets the n-th answer, those after the last one that too; each on a connection of its own."""
    said, tasks = Answers(), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            said.requests.append((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
            writer.write(answers[min(len(said.requests), len(answers)) - 1])
            await writer.drain()
            writer.write_eof()
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    said.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield said
    finally:
        server.close()
        await asyncio.gather(*tasks)
