"""A web server as slow as a remote store: `python -m cachedaemon.demo.origin FOLDER LATENCY BYTES_PER_SECOND`.

Each request waits for the latency, each connection is limited, and byte ranges are served (RFC 9110, 14) for the rival
that asks for single samples. `GET /_counts` says what was served so far. It prints its port, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

from cachedaemon.demo.children import end_with_parent

PIECE = 32 << 10
COUNTS = "/_counts"


class Origin:
    """The objects of one folder, and what was asked for."""

    def __init__(self, folder: Path, latency: float, rate: float) -> None:
        self._objects = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
        self._latency = latency
        self._rate = rate
        self.requests = 0
        self.bytes = 0
        self.transfers: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                await self._answer(head, writer)
        writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split(" ", 2)
        path = unquote(target)
        if path == COUNTS:
            counts = {"requests": self.requests, "bytes": self.bytes, "transfers": sum(self.transfers.values())}
            body = json.dumps(counts).encode()
            writer.write(_head("200 OK", len(body)) + body)
            return
        self.requests += 1
        await asyncio.sleep(self._latency)
        found = self._objects.get(path)
        if found is None:
            writer.write(_head("404 Not Found", 0))
            return
        asked = re.search(r"\r\nrange: *bytes=(\d+)-(\d*)\r\n", head, re.IGNORECASE)
        await self._send(writer, method, path, _range(asked, len(found)))

    async def _send(self, writer: asyncio.StreamWriter, method: str, path: str, part: slice | None) -> None:
        body = self._objects[path]
        if part is None:
            writer.write(_head("200 OK", len(body), f'ETag: "{path[1:]}"'))
            sent = body
        else:
            sent = body[part]
            place = f"Content-Range: bytes {part.start}-{part.start + len(sent) - 1}/{len(body)}"
            writer.write(_head("206 Partial Content", len(sent), place))
        if method != "HEAD":
            await self._pace(writer, sent)
            self.transfers[path] += part is None

    async def _pace(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        """Write no faster than the connection's rate."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            writer.write(piece)
            await writer.drain()
            self.bytes += len(piece)
            await asyncio.sleep(began + (start + len(piece)) / self._rate - clock())


def _head(status: str, length: int, *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {length}", "Accept-Ranges: bytes", *more, "", "")
    return "\r\n".join(lines).encode()


def _range(asked: re.Match[str] | None, length: int) -> slice | None:
    if asked is None or int(asked[1]) >= length:
        return None
    return slice(int(asked[1]), min(length, int(asked[2] or length - 1) + 1))


async def _main(folder: str, latency: str, rate: str) -> None:
    origin = Origin(Path(folder), float(latency), float(rate))
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - what the parent waits for
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(_main(*sys.argv[1:]))
