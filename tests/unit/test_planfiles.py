"""Plans and their files come and go together, whoever makes, ends or looks at once, and whoever leaves before the end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import math
import os
import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachedaemon import planfiles
from cachedaemon.ahead import Ahead
from cachedaemon.errors import NoSpace
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.planfiles import AT_ONCE, PlanFiles
from cachedaemon.plans import Plan, Plans
from cachedaemon.regrets import Regrets
from cachedaemon.upkeep import LOOK_AT_PLANS
from tests.unit.store_kit import opened
from tests.unit.test_ledger import caps, entry
from tests.unit.test_plans import plan

pytestmark = pytest.mark.asyncio


async def agree(plans: Plans, folder: Path) -> None:
    files = await asyncio.to_thread(os.listdir, folder / "plans")
    assert sorted(files) == sorted(one.id for one in plans)


def known_to_be_lost(name: str) -> Plan:
    """One that was held once and is not any more: the next look ends it."""
    one = plan(name)
    one.seen_held = True
    return one


async def test_made_ended_and_looked_at_all_at_once(folder: Path) -> None:
    chance = random.Random(1)
    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Ledger(caps()), Regrets(ledger, Metrics("test")))
        for _ in range(150):
            steps = [
                files.put(known_to_be_lost("a")),
                files.end("a"),
                files.put(plan("b")),
                files.look(),
                files.end("b"),
            ]
            chance.shuffle(steps)
            tasks = [asyncio.create_task(step) for step in steps]
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() / 1000)
                chance.choice(tasks).cancel()
            await asyncio.wait(tasks)
            await agree(plans, folder)
        await files.put(plan("c"))
        await files.end_all()
        assert len(plans) == 0
        await agree(plans, folder)


async def test_a_plan_whose_file_cannot_go_still_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is tried again with the next look."""
    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Ledger(caps()), Regrets(ledger, Metrics("test")))
        await files.put(known_to_be_lost("a"))

        def refuse(path: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        with monkeypatch.context() as patch:
            patch.setattr("cachedaemon.store.disk.unlink", refuse)
            for end in (files.look, lambda: files.end("a")):
                with pytest.raises(NoSpace, match="plan a"):
                    await end()
        await agree(plans, folder)
        assert len(plans) == 1
        await files.look()
        assert len(plans) == 0
        await agree(plans, folder)


async def test_one_look_after_its_owner_has_gone_a_plan_wants_nothing(folder: Path) -> None:
    """A look comes each second, so a killed trainer's plan is gone within two, and what it alone wanted may go first."""

    def held(file: str) -> int:
        descriptor = os.open(folder / "plans" / Path(file).name, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    assert LOOK_AT_PLANS <= 1.0
    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Ledger(caps()), Regrets(ledger, Metrics("test")))
        owner = await asyncio.to_thread(held, await files.put(plan("a")))
        await files.look()
        assert plans.next_use(Ref("s", "0")) < math.inf
        os.close(owner)
        await files.look()
        assert len(plans) == 0
        assert plans.next_use(Ref("s", "0")) == math.inf
        assert ledger.protected == set()


async def test_a_link_in_the_place_of_a_plans_file_is_nobodys_hold(folder: Path) -> None:
    """It ends its own plan, and keeps no other from being looked at."""
    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Ledger(caps()), Regrets(ledger, Metrics("test")))
        for name in ("a", "b"):
            await files.put(known_to_be_lost(name))
        path = folder / "plans" / "a"
        await asyncio.to_thread(path.unlink)
        await asyncio.to_thread(path.symlink_to, folder)
        await files.look()
        assert not len(plans)
        await agree(plans, folder)


async def test_many_that_are_used_at_another_time_are_told_some_at_a_time(folder: Path) -> None:
    """A consumer that jumps far ahead, and a long plan that comes or ends, leave others their turns."""
    told: list[int] = []

    class Listening(Ledger):
        def replanned(self, moved: Iterable[Ref]) -> None:
            told.append(len(some := list(moved)))
            super().replanned(some)

    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Listening(caps()), Regrets(ledger, Metrics("test")))
        for change in (
            lambda: files.put(plan("a", keys=3 * AT_ONCE)),
            lambda: asyncio.sleep(0, files.move("a", 3 * AT_ONCE - 1)),
            lambda: asyncio.sleep(0, files.move("a", 0)),
            lambda: files.end("a"),
        ):
            told.clear()
            await change()
            await files.settle()
            assert sum(told) >= 3 * AT_ONCE - 1
            assert max(told) <= AT_ONCE


async def test_what_is_told_again_and_again_does_not_gather(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that come in bursts are reckoned anew all the time; looks ahead come in between, and all is told of all the same."""
    monkeypatch.setattr(planfiles, "TURNS", 5)
    told: set[Ref] = set()

    class Listening(Ledger):
        def replanned(self, moved: Iterable[Ref]) -> None:
            told.update(some := list(moved))
            super().replanned(some)

    async with opened(folder) as (store, _):
        plans = Plans()
        files = PlanFiles(plans, store, ledger := Listening(caps()), Regrets(ledger, Metrics("test")))
        keys = AT_ONCE * 5 * 3
        for number in range(8):
            await files.put(plan(f"rank-{number}", keys=keys))
        await files.put(plan("other", keys=5))
        while not files.settled:
            await files.settle()
        told.clear()
        for position in range(1, 9):
            for number in range(8):
                files._plans.get(f"rank-{number}").clock = (0.0, 0, 1.0 + position % 2)  # it is always somewhere else
                files.move(f"rank-{number}", position)
            assert len(files._to_tell) <= 2
            await asyncio.wait_for(files.settle(), 20)
            assert not files.settled, "the rest is told later"
        assert len(told) >= keys


async def test_the_order_is_told_to_the_end_though_no_plan_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planfiles, "TURNS", 1)
    async with opened(folder) as (store, _):
        plans, cache = Plans(), SimpleNamespace(sources=SimpleNamespace(all=list))
        cache.ledger = ledger = Ledger(caps(), plans.next_use)
        files = PlanFiles(plans, store, ledger, Regrets(ledger, Metrics("test")))
        for number in range(5 * AT_ONCE):
            ledger.add(entry(str(number), float(number)))
        looking = asyncio.create_task(Ahead(cast("Any", cache), plans, files, lambda: 1).run())
        await files.put(plan("p", keys=5 * AT_ONCE))
        await files.end("p")
        async with asyncio.timeout(20):
            while not files.settled:  # noqa: ASYNC110 - it says nothing of its change
                await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.wait([looking])
        assert all(one.place is not None and one.place[0] == -math.inf for one in ledger.entries())
