"""A proxy in front of a real server, that makes its answers late, short, or others: plain HTTP/1.1, one request a connection.

It runs in a thread with an event loop of its own. Rules are looked at in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Request:
    """As it came."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""

    @property
    def path(self) -> str:
        """Unquoted, without the query."""
        return unquote(self.target.partition("?")[0])


@dataclass
class Rule:
    """What happens to requests that `fits`, as often as `times` says (None: always).

    `answer` is sent in place of the server's; of the server's own, no more than `cut` bytes of the body go out, at `bps`.
    """

    fits: Callable[[Request], bool]
    times: int | None = None
    answer: bytes | None = None
    cut: int | None = None
    bps: float | None = None
    without: tuple[str, ...] = ()
    """Request headers that the server does not get to see, in lower case."""
    taken: int = field(default=0, init=False)


def answer(status: int, code: str = "", *headers: str) -> bytes:
    """An answer as object stores give it when they refuse."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode() if code else b""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Between:
    """The proxy; `url` is where it listens, `log` what was asked through it.

    `renames`: the server gets to see its own name as the host, not that of the proxy; `tls`: towards the client.
    """

    def __init__(self, upstream: str, *, renames: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = urlsplit(upstream)
        self._tls = tls
        self._more = [f"Host: {self._upstream.netloc}".encode()] if renames else []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._thawed = asyncio.Event()
        self.port = 0
        self.rules: list[Rule] = []
        self.log: list[Request] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def rule(self, key: str = "", **rule: Any) -> Rule:
        """A rule for GETs of paths that end with `key`, and of their parts."""
        made = Rule(lambda request: request.method == "GET" and request.path.endswith(key), **rule)
        self.rules.append(made)
        return made

    def down(self) -> None:
        """Nobody listens, and who is connected is no more."""
        self._run(self._stop())

    def up(self) -> None:
        """All is well: no rule is left, and nobody waits."""
        self.rules.clear()
        self._run(self._start())

    def freeze(self) -> None:
        """Requests are taken in and not answered, until `up`."""
        self._loop.call_soon_threadsafe(self._thawed.clear)

    def asked(self, key: str) -> list[Request]:
        """The GETs so far of what ends with `key`."""
        return [one for one in self.log if one.method == "GET" and one.path.endswith(key)]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> None:
        self._thawed.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._one(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either side has gone, or the proxy goes
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request = _parsed(head)
        self.log.append(request)
        await self._thawed.wait()
        rule = self._rule(request)
        if rule is not None and rule.answer is not None:
            writer.write(rule.answer)
            await writer.drain()
            return
        upstream, sender = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            sender.write(_closing(head, rule.without if rule else (), self._more))
            sender.write(await reader.readexactly(int(request.headers.get("content-length", 0))))
            writer.write(await upstream.readuntil(b"\r\n\r\n"))
            await _relay(upstream, writer, rule)
        finally:
            sender.close()

    def _rule(self, request: Request) -> Rule | None:
        for rule in self.rules:
            if rule.fits(request) and (rule.times is None or rule.taken < rule.times):
                rule.taken += 1
                return rule
        return None


def _parsed(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    named = (line.partition(":") for line in lines)
    return Request(method, target, {name.strip().lower(): value.strip() for name, _, value in named})


def _closing(head: bytes, without: tuple[str, ...], more: list[bytes]) -> bytes:
    """The same head, after whose answer the server closes."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    gone = {"connection", *without} | ({"host"} if more else set())
    kept = [line for line in lines if line.partition(b":")[0].decode("latin-1").strip().lower() not in gone]
    return b"\r\n".join([first, *kept, *more, b"Connection: close"]) + b"\r\n\r\n"


async def _relay(upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, rule: Rule | None) -> None:
    left = rule.cut if rule else None
    bps = rule.bps if rule else None
    step = max(1, min(_BLOCK, int(bps / 20))) if bps else _BLOCK
    while block := await upstream.read(step if left is None else min(step, left)):
        writer.write(block)
        await writer.drain()
        left = None if left is None else left - len(block)
        if bps:
            await asyncio.sleep(len(block) / bps)
