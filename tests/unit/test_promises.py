"""Which promise a touch ends: one that was given on its own connection, and nothing is known of a connection that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cachedaemon.grace import Grace
from cachedaemon.model import Ref, Stamp
from cachedaemon.server.promises import Promises
from cachedaemon.store import Held

A = Ref("s", "a")


class Served:
    """A server whose `/keep` promises a shard and whose `/end` says whether that ended a promise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.back: list[Held] = []
        self.grace = Grace(60, self.back.append)
        self.promises = Promises(self.grace)
        self._held = Held(0, Stamp(1, 1, 0, 0))

    async def keep(self, request: web.Request) -> web.Response:
        self.promises.keep(request, A, self.grace.promise(A, self._held))
        return web.Response(text="kept")

    async def end(self, request: web.Request) -> web.Response:
        return web.Response(text=str(self.promises.end(request, A)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes([web.get("/keep", self.keep), web.get("/end", self.end)])
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(self.path)).start()
            yield
        finally:
            await runner.cleanup()
            self.grace.release(A)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[aiohttp.ClientSession]:
        """One connection."""
        connector = aiohttp.UnixConnector(str(self.path), limit=1)
        async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
            yield session


async def say(client: aiohttp.ClientSession, what: str) -> str:
    async with client.get(f"/{what}") as answer:
        return await answer.text()


@pytest.mark.asyncio
async def test_a_touch_ends_a_promise_of_its_own_connection_only(folder: Path) -> None:
    served = Served(folder / "s")
    async with served.running(), served.client() as one, served.client() as other:
        await say(one, "keep")
        await say(one, "keep")
        assert await say(other, "end") == "False"
        assert [await say(one, "end") for _ in range(3)] == ["True", "True", "False"]
        assert len(served.back) == 1


@pytest.mark.asyncio
async def test_a_connection_that_is_gone_is_forgotten_and_what_was_promised_on_it_lasts(folder: Path) -> None:
    """Otherwise a later connection might be taken for it, and clients that come and go would fill the memory."""
    served = Served(folder / "s")
    async with served.running():
        for _ in range(20):
            async with served.client() as client:
                await say(client, "keep")
        async with asyncio.timeout(20):
            while len(served.promises):
                gc.collect()
                await asyncio.sleep(0.01)
        assert served.back == [], "an answer that was written keeps its promise"
        async with served.client() as client:
            assert await say(client, "end") == "False"
