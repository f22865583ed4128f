"""The daemon's own leases: counted by promises, none for longer than its time."""

from __future__ import annotations

import asyncio

import pytest

from cachedaemon.grace import Grace
from cachedaemon.model import Ref, Stamp
from cachedaemon.store import Held

A = Ref("s", "a")


def held(inode: int = 1, descriptor: int = 0) -> Held:
    return Held(descriptor, Stamp(1, inode, 0, 0))


@pytest.mark.asyncio
async def test_the_last_promise_gives_the_lease_back() -> None:
    back: list[Held] = []
    grace = Grace(60, back.append)
    first, second = grace.promise(A, one := held()), grace.promise(A, one)
    grace.end(first)
    grace.end(first)
    assert back == []
    assert grace.held(A) is one
    grace.end(second)
    assert back == [one]
    assert grace.held(A) is None


@pytest.mark.asyncio
async def test_one_lease_a_shard() -> None:
    back: list[Held] = []
    grace = Grace(60, back.append)
    grace.promise(A, one := held(descriptor=1))
    grace.promise(A, held(descriptor=2))
    assert [h.descriptor for h in back] == [2]
    assert grace.held(A) is one
    grace.release(A)


@pytest.mark.asyncio
async def test_a_lease_for_many_answers_is_given_back_once() -> None:
    """Beside another lease at once: closed twice, its descriptor could be somebody else's by then."""
    back: list[Held] = []
    grace = Grace(60, back.append)
    before = grace.promise(A, one := held())
    promises = grace.promises(A, two := held(), 3)
    assert back == [two]
    assert back[0] is two
    for promise in (before, *promises):
        grace.end(promise)
    assert len(back) == 2
    assert back[1] is one
    assert grace.promises(A, three := held(), 0) == []
    assert back[2] is three
    assert grace.held(A) is None


@pytest.mark.asyncio
async def test_each_version_is_held_as_long_as_it_is_promised() -> None:
    """A new version has a lease of its own, and the one before keeps its own until its promises have ended."""
    back: list[Held] = []
    grace = Grace(60, back.append)
    old = grace.promise(A, before := held(inode=1))
    new = grace.promise(A, here := held(inode=2))
    assert not back
    assert grace.held(A) is here
    grace.end(old)
    assert back == [before]
    assert grace.held(A) is here
    grace.end(new)
    assert back == [before, here]
    assert grace.held(A) is None


@pytest.mark.asyncio
async def test_all_promises_end_with_the_daemon() -> None:
    """Those of earlier versions too; no time runs out later, when no thread is left to give a lease back."""
    back: list[Held] = []
    grace = Grace(0.01, back.append)
    leases = [held(inode=1), held(inode=2), held(inode=3)]
    promises = [grace.promise(A, one) for one in leases[:2]] + grace.promises(Ref("s", "b"), leases[2], 2)
    for promise in promises:
        grace.start(promise)
    grace.end_all()
    assert sorted(one.stamp for one in back) == sorted(one.stamp for one in leases)
    await asyncio.sleep(0.03)  # longer than their time: nothing comes of it
    assert len(back) == len(leases)


@pytest.mark.asyncio
async def test_its_time_runs_from_the_answer() -> None:
    back: asyncio.Queue[Held] = asyncio.Queue()
    grace = Grace(0.05, back.put_nowait)
    grace.start(grace.promise(A, one := held()))
    assert await asyncio.wait_for(back.get(), 20) is one
    assert grace.held(A) is None


@pytest.mark.asyncio
async def test_dropped_promises_end_without_a_word() -> None:
    back: list[Held] = []
    grace = Grace(0.01, back.append)
    promises = [grace.promise(A, one := held())]
    promises.append(grace.promise(A, one))
    assert grace.drop(A) is one
    assert grace.drop(A) is None
    for promise in promises:
        grace.start(promise)
        grace.end(promise)
    await asyncio.sleep(0.03)  # longer than their time: nothing comes of it
    assert back == []
