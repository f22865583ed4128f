"""Who holds a lock: one look at /proc/locks for all who ask."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from cachedaemon.locks import Holders
from cachedaemon.store.disk import stamp_of


@pytest.mark.asyncio
async def test_all_who_ask_at_once_hear_of_the_holder(folder: Path) -> None:
    """The second asks while the first one's look is under way; a third was cancelled meanwhile."""
    path = folder / "shard"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stamp = stamp_of(os.fstat(file.fileno()))
        holders = Holders()
        gone = asyncio.ensure_future(holders.of(str(path), stamp))
        await asyncio.sleep(0)
        gone.cancel()
        said = await asyncio.gather(*(holders.of(str(path), stamp) for _ in range(3)))
    assert said == [f"pid {os.getpid()} holds an exclusive lock on shard; readers must take shared ones"] * 3


@pytest.mark.asyncio
async def test_nobody_is_named_who_is_not_known(folder: Path) -> None:
    path = folder / "shard"
    path.write_bytes(b"x")
    said = await Holders().of(str(path), stamp_of(path.stat()))
    assert said.startswith("a process that is not known holds an exclusive lock on shard")
