"""Connections that say nothing, or say it a letter at a time, and more of them than may be."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from cachedaemon.server.connection import BOUNDS, Bounds, Runner

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def served(bounds: Bounds) -> AsyncIterator[int]:
    """The port of a server within these bounds."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app[BOUNDS] = bounds
    app.add_routes([web.get("/", hello)])
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        runner = Runner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, link).start()
        try:
            yield link.getsockname()[1]
        finally:
            await runner.cleanup()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: local"])
async def test_half_a_request_is_not_waited_for_for_ever(said: bytes) -> None:
    async with served(Bounds(each=10, idle=0.1)) as port, asyncio.timeout(20):
        reader, writer = await connected(port)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_one_more_than_may_be_is_told_so_and_others_go_on() -> None:
    """One that has gone makes room for another."""
    async with served(Bounds(each=2, idle=60)) as port, asyncio.timeout(20):
        first, second = await connected(port), await connected(port)
        for _, writer in (first, second):
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in (first, second):
            assert await reader.readuntil(b"hello")
        reader, writer = await connected(port)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert json.loads(body)["error"]["code"] == "too_many"
        writer.close()
        first[1].close()
        await first[1].wait_closed()
        for _ in range(1000):  # until the server has seen it go
            if (await _answer(port)).endswith(b"hello"):
                break
        else:
            pytest.fail("there is never room again")
        second[1].close()


async def _answer(port: int) -> bytes:
    reader, writer = await connected(port)
    writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionResetError:  # refused before it was read
        return b""
    finally:
        writer.close()
