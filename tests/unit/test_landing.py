"""How bytes come to staging: resumed, in parts by several streams, in any odd order; from an origin that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachedaemon.digests import KINDS
from cachedaemon.entries import Flight
from cachedaemon.errors import Changed, Corrupt, Cut, NoParts, NoSpace, OriginRefused, OriginUnavailable, Overloaded
from cachedaemon.model import Digest, Ref
from cachedaemon.store import Staged
from cachedaemon.store.disk import DIGEST
from cachedaemon.turns import Turn
from tests.fakes import content
from tests.unit.landing_kit import PIECE, Ground, K, Scripted, small, until
from tests.unit.store_kit import Disk, faulty, opened

__all__ = ["faulty", "small"]

pytestmark = pytest.mark.usefixtures("small")


# --- one stream


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [0, 1, PIECE - 1, PIECE, PIECE + 1, 100_000, 199_998, 199_999])
async def test_what_was_cut_goes_on_at_the_byte_reached(folder: Path, cut: int) -> None:
    """C-01, C-02: at every offset, with one request for just what is missing."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000, cuts=[cut]), Ground(store)
        await ground.land(stream)
        assert stream.asked == [(cut, 200_000)]


@pytest.mark.asyncio
async def test_a_reset_after_the_last_byte_cuts_off_nothing(folder: Path) -> None:
    """C-02: no empty range is asked for."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000), Ground(store, retries=0)
        stream.end = Cut("s/k: reset")
        await ground.land(stream)
        assert stream.asked == []


@pytest.mark.asyncio
async def test_an_object_that_changed_under_its_last_byte_is_not_taken(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000), Ground(store)
        stream.end = Changed("s/k changed while it was read")
        with pytest.raises(Changed):
            await ground.land(stream)


@pytest.mark.asyncio
async def test_an_origin_that_always_cuts_is_given_up_with_what_was_got(folder: Path) -> None:
    """C-01: bounded, and the error names got and expected."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000, cuts=[70_000] * 9), Ground(store, retries=3)
        with pytest.raises(Cut, match="got 70000 of 200000 bytes, and then: got 70000 of 200000 bytes: the connection"):
            await ground.land(stream)
        assert stream.asked == [(70_000, 200_000)] * 3
        assert ground.flight.failed == 3, "the flight has had all its failures"
        assert ground.idle()


