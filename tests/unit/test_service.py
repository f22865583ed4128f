"""Notices to a service manager, by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon import service
from cachedaemon.service import Notices
from tests.fakes.manager import Manager


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(str(folder / "notify")) as made:
        yield made


async def _hear(manager: Manager) -> str:
    return await asyncio.to_thread(manager.hear)


@pytest.mark.asyncio
async def test_a_start_is_extended_again_and_again(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-67: for as long as the block runs, and no longer; each word reaches well beyond the next."""
    monkeypatch.setattr(service, "SAY_AGAIN", 0.01)
    notices = Notices(manager.env["NOTIFY_SOCKET"])
    async with notices.extending("reading"):
        for _ in range(5):
            assert await _hear(manager) == f"EXTEND_TIMEOUT_USEC={service.EXTEND}000000\nSTATUS=reading"
    assert await asyncio.to_thread(manager.is_silent, 0.1)
    notices.close()


@pytest.mark.asyncio
async def test_a_word_for_a_manager_that_never_listens_is_given_up(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FULL", 0.001)
    monkeypatch.setattr(service, "TRIES", 3)
    notices = Notices(manager.env["NOTIFY_SOCKET"])
    for number in range(1000):
        notices.ready(str(number))
    late = asyncio.all_tasks() - {asyncio.current_task()}
    assert late
    assert not (await asyncio.wait(late, timeout=20))[1]
    assert (await _hear(manager)).startswith("READY=1")
    notices.close()


@pytest.mark.asyncio
async def test_without_a_manager_nothing_is_said_and_nothing_waits() -> None:
    notices = Notices(None)
    notices.ready("serving")
    await notices.live(0.0)
    async with notices.extending("reading"):
        pass
    notices.stopping()
    notices.close()
