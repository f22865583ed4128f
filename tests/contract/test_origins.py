"""What every origin does, whatever it is: bytes as they are, failures told apart, nothing kept after a cancellation."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cachedaemon.errors import (
    BadRequest,
    CacheDaemonError,
    Changed,
    Cut,
    Missing,
    OriginRefused,
    OriginUnavailable,
)
from cachedaemon.model import BLOCK
from cachedaemon.origins.base import PIECE
from tests.contract.origins.places import PLACES, STALL, Place
from tests.contract.origins.reading import opened, read
from tests.fakes import content
from tests.fakes.fusefs import FuseFs, fuse_fs

pytestmark = pytest.mark.asyncio

SIZE = 3 * PIECE + 4321
ODD = [
    "a b.bin", "ünï/côdé-日本.tar", "100%.bin", "%41.bin", "a?b=c&d.bin", "a#b.bin", "a+b;c,d.bin", "it's \"q\".bin",
    "-rf", ".hidden", "a\\b", "tab\there", "new\nline", "deep/er/than/that.zip", "~user", "[x]{y}|z^", "x" * 255,
]  # fmt: skip


@pytest.fixture(scope="module")
def fuse() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, fuse_fs(Path(folder)) as mount:
        yield mount


@pytest.fixture(params=list(PLACES))
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    with PLACES[request.param](folder, lambda: request.getfixturevalue("fuse")) as made:
        yield made
        made.up()


def names(cause: BaseException, key: str) -> None:
    """A message says which shard of which source, and nothing that could be secret."""
    assert f"s/{key}" in str(cause)
    assert "://" not in str(cause)


async def test_every_byte_comes_once(place: Place) -> None:
    """Empty, around a block and around a piece."""
    sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, PIECE - 1, PIECE, PIECE + 1, SIZE]
    for size in sizes:
        place.put(f"{size}.bin", content.data("k", size))
    async with opened(place.url, place.settings) as origin:
        for size in sizes:
            assert await read(origin, f"{size}.bin") == content.data("k", size)


async def test_pieces_are_about_a_mib(place: Place) -> None:
    """Never a whole shard in memory."""
    place.put("k.bin", content.data("k", 8 * PIECE))
    async with opened(place.url, place.settings) as origin, origin.open("k.bin") as stream:
        sizes = [sum(len(piece) for piece in pieces) async for pieces in stream.pieces()]
    assert sum(sizes) == 8 * PIECE
    assert max(sizes) < 4 * PIECE


async def test_odd_keys_go_out_as_they_are(place: Place) -> None:
    for key in ODD:
        place.put(key, content.data(key, 100))
    async with opened(place.url, place.settings) as origin:
        for key in ODD:
            assert await read(origin, key) == content.data(key, 100), key


@pytest.mark.parametrize("key", ["..", "../x", "a/../b", "./a", "a/.", "nul\0byte"])
async def test_a_key_never_climbs_out(place: Place, key: str) -> None:
    """It is refused before anything is asked of the origin."""
    async with opened(place.url, place.settings) as origin:
        with pytest.raises(BadRequest, match=re.escape(f"the key {key!r}")):
            origin.check_key(key)


async def test_missing(place: Place) -> None:
    async with opened(place.url, place.settings) as origin:
        with pytest.raises(Missing) as error:
            await read(origin, "none.bin")
        names(error.value, "none.bin")
        place.put("none.bin", b"here now")
        assert await read(origin, "none.bin") == b"here now", "no failure is remembered"


async def test_refused(place: Place) -> None:
    place.refuse("no.bin")
    async with opened(place.url, place.settings) as origin:
        with pytest.raises(OriginRefused) as error:
            await read(origin, "no.bin")
        names(error.value, "no.bin")


async def test_an_outage_is_unavailable_and_never_missing(place: Place) -> None:
    place.put("k.bin", b"data")
    async with opened(place.url, place.settings) as origin:
        place.down()
        for key in ("k.bin", "none.bin"):
            with pytest.raises(OriginUnavailable) as error:
                await read(origin, key)
            names(error.value, key)
        place.up()
        assert await read(origin, "k.bin") == b"data", "it recovers by itself"


async def test_slow_and_steady_succeeds(place: Place) -> None:
    """C-13: only a lack of progress counts, however long the whole takes."""
    data = content.data("k", PIECE)
    place.put("k.bin", data)
    place.trickle("k.bin")
    async with opened(place.url, place.settings) as origin:
        began = asyncio.get_running_loop().time()
        assert await read(origin, "k.bin") == data
        assert asyncio.get_running_loop().time() - began > STALL


async def test_silence_is_unavailable_after_the_stall_limit(place: Place) -> None:
    place.put("k.bin", b"data")
    async with opened(place.url, place.settings) as origin:
        place.hang("k.bin")
        with pytest.raises(OriginUnavailable) as error:
            async with asyncio.timeout(30):
                await read(origin, "k.bin")
        names(error.value, "k.bin")
        place.up()
        async with asyncio.timeout(30):
            assert await read(origin, "k.bin") == b"data"


@pytest.mark.parametrize("offset", [0, 1, 1 << 16, PIECE, SIZE - 1])
async def test_a_cut_body_is_never_whole(place: Place, offset: int) -> None:
    """C-01: at every offset; the next try, by which it is whole again, gets it all."""
    data = content.data("k", SIZE)
    place.put("k.bin", data)
    async with opened(place.url, place.settings) as origin:
        then = place.cut("k.bin", offset)
        with pytest.raises((Cut, Changed)) as error:
            await read(origin, "k.bin", then)
        names(error.value, "k.bin")
        place.put("k.bin", data)
        assert await read(origin, "k.bin") == data


async def test_a_change_in_mid_transfer_never_mixes(place: Place) -> None:
    """Wholly the old version, wholly the new one, or `Changed`."""
    old, new = content.data("k", SIZE, 1), content.data("k", SIZE, 2)
    place.put("k.bin", old)
    async with opened(place.url, place.settings) as origin:
        then = place.change("k.bin", new)
        with suppress(Changed):
            assert await read(origin, "k.bin", then) in (old, new)
        assert await read(origin, "k.bin") == new


async def test_two_transfers_of_one_object_do_not_disturb_each_other(place: Place) -> None:
    data = content.data("k", SIZE)
    place.put("k.bin", data)
    async with opened(place.url, place.settings) as origin:
        assert await asyncio.gather(*(read(origin, "k.bin") for _ in range(4))) == [data] * 4


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until_at_most(base: int) -> None:
    """Descriptors are closed in threads and by the loop's next turns: wait for it."""
    async with asyncio.timeout(20):
        while descriptors() > base:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)