@pytest.mark.asyncio
async def test_progress_starts_the_count_of_failures_again(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        ends = range(40_000, 400_000, 40_000)
        stream, ground = Scripted(400_000, cuts=ends), Ground(store, retries=1, most=1)
        await ground.land(stream)
        assert stream.asked == [(end, 400_000) for end in ends]
        less = Scripted(200_000, cuts=range(10_000, 200_000, 10_000))
        with pytest.raises(Cut, match="got 20000 of 200000"):
            await Ground(store, retries=1).land(less)


@pytest.mark.asyncio
async def test_without_retries_a_cut_is_told_at_once(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream = Scripted(200_000, cuts=[1])
        with pytest.raises(Cut, match="got 1 of 200000 bytes: the connection ended"):
            await Ground(store, retries=0).land(stream)
        assert stream.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [Changed("s/k is another"), NoParts("s/k: 200")], ids=["changed", "no parts"])
async def test_what_cannot_be_resumed_starts_clean_and_counts_once(folder: Path, refusal: OriginUnavailable) -> None:
    """C-03, C-04: nothing of two versions is mixed, and the cut and the refusal are one failure."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000, cuts=[100_000], refusals=[refusal]), Ground(store, retries=1)
        with pytest.raises(type(refusal)):
            await ground.land(stream)
        assert ground.flight.failed == 0
        await ground.land(stream)
        assert stream.asked == [(100_000, 200_000)]


@pytest.mark.asyncio
async def test_an_origin_whose_parts_were_none_is_not_asked_for_them_again(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(200_000, cuts=[100_000]), Ground(store)
        ground.flight.in_parts = False
        with pytest.raises(Cut):
            await ground.land(stream)
        assert stream.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 1, PIECE, 64 * K, 256 * K])
@pytest.mark.parametrize("said", [True, False], ids=["size known", "size unknown"])
async def test_any_size_lands(folder: Path, size: int, *, said: bool) -> None:
    """C-37."""
    async with opened(folder / "cache") as (store, _):
        stream = Scripted(size, announced=size if said else None, has_parts=said)
        await Ground(store).land(stream)
        assert stream.open == 0


@pytest.mark.asyncio
async def test_more_than_was_announced_is_not_the_object(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream = Scripted(200_000)
        stream.more = b"x"
        with pytest.raises(Changed, match="got over 200000 bytes"):
            await Ground(store).land(stream)


@pytest.mark.asyncio
async def test_less_than_was_announced_is_a_cut_whatever_the_origin_thinks(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream = Scripted(200_000, announced=200_001, has_parts=False)
        with pytest.raises(Cut, match="got 200000 of 200001 bytes"):
            await Ground(store).land(stream)


@pytest.mark.asyncio
async def test_a_long_pause_leaves_the_place_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachedaemon.turns.KEPT", 0.01)
    async with opened(folder / "cache") as (store, _):
        ground = Ground(store, total=1)
        busy = OriginUnavailable("s/k: busy", retry_after=0.2)
        stream = Scripted(200_000, cuts=[50_000], refusals=[busy])
        task = asyncio.create_task(ground.land(stream))
        await until(lambda: ground.flight.failed)
        async with asyncio.timeout(20):
            async with ground.turns.turn(Flight(Ref("t", "other"), 2, demand=True)):
                assert not task.done()
            await task
        assert ground.idle()


# --- several streams


@pytest.mark.asyncio
async def test_a_large_object_comes_in_parts_by_as_many_streams_as_have_places(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(2 << 20, gate=80 * K), Ground(store, total=9, most=4)
        task = asyncio.create_task(ground.land(stream))
        await until(lambda: stream.open == 4)
        stream.lifted.set()
        await task
        assert stream.peak == 4
        assert stream.asked[0][0] >= 8 * K
        assert sorted(stream.asked) == stream.asked[:1] + sorted(stream.asked[1:])
        assert ground.idle()


@pytest.mark.asyncio
async def test_the_first_stream_ends_where_the_first_part_begins(folder: Path) -> None:
    """It stands still in the middle; everything behind it comes by others, and no byte twice."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(1 << 20, gate=PIECE * 2), Ground(store)
        task = asyncio.create_task(ground.land(stream))
        await until(lambda: stream.asked and ground.flight.arrived >= (1 << 20) - stream.asked[0][0])
        assert not task.done()
        stream.lifted.set()
        await task
        spans = sorted(stream.asked)
        assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
        assert spans[-1][1] == 1 << 20


@pytest.mark.asyncio
async def test_a_probe_that_finds_no_parts_costs_only_their_gain(folder: Path) -> None:
    """C-03: the stream that is open goes on to its end."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(1 << 20, refusals=[NoParts("s/k: 200")], gate=128 * K), Ground(store, retries=0)
        task = asyncio.create_task(ground.land(stream))
        await until(lambda: not ground.flight.in_parts)
        stream.lifted.set()
        await task
        assert len(stream.asked) == 1
        assert ground.flight.failed == 0
        assert ground.idle()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "refusal", [OriginUnavailable("s/k: away"), Overloaded("s/k: 503"), OriginRefused("s/k: 403")], ids=lambda e: e.code
)
async def test_what_a_further_stream_cannot_have_the_first_one_brings(folder: Path, refusal: Exception) -> None:
    """A server may allow fewer connections than we have: that is no failure of the flight, even without retries."""
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(1 << 20), Ground(store, retries=0)
        first = asyncio.current_task()

        async def refuse() -> None:
            if asyncio.current_task() is not first:
                raise refusal

        stream._breathe, slow = refuse, stream._breathe  # type: ignore[method-assign]
        await ground.land(stream)
        assert await slow() is None
        assert stream.asked
        assert ground.flight.failed == 0
        assert ground.idle()


@pytest.mark.asyncio
async def test_any_failure_in_any_order_gives_the_same_bytes(folder: Path) -> None:
    """Cuts anywhere and refusals of any part: resumed, left to others, or tried anew; digests follow in order."""
    async with opened(folder / "cache") as (store, _):
        for seed in range(30):
            chance = random.Random(seed)
            size = chance.choice([256 * K, 300_001, 1 << 20, (1 << 20) + 1])
            stream = Scripted(
                size,
                chance=chance,
                cuts=[chance.choice([None, 0, 1, size - 1, size, chance.randrange(size)]) for _ in range(40)],
                refusals=[chance.choice([None] * 5 + [Overloaded("s/k: busy"), Cut("s/k: cut")]) for _ in range(30)],
            )
            stream.digests = tuple(_digest(kind, stream.data) for kind in ("md5", "crc32c", "sha256"))
            ground = Ground(store, total=chance.randrange(1, 9), most=chance.randrange(1, 9), retries=50)
            await asyncio.wait_for(ground.land(stream), 30)
            assert stream.open == 0
            assert stream.peak <= ground.turns._total
            assert ground.idle()


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [Changed("s/k is another"), NoParts("s/k: 200")], ids=["changed", "no parts"])
async def test_a_part_of_another_version_ends_the_try_whoever_asked_for_it(folder: Path, refusal: Exception) -> None:
    """C-04: never mixed; the next try does without parts."""
    async with opened(folder / "cache") as (store, _):
        for allowed in (1, 2, 5):
            stream, ground = Scripted(1 << 20, refusals=[*[None] * allowed, refusal], gate=2 * PIECE), Ground(store)
            task = asyncio.create_task(ground.land(stream))
            await until(lambda count=allowed, one=stream: len(one.asked) > count)  # type: ignore[misc]
            stream.lifted.set()
            with pytest.raises(type(refusal)):
                await task
            assert stream.open == 0
            assert ground.idle()
            before = len(stream.asked)
            await ground.land(stream)
            assert len(stream.asked) == before


@pytest.mark.asyncio
async def test_a_probe_that_is_answered_too_late_is_made_again(folder: Path) -> None:
    """The first stream has passed its part by then, and no byte is written twice."""
    async with opened(folder / "cache") as (store, _):
        stream, ground, late = Scripted(2 << 20), Ground(store, most=2), list[asyncio.Task[object]]()
        usual = stream._breathe

        async def breathe() -> None:
            task = asyncio.current_task()
            if task is not None and task.get_name().startswith("part") and len(late) < 2 and task not in late:
                late.append(task)
                start = stream.asked[-1][0]
                await until(lambda: ground.flight.arrived > start)
            await usual()

        stream._breathe = breathe  # type: ignore[method-assign]
        await ground.land(stream)
        assert len(stream.asked) > 2
        assert ground.idle()


@pytest.mark.asyncio
async def test_a_transfer_that_its_bandwidth_holds_up_takes_one_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turn, "is_paced", lambda _: True)
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(512 * K), Ground(store)
        await ground.land(stream)
        assert stream.asked == []


@pytest.mark.asyncio
async def test_further_streams_end_when_somebody_waits_for_their_place(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        stream, ground = Scripted(4 << 20, gate=2 * PIECE), Ground(store, total=4, most=4)
        task = asyncio.create_task(ground.land(stream))
        await until(lambda: stream.open == 4)
        async with asyncio.timeout(20):
            async with ground.turns.turn(Flight(Ref("s", "other"), 2, demand=True)):
                assert ground.flight.arrived < 4 << 20
            stream.lifted.set()
            await task


@pytest.mark.asyncio
async def test_a_landing_that_is_cancelled_at_any_moment_leaves_nothing(folder: Path) -> None:
    """C-76: no task, no descriptor, no file, no place."""
    chance = random.Random(7)
    async with opened(folder / "cache") as (store, _):
        await Ground(store).land(Scripted(300_000))
        tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        ended = 0
        for _ in range(80):
            stream, ground = Scripted(1 << 20, chance=chance, cuts=[chance.randrange(1 << 20)] * 3), Ground(store)
            task = asyncio.create_task(ground.land(stream))
            for _ in range(chance.randrange(200)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice([0, 0, chance.random() * 0.03]))
            task.cancel()
            await asyncio.wait([task])
            ended += task.cancelled()
            assert task.cancelled() or task.exception() is None
            assert ground.idle()
            assert stream.open == 0
            assert len(asyncio.all_tasks()) == tasks
        assert ended > 20
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert os.listdir(folder / "cache/staging") == []


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_disk_that_fails_ends_all_streams(folder: Path, faulty: Disk) -> None:
    async with opened(folder / "cache") as (store, _):
        for k in range(3, 40, 5):
            stream, ground = Scripted(1 << 20), Ground(store)
            faulty.fail(k, 28)
            with pytest.raises(NoSpace):
                await ground.land(stream)
            assert faulty.heal()
            assert stream.open == 0
            assert ground.idle()
            assert len(asyncio.all_tasks()) == 1


# --- digests


def _digest(kind: str, data: bytes) -> Digest:
    state = KINDS[kind]()
    state.update(data)
    return Digest(kind, state.digest())


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [200_000, 1 << 20], ids=["one stream", "several"])
async def test_bytes_that_do_not_come_to_what_the_origin_says_are_refused(folder: Path, size: int) -> None:
    async with opened(folder / "cache") as (store, _):
        stream = Scripted(size)
        right, wrong = _digest("sha256", stream.data), _digest("md5", b"other")
        stream.digests = (right, wrong)
        with pytest.raises(
            Corrupt, match=f"s/k: .*md5 is {_digest('md5', stream.data).value.hex()}, expected {wrong.value.hex()}"
        ):
            await Ground(store).land(stream)
        stream.digests = (right,)
        await Ground(store).land(stream)


def test_stretches_in_any_order_and_from_any_thread_are_hashed_once_and_in_order(folder: Path) -> None:
    data = content.data("k", 1_000_003)
    for seed in range(15):
        chance = random.Random(seed)
        marks = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(60))})
        spans = list(itertools.pairwise(marks))
        chance.shuffle(spans)
        with contextlib.closing(Staged(str(folder / str(seed)), seed)) as staged, ThreadPoolExecutor(8) as pool:
            staged.expect(len(data), [_digest("md5", data)])
            list(pool.map(lambda span, to=staged: to.write_at(span[0], [data[slice(*span)]]), spans))  # type: ignore[misc]
            assert (staged.size, staged.digest) == (len(data), DIGEST + content.xxh3("k", len(data)))
            assert staged.mismatch() is None
            assert not staged._ahead
            assert not staged._hashing
    assert threading.active_count() < 30
