"""A request that names many keys leaves the loop to others between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cachedaemon.daemon import Daemon
from cachedaemon.server import application
from tests.unit.test_cache_cancel import running

MANY = 20_000


@contextlib.asynccontextmanager
async def asking(daemon: Daemon, socket: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """The daemon's API on a socket, and a session to ask it."""
    runner = web.AppRunner(application(daemon._api(), daemon._watch(), lambda: "g"), access_log=None)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
            yield session
    finally:
        await runner.cleanup()


class Rounds:
    """Counts the rounds of the loop, and notes in which of them something was called."""

    def __init__(self) -> None:
        self.now = 0
        self.noted: set[int] = set()

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.now += 1

    def noting(self, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.noted.add(self.now)
            return what(*args)

        return call


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/touch", {"used": [["a", 0.0]] * MANY}),
        ("PUT", "/v1/plans/p", {"keys": ["a"] * MANY}),
        ("POST", "/v1/prefetch", {"keys": ["0.bin"] * MANY}),
    ],
)
async def test_many_keys_in_one_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any]
) -> None:
    async with running(folder, "opaque") as daemon, asking(daemon, folder / "api.sock") as session:
        rounds = Rounds()
        monkeypatch.setattr(daemon.cache.shelf, "touch", rounds.noting(daemon.cache.shelf.touch))
        monkeypatch.setattr(daemon.sources, "shard", rounds.noting(daemon.sources.shard))
        counting = asyncio.create_task(rounds.count())
        async with session.request(method, f"http://localhost{path}", json={"source": "s", **body}) as answer:
            assert answer.status < 300, await answer.text()
        counting.cancel()
        assert len(rounds.noted) >= 50
        await daemon.prefetch.close()