async def test_a_cancellation_at_any_moment_leaves_no_descriptor(place: Place) -> None:
    """C-76: 60 transfers, each cancelled a few turns of the loop later than the one before."""
    place.put("k.bin", content.data("k", SIZE))
    async with opened(place.url, place.settings) as origin:
        await read(origin, "k.bin")
        base = descriptors()
        for turns in range(60):
            task = asyncio.create_task(read(origin, "k.bin"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError, CacheDaemonError):
                await task
        await until_at_most(base + 1)
        assert await read(origin, "k.bin") == content.data("k", SIZE)


async def test_a_cancelled_wait_for_a_silent_origin_ends_at_once(place: Place) -> None:
    place.put("k.bin", b"data")
    async with opened(place.url, place.settings, stall_timeout="60s") as origin:
        assert await read(origin, "k.bin") == b"data"
        base = descriptors()
        place.hang("k.bin")
        tasks = [asyncio.create_task(read(origin, "k.bin")) for _ in range(40)]
        done, _ = await asyncio.wait(tasks, timeout=0.2)
        assert not done
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait(tasks)
        place.up()
        async with asyncio.timeout(20):
            assert await read(origin, "k.bin") == b"data"
        await until_at_most(base + 1)


async def test_listing_names_every_key_or_says_that_it_cannot(place: Place) -> None:
    for key in ("b/two.bin", "a.bin", "b/one.bin"):
        place.put(key, b"x")
    async with opened(place.url, place.settings) as origin:
        if place.url.startswith("http"):
            with pytest.raises(BadRequest, match="cannot list"):
                await origin.keys()
        else:
            assert await origin.keys() == ["a.bin", "another", "b/one.bin", "b/two.bin"]
