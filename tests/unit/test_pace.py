"""Bandwidth: the pure bucket on a clock of the test's own, and what waits before it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.pace import BURST, Bucket, Paces

MB = 10**6


class Line:
    """Transfers that always have a next batch; the clock goes on by what the bucket says."""

    def __init__(self, rate: int, batches: dict[str, int], now: float = 0.0) -> None:
        self.bucket = Bucket(rate, now)
        self.now = now
        self.batches = batches
        self.had = dict.fromkeys(batches, 0.0)
        self.passed: Counter[str] = Counter()
        for name in batches:
            self.ask(name)

    def ask(self, name: str) -> None:
        self.had[name] = self.bucket.ask(self.had[name], self.batches[name], self._go(name))

    def _go(self, name: str) -> Callable[[], bool]:
        def go() -> bool:
            self.passed[name] += self.batches[name]
            self.ask(name)
            return True

        return go

    def until(self, end: float) -> None:
        while (wait := self.bucket.let(self.now)) is not None and self.now + wait <= end:
            self.now += wait + 1e-9
        self.now = end


@given(
    rate=st.integers(1000, 10**9),
    batches=st.lists(st.integers(1000, 3 << 20), min_size=1, max_size=6),
    seconds=st.floats(1, 20),
)
def test_no_more_than_the_rate_and_one_batch_ever_passes(rate: int, batches: list[int], seconds: float) -> None:
    line = Line(rate, {str(number): size for number, size in enumerate(batches)})
    seconds = min(seconds, 200 * min(batches) / rate)
    line.until(seconds)
    passed = sum(line.passed.values())
    assert rate * seconds * 0.999 - 1 <= passed <= rate * (seconds * 1.001 + BURST) + max(batches)


def test_transfers_get_alike_whatever_the_size_of_their_batches() -> None:
    line = Line(10 * MB, {"small": 64_000, "middle": MB, "large": 3 * MB})
    line.until(60)
    for passed in line.passed.values():
        assert abs(passed - 200 * MB) <= 3 * MB


def test_who_comes_later_shares_from_then_on_and_does_not_catch_up() -> None:
    line = Line(10 * MB, {"first": MB})
    line.until(30)
    line.had["second"], line.batches["second"] = 0.0, MB
    line.ask("second")
    before = line.passed["first"]
    line.until(50)
    assert abs(line.passed["first"] - before - 100 * MB) <= 2 * MB
    assert abs(line.passed["second"] - 100 * MB) <= 2 * MB


def test_what_was_not_used_is_kept_for_a_moment_only() -> None:
    bucket, went = Bucket(MB, 0.0), []
    bucket.let(1000.0)
    for _ in range(100):
        bucket.ask(0.0, 10_000, lambda: went.append(1) is None)
    bucket.let(1000.0)
    assert len(went) == BURST * 100 + 1


def test_a_new_rate_counts_from_now_for_who_waits_already() -> None:
    """What is owed is paid at the better of both rates: neither is a slow rate lasting, nor a slower one backdated."""
    line = Line(1000, {"a": MB})
    line.until(1)
    assert line.bucket.let(1.0) == pytest.approx(999)
    line.bucket.limit(MB, 1.0)
    assert line.bucket.let(1.0) == pytest.approx(0.999)
    line.bucket.limit(1000, 1.0)
    assert line.bucket.let(1.0) == pytest.approx(0.999)


def test_without_a_rate_nothing_waits_and_nothing_is_owed_later() -> None:
    bucket, went = Bucket(1000, 0.0), []
    for _ in range(3):
        bucket.ask(0.0, 100 * MB, lambda: went.append(1) is None)
    assert bucket.let(0.0) == pytest.approx(100_000)
    bucket.limit(0, 0.0)
    assert bucket.let(0.0) is None
    assert len(went) == 3
    bucket.limit(MB, 5.0)
    bucket.ask(0.0, MB, lambda: went.append(1) is None)
    assert bucket.let(5.0) is None


def test_who_has_left_costs_nothing() -> None:
    bucket, went = Bucket(MB, 0.0), []
    bucket.ask(0.0, 100 * MB, lambda: False)
    bucket.ask(0.0, 1, lambda: went.append(1) is None)
    assert bucket.let(0.0) is None
    assert went


@pytest.mark.asyncio
async def test_waiting_is_ended_by_time_by_a_new_rate_and_by_cancelling() -> None:
    paces = Paces({"s": 10 * MB, "t": 1000, "u": 0})
    loop = asyncio.get_running_loop()
    began = loop.time()
    part = paces.part("s")
    for _ in range(6):
        await part.take(MB)
    assert loop.time() - began > 0.5 - BURST - 0.01, "five of six batches are paid for, but for what was kept"
    await paces.part("t").take(MB)
    waiting = [asyncio.create_task(paces.part("t").take(MB)) for _ in range(3)]
    async with asyncio.timeout(20):
        for _ in range(50):
            await paces.part("u").take(100 * MB)
            await paces.part("gone").take(100 * MB)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert not waiting[1].done()
        paces.limit({"s": 10 * MB, "t": 0})
        await asyncio.gather(*waiting[1:])


@pytest.mark.asyncio
async def test_nothing_polls_while_a_transfer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer, however many wait and however long."""
    looks: list[float] = []
    let = Bucket.let

    def counted(self: Bucket, now: float) -> float | None:
        looks.append(now)
        return let(self, now)

    monkeypatch.setattr(Bucket, "let", counted)
    paces = Paces({"s": MB})
    await asyncio.gather(*(paces.part("s").take(MB // 10) for _ in range(4)))
    assert len(looks) <= 10
