"""Content codings piece by piece: bodies made to keep the loop busy do not, and pieces may be cut anywhere."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from cachedaemon.origins.base import PIECE, Piece
from cachedaemon.origins.coding import STEPS, decoded
from tests.fakes import content

pytestmark = pytest.mark.asyncio

DATA = content.data("k", 200_000)
EMPTY = gzip.compress(b"")


async def pieces_of(data: bytes, size: int) -> AsyncIterator[list[Piece]]:
    for at in range(0, len(data), size):
        yield [data[at : at + size]]


async def plain(coded: bytes, size: int, name: str = "k.tar") -> bytes:
    return b"".join([b"".join(batch) async for batch in decoded("gzip", name, pieces_of(coded, size))])


async def test_members_that_hold_nothing_leave_others_their_turn() -> None:
    """However many there are: the work grows with the bytes alone, which 200,000 members in one piece would show."""
    members, turns = 200_000, 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    assert await plain(EMPTY * members + gzip.compress(DATA), 8 << 20) == DATA
    assert turns >= members // STEPS
    task.cancel()


@pytest.mark.parametrize("size", [1, 7, 511, 513, 70_000])
async def test_pieces_may_be_cut_anywhere(size: int) -> None:
    coded = EMPTY + gzip.compress(DATA[:60_000]) + b"\0" * 3 + gzip.compress(DATA[60_000:]) + b"\0" * 2000
    assert await plain(coded, size) == DATA


@pytest.mark.parametrize("size", [100, 1000, 1 << 20])
async def test_members_that_grow_a_thousandfold_come_whole_and_a_mib_at_a_time(size: int) -> None:
    """What follows a member is not lost where its last bytes did not fit into the batch before."""
    member = gzip.compress(bytes((3 << 20) + 5), 9)
    batches = [batch async for batch in decoded("gzip", "k.tar", pieces_of(member * 4, size))]
    sizes = [sum(map(len, batch)) for batch in batches]
    assert sum(sizes) == 4 * ((3 << 20) + 5)
    assert max(sizes) <= PIECE


async def test_small_members_come_out_together() -> None:
    coded = b"".join(gzip.compress(bytes([value % 256])) for value in range(20_000))
    batches = [batch async for batch in decoded("gzip", "k.tar", pieces_of(coded, PIECE))]
    assert sum(len(piece) for batch in batches for piece in batch) == 20_000
    assert len(batches) <= 20_000 // (STEPS // 2) + 2


@pytest.mark.parametrize("size", [1, 12, 100_000])
async def test_how_the_bytes_come_does_not_decide_whether_a_name_means_the_coded_file(size: int) -> None:
    stored = gzip.compress(DATA)
    assert await plain(stored, size, "k.gz") == stored
    assert await plain(gzip.compress(stored), size, "k.gz") == stored
