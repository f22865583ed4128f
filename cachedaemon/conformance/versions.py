"""Versions of an object: what is still the same is not opened, and every part is of the version that was opened."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from cachedaemon.conformance.place import Place, needs
from cachedaemon.conformance.reading import bytes_of, opened, read, read_all, read_part, stream_of
from cachedaemon.errors import Changed, Cut, Missing, NoParts
from cachedaemon.model import Validators
from cachedaemon.origins import Origin, Stream
from cachedaemon.origins.base import PIECE

SIZE = 3 * PIECE + 4321
SPANS = [(0, 1), (0, SIZE), (SIZE - 1, SIZE), (1, 2), (65_535, 65_537), (PIECE - 1, PIECE + 1), (PIECE, 3 * PIECE)]


async def validators(origin: Origin, key: str) -> Validators:
    """Of the version that is there now."""
    async with stream_of(origin, key) as stream:
        return stream.validators


async def take(stream: Stream, got: bytearray) -> None:
    """Add to `got` what comes, as far as it comes."""
    async for pieces in stream.pieces():
        got += b"".join(pieces)


class Versions:
    """`open` with a version that is known."""

    async def test_what_is_unchanged_is_not_opened(self, place: Place) -> None:
        """And any difference is another version: a newer one, the old bytes put back, nothing known at all."""
        needs(place, "versions")
        async with opened(place.url, place.settings) as origin:
            place.put("k.bin", bytes_of("k", SIZE, 1))
            first = await validators(origin, "k.bin")
            async with origin.open("k.bin", first) as stream:
                assert stream is None
            place.put("k.bin", bytes_of("k", SIZE, 2))
            async with origin.open("k.bin", first) as stream:
                assert stream is not None
                second = stream.validators
                assert second != first
                assert await read_all(stream) == bytes_of("k", SIZE, 2)
            place.put("k.bin", bytes_of("k", SIZE, 1))
            for known in (second, Validators()):
                async with origin.open("k.bin", known) as stream:
                    assert stream is not None

    async def test_without_validators_nothing_is_taken_for_unchanged(self, place: Place) -> None:
        if "versions" not in place.lacks:
            return
        place.put("k.bin", b"data")
        async with opened(place.url, place.settings) as origin:
            assert await validators(origin, "k.bin") == Validators()
            async with origin.open("k.bin", Validators()) as stream:
                assert stream is not None

    async def test_what_has_gone_is_missing_whatever_is_known(self, place: Place) -> None:
        place.put("k.bin", b"data")
        async with opened(place.url, place.settings) as origin:
            known = await validators(origin, "k.bin")
            with pytest.raises(Missing):
                async with origin.open("none.bin", known):
                    pass


class Parts:
    """`part`, where a stream has them; without, it says so and refuses."""

    async def test_any_part_is_that_slice(self, place: Place) -> None:
        data, chance = bytes_of("k", SIZE), random.Random(5)  # noqa: S311 - picks slices
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin, stream_of(origin, "k.bin") as stream:
            if "parts" in place.lacks:
                assert not stream.has_parts
                with pytest.raises(NoParts):
                    await read_part(stream, 0, 1)
                return
            assert stream.has_parts
            assert stream.size == SIZE
            spans = [sorted(chance.sample(range(SIZE), 2)) for _ in range(10)]
            for start, stop in (*SPANS, *spans):
                assert await read_part(stream, start, stop) == data[start:stop]

    async def test_parts_come_at_once_and_beside_the_whole(self, place: Place) -> None:
        needs(place, "parts")
        data, step = bytes_of("k", SIZE), 400_000
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin, stream_of(origin, "k.bin") as stream:
            parts = [read_part(stream, at, min(at + step, SIZE)) for at in range(0, SIZE, step)]
            whole, *got = await asyncio.gather(read_all(stream), *parts)
        assert b"".join(got) == data == whole

    @pytest.mark.parametrize("offset", [0, 1, PIECE + 1, SIZE - 1])
    async def test_a_cut_body_is_resumed(self, place: Place, offset: int) -> None:
        """From the byte reached; where the cut is itself a change of the object, it is another version."""
        needs(place, "parts")
        needs(place, "cut")
        data, got = bytes_of("k", SIZE), bytearray()
        place.put("k.bin", data)
        async with opened(place.url, place.settings) as origin:
            then = place.cut("k.bin", offset)
            async with stream_of(origin, "k.bin") as stream:
                then()
                with pytest.raises((Cut, Changed)):
                    await take(stream, got)
                with suppress(Changed):
                    assert bytes(got) + await read_part(stream, len(got), SIZE) == data

    async def test_a_part_of_a_changed_object_is_refused(self, place: Place) -> None:
        """C-04: of another version with as many bytes; never half and half."""
        needs(place, "parts")
        needs(place, "change")
        place.put("k.bin", bytes_of("k", SIZE, 1))
        async with opened(place.url, place.settings) as origin, stream_of(origin, "k.bin") as stream:
            assert await read_part(stream, 5, 10) == bytes_of("k", SIZE, 1)[5:10]
            place.put("k.bin", bytes_of("k", SIZE, 2))
            with pytest.raises(Changed):
                await read_part(stream, 5, 10)

    async def test_a_change_within_a_part_never_mixes(self, place: Place) -> None:
        needs(place, "parts")
        needs(place, "change")
        old = bytes_of("k", SIZE, 1)
        place.put("k.bin", old)
        async with opened(place.url, place.settings) as origin, stream_of(origin, "k.bin") as stream:
            then = place.change("k.bin", bytes_of("k", SIZE, 2))
            with suppress(Changed):
                assert await read_part(stream, 7, SIZE, then) == old[7:]
            assert await read(origin, "k.bin") == bytes_of("k", SIZE, 2)
