"""Both clients' `watch` beside a daemon that says what a true one does not say on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import Corrupt, DaemonUnavailable, ShardCache, aio, connection
from cachedaemon_client.aio_feed import Feed
from cachedaemon_client.aio_watch import Watch
from tests.unit.scripted import Said, Scripted, answer, error, scripted

EVENTS = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
KEYS = ["a", "b", "c", "d", "e"]
FOLDER = EVENTS + b"".join(
    b"event: appeared\ndata: " + json.dumps({"key": key, "version": "1"}).encode() + b"\n\n" for key in KEYS
)
DONE = {"state": "done", "total": 1, "done": 1, "failed": 0, "bytes": 1, "errors": []}


class Script:
    """What lies in the folder has appeared, and no shard of it can be had: its error names it. `before` happens first."""

    def __init__(self, folder: bytes | None = FOLDER) -> None:
        self.folder = folder
        self.jobs = deque([answer(200, DONE)])
        self.prefetches = deque([answer(200, {"job": "1"}), error(429, "too_many"), answer(200, {"job": "2"})])
        self.before: Callable[[Said], object] = lambda _: None

    def __call__(self, said: Said) -> bytes | None:
        self.before(said)
        if said.target.startswith("/v1/events"):
            return self.folder
        if said.target == "/v1/hello":
            return answer(200, {"cache_dir": "/none", "sources": {"s": {"archives": "index", "direct": True}}})
        if said.target == "/v1/prefetch":
            return self.prefetches.popleft() if self.prefetches else error(429, "too_many")
        if said.target.startswith("/v1/jobs"):
            return self.jobs.popleft() if self.jobs else error(404, "not_found")
        return error(502, "corrupt") if said.target == "/v1/acquire" else answer(204)


@pytest.fixture
def script(folder: Path) -> Iterator[Scripted]:
    with scripted(folder / "s", Script()) as running:
        yield running


async def _failed(watch: Watch) -> str | None:
    with pytest.raises(Corrupt) as caught:
        await anext(watch)
    return caught.value.key


def test_a_prefetch_that_is_refused_or_forgotten_stops_nothing(script: Scripted) -> None:
    with ShardCache("s", socket=script.path, wait=5) as cache, cache.watch() as watch:
        for key in KEYS:
            with pytest.raises(Corrupt) as caught:
                next(watch)
            assert caught.value.key == key


@pytest.mark.asyncio
async def test_nor_for_asyncio(script: Scripted) -> None:
    async with aio.ShardCache("s", socket=script.path, wait=5) as cache, cache.watch() as watch:
        assert [await _failed(watch) for _ in KEYS] == KEYS


@pytest.mark.asyncio
async def test_waits_that_are_cancelled_are_idle_all_the_same(folder: Path) -> None:
    with scripted(folder / "s", Script(EVENTS)):
        async with aio.ShardCache("s", socket=folder / "s", wait=5) as cache, cache.watch(idle=0.15) as watch:
            waits, until = 0, time.monotonic() + 5
            with contextlib.suppress(StopAsyncIteration):
                while time.monotonic() < until:
                    waits += 1
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(anext(watch), 0.04)
            assert 1 < waits < 20


# --- closed meanwhile


@contextlib.contextmanager
def stuck(script: Scripted, target: str) -> Iterator[Callable[[], object]]:
    """A call of this target is not answered within the block. Gives what waits until it was asked."""
    asked, released = threading.Event(), threading.Event()

    def hold(said: Said) -> None:
        if said.target.startswith(target):
            asked.set()
            released.wait(20)

    script.how.before = hold  # type: ignore[attr-defined]
    try:
        yield lambda: asked.wait(20)
    finally:
        released.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/v1/events", "/v1/prefetch", "/v1/acquire"])
async def test_close_by_another_task_breaks_off_whatever_is_under_way(script: Scripted, target: str) -> None:
    async with aio.ShardCache("s", socket=script.path, wait=60) as cache:
        watch = cache.watch()

        async def read() -> int:
            async for _ in watch:
                pass
            task = asyncio.current_task()
            return task.cancelling() if task else -1

        with stuck(script, target) as wait:
            reading = asyncio.create_task(read())
            await asyncio.to_thread(wait)
            await watch.close()
            assert await asyncio.wait_for(reading, 5) == 0, "whose task goes on as if nobody had cancelled it"
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_too_stays_so(script: Scripted) -> None:
    async with aio.ShardCache("s", socket=script.path, wait=60) as cache:
        watch = cache.watch()
        with stuck(script, "/v1/acquire") as wait:
            reading = asyncio.ensure_future(anext(watch))
            await asyncio.to_thread(wait)
            await watch.close()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading


def test_close_by_another_thread_while_what_waits_is_told(script: Scripted) -> None:
    with ShardCache("s", socket=script.path, wait=5) as cache:
        watch = cache.watch()
        script.how.before = lambda said: said.target == "/v1/prefetch" and watch.close()  # type: ignore[attr-defined]
        with pytest.raises(StopIteration):
            next(watch)


def test_close_by_another_thread_while_nothing_comes(folder: Path) -> None:
    """It is not connected anew."""

    def close(seconds: float) -> list[dict[str, Any]]:
        threading.Thread(target=close_and_wake).start()
        return hear(seconds)

    def close_and_wake() -> None:
        watch.close()
        with contextlib.suppress(OSError):  # the daemon has noticed already
            script._links[0].sendall(b": alive\n\n")

    with scripted(folder / "s", Script(EVENTS)) as script, ShardCache("s", socket=folder / "s", wait=5) as cache:
        watch = cache.watch(idle=3)
        assert watch._feed is not None
        hear, watch._feed.hear = watch._feed.hear, close  # type: ignore[method-assign]
        with pytest.raises(StopIteration):
            next(watch)
        assert script.links == 1


# --- what is no daemon, or a silent one


@pytest.mark.parametrize(
    "said",
    [
        b"220 smtp.example.org ESMTP\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
        b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>",
    ],
    ids=["no HTTP", "nothing", "a page", "an error that is no daemon's"],
)
def test_what_is_no_daemon_is_not_waited_for(folder: Path, said: bytes) -> None:
    async def watch() -> None:
        async with aio.ShardCache("s", socket=folder / "s", wait=600) as cache:
            await anext(cache.watch())

    def say(asked: Said) -> None:
        script._links[asked.link].sendall(said)

    with scripted(folder / "s", say) as script:
        with pytest.raises(DaemonUnavailable, match="no daemon's answer"):
            ShardCache("s", socket=folder / "s", wait=600).watch()
        with pytest.raises(DaemonUnavailable, match="no daemon's answer"):
            asyncio.run(watch())


def test_one_that_never_answers_is_waited_for_as_long_as_said(
    script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch() -> None:
        async with aio.ShardCache("s", socket=script.path, wait=0) as cache:
            await anext(cache.watch())

    monkeypatch.setattr(connection, "SLACK", 0.05)
    with stuck(script, "/v1/events"):
        with pytest.raises(DaemonUnavailable, match="does not answer"):
            ShardCache("s", socket=script.path, wait=0).watch()
        with pytest.raises(DaemonUnavailable, match="does not answer"):
            asyncio.run(watch())


@pytest.mark.asyncio
async def test_a_feed_that_has_not_begun_is_closed_in_a_forked_child(script: Scripted) -> None:
    with stuck(script, "/v1/events") as wait:
        feed = Feed(str(script.path), "/v1/events?watch=s", "s")
        beginning = asyncio.ensure_future(feed.begin(20))
        await asyncio.to_thread(wait)
        assert feed._coming is not None
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                closed = feed._socket.fileno() < 0
                feed.close()
                os._exit(0 if closed else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0
        feed.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            await beginning
