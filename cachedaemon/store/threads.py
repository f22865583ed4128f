"""Threads for disk calls. A thread that changes the disk is always awaited to its end, also under cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def settle(future: asyncio.Future[T]) -> None:
    """Wait until `future` is done, however often this task is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue


async def to_end(pool: Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work` in a thread of `pool`. A cancellation takes effect when the thread has ended.

    A result that would be lost to a cancellation is closed, where it can be.
    """
    future = asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await settle(future)
        if not future.cancelled() and future.exception() is None:
            _close(future.result())
        raise


def _close(result: object) -> None:
    close = getattr(result, "close", None)
    if callable(close):
        close()


async def committed(pool: Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a step that the index must hear of: once it has begun, a cancellation comes too late."""
    future = asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))
    await settle(future)
    return future.result()
