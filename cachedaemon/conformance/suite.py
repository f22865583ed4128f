"""What every origin does, whatever it is: bytes as they are, failures told apart, no version mixed with another."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import pytest

from cachedaemon.conformance.leaving import Leaving
from cachedaemon.conformance.place import STALL, Place, needs
from cachedaemon.conformance.reading import NAME, bytes_of, opened, read, stream_of
from cachedaemon.conformance.versions import Parts, Versions
from cachedaemon.errors import BadRequest, Changed, Cut, Missing, OriginRefused, OriginUnavailable
from cachedaemon.model import BLOCK
from cachedaemon.origins.base import PIECE

SIZE = 3 * PIECE + 4321
SIZES = [[0, 1], [SIZE], *([full - 1, full, full + 1] for full in (BLOCK, 1 << 16, PIECE, 8 * PIECE))]
"""Nothing, and sizes at which something is just full, or just not."""
HUGE = 48 * PIECE
MEMORY = 24 * PIECE
"""Bytes by which a transfer may make this process grow, whatever the object's size."""
ODD = [
    "a b.bin", "ünï/côdé-日本.tar", "100%.bin", "%41.bin", "a?b=c&d.bin", "a#b.bin", "a+b;c,d.bin", "it's \"q\".bin",
    "-rf", ".hidden", "a\\b", "tab\there", "new\nline", "deep/er/than/that.zip", "~user", "[x]{y}|z^", "x" * 255,
]  # fmt: skip
"""Keys that somebody has met."""


def names(cause: BaseException, key: str) -> None:
    """A message says which shard of which source, and nothing that could be secret."""
    assert f"{NAME}/{key}" in str(cause)
    assert "://" not in str(cause)


class Transfers:
    """Bytes come as they are."""

    @pytest.mark.parametrize("sizes", SIZES)
    async def test_every_byte_comes_once(self, place: Place, sizes: list[int]) -> None:
        """C-37: none, one, and just as many as fill a block somewhere, one less and one more."""
        for size in sizes:
            place.put(f"{size}.bin", bytes_of("k", size))
        async with opened(place.url, place.settings) as origin:
            for size in sizes:
                assert await read(origin, f"{size}.bin") == bytes_of("k", size)

    async def test_a_huge_object_never_lies_in_memory(self, place: Place) -> None:
        """Pieces of about a MiB, and no reading ahead of a reader who takes their time."""
        place.put("k.bin", bytes_of("k", HUGE))
        async with opened(place.url, place.settings) as origin, stream_of(origin, "k.bin") as stream:
            before, got = _memory_from_now_on(), 0
            async for pieces in stream.pieces():
                await asyncio.sleep(0 if got else 0.3)
                size = sum(len(piece) for piece in pieces)
                assert size < 4 * PIECE
                got += size
        assert got == HUGE
        assert _most_memory() - before < MEMORY

    async def test_odd_keys_go_out_as_they_are(self, place: Place) -> None:
        possible = [key for key in ODD if key not in place.impossible]
        for key in possible:
            place.put(key, bytes_of(key, 100))
        async with opened(place.url, place.settings) as origin:
            for key in possible:
                assert await read(origin, key) == bytes_of(key, 100), key

    @pytest.mark.parametrize("key", ["..", "../x", "a/../b", "./a", "a/.", "nul\0byte"])
    async def test_a_key_never_climbs_out(self, place: Place, key: str) -> None:
        """It is refused before anything is asked of the origin."""
        async with opened(place.url, place.settings) as origin:
            with pytest.raises(BadRequest, match=re.escape(f"the key {key!r}")):
                origin.check_key(key)

    async def test_slow_and_steady_succeeds(self, place: Place) -> None:
        """C-13: only a lack of progress counts, however long the whole takes."""
        needs(place, "slowness")
        data = bytes_of("k", PIECE)
        place.put("k.bin", data)
        place.trickle("k.bin")
        async with opened(place.url, place.settings) as origin:
            began = asyncio.get_running_loop().time()
            assert await read(origin, "k.bin") == data
            assert asyncio.get_running_loop().time() - began > STALL

    async def test_transfers_of_one_object_do_not_disturb_each_other(self, place: Place) -> None:
        data = bytes_of("k", SIZE)
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin:
            assert await asyncio.gather(*(read(origin, "k.bin") for _ in range(4))) == [data] * 4

    async def test_listing_names_every_key_or_says_that_it_cannot(self, place: Place) -> None:
        async with opened(place.url, place.settings) as origin:
            if "listing" in place.lacks:
                with pytest.raises(BadRequest, match="cannot list"):
                    await origin.keys()
                return
            before = await origin.keys()
            put = ["b/two.bin", "a.bin", "b/one.bin", "a b+c%.bin"]
            for key in put:
                place.put(key, b"x")
            assert await origin.keys() == sorted({*before, *put})


def _memory_from_now_on() -> int:
    """Bytes that this process has in memory; its peak counts anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _most_memory()


def _most_memory() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


class Failures:
    """Failures are told apart, none is remembered, and all name the shard."""

    async def test_missing(self, place: Place) -> None:
        async with opened(place.url, place.settings) as origin:
            with pytest.raises(Missing) as error:
                await read(origin, "none.bin")
            names(error.value, "none.bin")
            place.put("none.bin", b"here now")
            assert await read(origin, "none.bin") == b"here now", "no failure is remembered"

    async def test_refused(self, place: Place) -> None:
        needs(place, "refusal")
        place.refuse("no.bin")
        async with opened(place.url, place.settings) as origin:
            with pytest.raises(OriginRefused) as error:
                await read(origin, "no.bin")
            names(error.value, "no.bin")

    async def test_an_outage_is_unavailable_and_never_missing(self, place: Place) -> None:
        needs(place, "outage")
        place.put("k.bin", b"data")
        async with opened(place.url, place.settings) as origin:
            place.down()
            for key in ("k.bin", "none.bin"):
                with pytest.raises(OriginUnavailable) as error:
                    await read(origin, key)
                names(error.value, key)
            place.up()
            assert await read(origin, "k.bin") == b"data", "it recovers by itself"

    async def test_silence_is_unavailable_after_the_stall_limit(self, place: Place) -> None:
        needs(place, "silence")
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
    async def test_a_cut_body_is_never_whole(self, place: Place, offset: int) -> None:
        """C-01: at every offset; the next try, by which it is whole again, gets it all."""
        needs(place, "cut")
        data = bytes_of("k", SIZE)
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin:
            then = place.cut("k.bin", offset)
            with pytest.raises((Cut, Changed)) as error:
                await read(origin, "k.bin", then)
            names(error.value, "k.bin")
            place.put("k.bin", data)
            assert await read(origin, "k.bin") == data

    async def test_a_change_in_mid_transfer_never_mixes(self, place: Place) -> None:
        """Wholly the old version, wholly the new one, or `Changed`."""
        needs(place, "change")
        old, new = bytes_of("k", SIZE, 1), bytes_of("k", SIZE, 2)
        place.put("k.bin", old)
        async with opened(place.url, place.settings) as origin:
            then = place.change("k.bin", new)
            with suppress(Changed):
                assert await read(origin, "k.bin", then) in (old, new)
            assert await read(origin, "k.bin") == new


class OriginSuite(Transfers, Failures, Versions, Parts, Leaving):
    """All of it. A test class derived from this one has a fixture `place` that gives a `Place`, new for each test."""

    pytestmark = pytest.mark.asyncio
