"""Transfers from a web server that cuts, lies about ranges, changes its objects or bears few connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachedaemon.conformance import opened
from cachedaemon.errors import Cut
from cachedaemon.fetch import Stops, tries
from cachedaemon.origins import Origin, body
from tests.fakes.origin import Object, busy
from tests.fakes.origin import Origin as Server
from tests.unit.landing_kit import Ground, K, small
from tests.unit.store_kit import opened as stored

__all__ = ["small"]

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def soon(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes slowly is seen soon."""
    monkeypatch.setattr(body, "LONGEST_BATCH", 0.02)


NARROW, WIDE = 200_000, 512 * K
SLOW = 1.5e6
"""Bytes per second of a connection, for which a large object is worth several."""


async def fetched(origin: Origin, ground: Ground, shard: Object) -> None:
    """Bring the object as the cache does; AssertionError when what came is not the version that is there now."""
    async for attempt in tries(ground.flight, ground.retries, ground.metrics, stops=Stops()):
        async with attempt, origin.open("k") as stream:
            assert stream is not None
            await ground.land(stream, shard.whole())
    assert ground.idle()


def spans(shard: Object) -> list[tuple[int, int]]:
    """The parts that were asked for, in the order of their place: first byte and end."""
    asked = (said.removeprefix("bytes=").split("-") for said in shard.seen_ranges if said is not None)
    return sorted((int(first), int(last) + 1) for first, last in asked)


@pytest.mark.parametrize("cut", [0, 1, 65_536, NARROW // 2, NARROW - 1])
async def test_a_cut_costs_a_request_for_the_rest(folder: Path, cut: int) -> None:
    """C-01: resumed, with `If-Range`."""
    with Server() as server:
        shard = server.put("k", NARROW, cut=[cut])
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            await fetched(origin, Ground(store), shard)
        ((first, stop),) = spans(shard)
        assert first <= cut
        assert stop == NARROW
        assert shard.gets == 2
        assert shard.requests[1].headers["if-range"] == shard.tag


@pytest.mark.parametrize("ending", ["reset", "drop", "half-close"])
async def test_what_comes_after_the_last_byte_changes_nothing(folder: Path, ending: str) -> None:
    """C-01, C-02: one GET, and no empty range."""
    with Server() as server:
        shard = server.put("k", NARROW, ending=ending)
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            await fetched(origin, Ground(store, retries=0), shard)
        assert shard.gets == 1


@pytest.mark.parametrize(
    "how", [{"etag": None}, {"etag": 'W/"1"'}, {"framing": "chunked"}, {"extra": {"Accept-Ranges": "none"}}]
)
async def test_without_a_strong_validator_or_a_length_nothing_is_resumed(folder: Path, how: dict[str, object]) -> None:
    with Server() as server:
        shard = server.put("k", NARROW, cut=[NARROW // 2], **how)
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            await fetched(origin, Ground(store), shard)
        assert shard.seen_ranges == [None, None]


async def test_a_server_that_always_cuts_early_is_given_up(folder: Path) -> None:
    """C-01: the error names got and expected."""
    with Server() as server:
        shard = server.put("k", NARROW, cut_always=100)
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            with pytest.raises(Cut, match=f"s/k: got [0-9]+ of {NARROW} bytes"):
                await fetched(origin, Ground(store), shard)
        assert shard.gets == 4


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("ranges", ["lie", "shift", "bare", "no"])
async def test_a_wrong_answer_to_a_range_is_never_spliced_in(folder: Path, ranges: str) -> None:
    """C-03: not when a cut is resumed, nor by several streams."""
    with Server(connection_bps=SLOW) as server:
        for size, cut in ((NARROW, NARROW // 2), (WIDE, None), (WIDE, WIDE - K)):
            shard = server.put("k", size, ranges=ranges, cut=[cut])
            async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
                await fetched(origin, Ground(store, retries=1), shard)
            if spans(shard)[0][
                0
            ]:  # on a busy machine all that came may be lost with the connection: then it is no part
                assert shard.seen_ranges.count(None) == 1 + bool(cut)
                assert shard.gets == 2 + bool(cut)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["one stream", "several"])
async def test_an_object_that_is_replaced_meanwhile_comes_wholly_anew(folder: Path, size: int) -> None:
    """C-02, C-04: with other bytes of the same size, or smaller than what had come; once."""
    with Server(connection_bps=SLOW) as server:
        for smaller in (size, size // 4):
            shard = server.put("k", size, cut=[size // 2])
            shard.change = size // 2 - 1, lambda one, after=smaller: one.replace(seed=2, size=after)  # type: ignore[misc]
            async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
                ground = Ground(store, retries=2)
                async for attempt in tries(ground.flight, 2, ground.metrics, stops=Stops()):
                    async with attempt, origin.open("k") as stream:
                        assert stream is not None
                        await ground.land(stream, shard.whole() if shard.version else b"")
            assert shard.seen_ranges.count(None) == 2


async def test_a_large_object_comes_by_several_connections_and_no_byte_is_left_out(folder: Path) -> None:
    with Server(connection_bps=SLOW) as server:
        shard = server.put("k", WIDE)
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            await fetched(origin, Ground(store), shard)
        assert 2 <= shard.peak <= 4 + 1, "the server hears a moment later that a connection was given up"
        asked = spans(shard)
        reached = asked[0][0]
        for start, stop in asked:
            assert start <= reached, "nothing is left out"
            reached = max(reached, stop)
        assert reached == WIDE
        assert shard.sent < 1.5 * WIDE, "the first connection is given up where the first part begins"


async def test_a_server_that_bears_one_connection_gives_all_by_it(folder: Path) -> None:
    """Nothing is lost by having asked: further connections are refused, and that is no failure."""
    with Server(connection_bps=SLOW) as server:
        shard = server.put("k", WIDE)
        shard.auth = lambda _: busy() if shard.open else None
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            ground = Ground(store, retries=0)
            await fetched(origin, ground, shard)
        assert ground.turns.allowance("s").now < 4


async def test_every_connection_may_be_cut_anywhere(folder: Path) -> None:
    with Server(connection_bps=SLOW) as server:
        for seed in range(3):
            cuts = [(seed * 7919 + number * 104_729) % WIDE for number in range(12)]
            shard = server.put("k", WIDE, seed=seed, cut=cuts)
            async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
                await fetched(origin, Ground(store, retries=20), shard)
            assert shard.seen_ranges.count(None) == 1


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["one stream", "several"])
async def test_a_farm_whose_servers_disagree_on_the_tag_gives_the_object_whole(folder: Path, size: int) -> None:
    """Each answer seems to be of another version, and has no date by which it could be seen to be the same."""
    with Server(connection_bps=SLOW) as server:
        shard = server.put("k", size, cut=[size - K], modified=None)
        shard.on_get = lambda one, _: setattr(one, "etag", f'"{one.gets}"')
        async with stored(folder / "cache") as (store, _), opened(server.url) as origin:
            await fetched(origin, Ground(store, retries=1), shard)
        assert [said is None for said in shard.seen_ranges] == [True, False, True]
