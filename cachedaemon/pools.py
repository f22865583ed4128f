"""Pools of threads that are all there from the start.

`ThreadPoolExecutor` begins a thread when there is work for it. Where the machine refuses one then (pids.max, RLIMIT_NPROC), the work
stays in the queue, and whoever wanted to wait for its end has nothing to wait for. libuv's own threads are worse: the process aborts.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from cachedaemon.errors import StartError

OTHERS = 6
"""Threads of the loop, for what no pool is meant for."""


def started(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads run. `StartError` where they cannot be had."""
    pool = ThreadPoolExecutor(threads, name)
    fill(pool, threads)
    return pool


def fill(pool: ThreadPoolExecutor, threads: int) -> None:
    """Have all threads of a pool begin that nobody has used yet. `StartError` where they cannot be had; the pool has ended then."""
    all_here = threading.Event()
    try:
        for _ in range(threads):
            pool.submit(all_here.wait)
    except RuntimeError as cause:
        pool.shutdown(wait=False, cancel_futures=True)
        raise StartError(
            f"{threads} threads more cannot be had: {cause}; pids.max and RLIMIT_NPROC limit them"
        ) from None
    finally:
        all_here.set()


async def begin(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop's own threads begin, and libuv's, of which the first look-up of a name makes all."""
    loop.set_default_executor(started(OTHERS, "loop"))
    await asyncio.gather(loop.getaddrinfo("localhost", None), return_exceptions=True)
