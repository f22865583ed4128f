"""Servers that break the rules of HTTP itself, byte for byte: nothing hangs, and nothing that is not the object passes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator

import pytest

from cachedaemon.conformance import opened, read
from cachedaemon.errors import CacheDaemonError, Cut, OriginRefused, OriginUnavailable

pytestmark = pytest.mark.asyncio

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BETWEEN = 0.05
"""Seconds between two parts, so that each is read by itself."""
BOUND = 20
"""Seconds for what would not end at all."""


@contextlib.asynccontextmanager
async def serving(*parts: bytes, then: bytes = b"") -> AsyncIterator[str]:
    """A server that answers with these parts and closes; or goes on with `then` until the other side leaves."""
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(BETWEEN)
            while then and not (reader.at_eof() or writer.is_closing()):
                writer.write(then)
                await writer.drain()
                await asyncio.sleep(BETWEEN)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        await asyncio.gather(*tasks)


async def failure(url: str, **limits: object) -> CacheDaemonError:
    async with opened(url, **limits) as origin, asyncio.timeout(BOUND):
        with pytest.raises(CacheDaemonError) as error:
            await read(origin, "k.bin")
    return error.value


# ---- bodies


@pytest.mark.parametrize("odd", [b"zz\r\nabc", b"f" * 18 + b"\r\nabc", b"3\r\nabcdefgh\r\n"])
async def test_a_malformed_chunk_is_a_cut(odd: bytes) -> None:
    """No limit is needed for it: the connection is at its end."""
    async with serving(CHUNKED + b"5\r\nabcde\r\n", odd) as url:
        said = await failure(url, stall_timeout="0s")
    assert isinstance(said, Cut)
    assert "of an unknown number of bytes" in str(said)


async def test_what_stands_between_the_bytes_does_not_keep_a_transfer_alive() -> None:
    """An endless chunk extension, say: bytes come, but none of the object."""
    async with serving(CHUNKED + b"5\r\nabcde\r\n", b"1;", then=b"x") as url:
        assert isinstance(await failure(url, stall_timeout="500ms"), Cut)


async def test_slow_chunks_go_on_as_long_as_they_come() -> None:
    async with serving(CHUNKED, *[b"1\r\n", b"a", b"\r\n"] * 20, b"0\r\n\r\n") as url, opened(url) as origin:
        assert await read(origin, "k.bin") == b"a" * 20


async def test_chunks_of_a_byte_are_handed_on_together() -> None:
    """A list of a million pieces would keep the loop busy."""
    count = 300_000
    body = b"1\r\na\r\n" * count + b"0\r\n\r\n"
    async with serving(CHUNKED + body) as url, opened(url) as origin, origin.open("k.bin") as stream:
        batches = [(len(pieces), sum(map(len, pieces))) async for pieces in stream.pieces()]
    assert sum(size for _, size in batches) == count
    assert max(pieces for pieces, _ in batches) <= 1000


@pytest.mark.parametrize("coding", ["gzip, chunked", "deflate,chunked", "chunked, gzip", "gzip"])
async def test_a_transfer_coding_that_nobody_asked_for_is_refused(coding: str) -> None:
    """The object is what it is without its codings, and so is never published with one."""
    body = gzip.compress(b"a" * 1000)
    head = OK + f"Transfer-Encoding: {coding}\r\n\r\n".encode()
    async with serving(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) as url:
        assert isinstance(await failure(url), OriginRefused | OriginUnavailable)


@pytest.mark.parametrize("coding", ["Chunked", " chunked "])
async def test_chunks_are_chunks_in_any_spelling(coding: str) -> None:
    head = OK + f"Transfer-Encoding: {coding}\r\n\r\n".encode()
    async with serving(head + b"5\r\nabcde\r\n0\r\n\r\n") as url, opened(url) as origin:
        assert await read(origin, "k.bin") == b"abcde"


# ---- heads


async def test_a_long_line_is_taken_and_an_endless_one_is_not() -> None:
    """A signed `Location`, say."""
    async with serving(OK + b"A: " + b"b" * 60_000 + b"\r\nContent-Length: 1\r\n\r\nx") as url, opened(url) as origin:
        assert await read(origin, "k.bin") == b"x"
    async with serving(OK + b"A: " + b"b" * 200_000 + b"\r\nContent-Length: 1\r\n\r\nx") as url:
        said = await failure(url)
    assert isinstance(said, OriginUnavailable)
    assert "no answer in HTTP" in str(said)


@pytest.mark.parametrize(
    ("begin", "then"), [(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (OK, b"A: b\r\n"), (OK + b"A: ", b"b")]
)
async def test_a_head_without_end_ends_at_the_limits(begin: bytes, then: bytes) -> None:
    """Interim answers, lines and bytes that keep coming: the place among the transfers is not the server's to keep."""
    async with serving(begin, then=then) as url:
        said = await failure(url, connect_timeout="300ms", stall_timeout="300ms")
    assert isinstance(said, OriginUnavailable)
    assert "in time" in str(said)
