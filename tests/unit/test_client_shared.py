"""What data sets share with their workers, and copies of it; a loader's plan that is refused."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import PlanWarning, ShardCache, ShardSampler, aio, places
from cachedaemon_client.plan import Plan
from cachedaemon_client.reading import Reader, Reading, in_force
from cachedaemon_client.shared import Shared, Turn
from tests.unit.scripted import Said, answer, error, scripted

COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


@pytest.mark.parametrize("copied", COPIES, ids=["copied", "pickled"])
def test_a_copy_has_numbers_of_its_own(copied: Callable[[Any], Any]) -> None:
    one = Shared([5, -1])
    other = copied(one)
    other[0] = 7
    assert (one[0], other[0], other[1], len(other)) == (5, 7, -1, 2)


@pytest.mark.parametrize("copied", COPIES, ids=["copied", "pickled"])
def test_a_copy_of_a_turn_is_a_new_one(copied: Callable[[Any], Any]) -> None:
    turn = Turn(3)
    assert (turn.begin([2, 0], [1]), turn.order()) == (1, ([2, 0, 1], 2))
    other = copied(turn)
    assert (other.room, other.number, other.order(), other.is_ours) == (3, 0, ([], 0), True)
    other.begin([1], [])
    assert turn.order() == ([2, 0, 1], 2)


def test_of_a_turn_too_long_the_last_of_the_next_one_goes() -> None:
    turn = Turn(2)
    turn.begin([1, 1, 0], [0, 1])
    assert turn.order() == ([1, 1, 0, 0], 3)


def _worker(told: Shared, turn: Turn, before: int) -> None:
    told[0] = os.getpid()
    assert turn.order() == ([1, 0], 1)
    assert not turn.is_ours
    assert os.getpid() != before


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_sees_the_same_numbers(how: str) -> None:
    told, turn = Shared([0]), Turn(2)
    turn.begin([1], [0])
    context: Any = multiprocessing.get_context(how)
    worker = context.Process(target=_worker, args=(told, turn, os.getpid()))
    worker.start()
    worker.join(60)
    assert (worker.exitcode, told[0]) == (0, worker.pid)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_nor_does_it_end_a_pipeline(folder: Path) -> None:
    """Slow because it imports SPDL."""
    spdl = pytest.importorskip("cachedaemon_client.spdl", reason="spdl-core is not installed")
    reading: Reading[object] = Reading(ShardSampler(["a"], seed=0), lambda *_: None, Reader())
    with scripted(folder / "s", lambda _: error(429, "too_many")):
        async with aio.ShardCache("s", socket=folder / "s", wait=5) as cache:
            with pytest.warns(PlanWarning, match="read without a plan"):
                async with spdl._announced(cache, reading, 1):
                    assert not cache._running


def test_a_loaders_plan_that_is_refused_is_gone_without(folder: Path) -> None:
    """It was in force with other keys before, and goes; reading goes on."""
    refuses = [False]

    def daemon(said: Said) -> bytes:
        if said.target == "/v1/hello":
            return answer(200, {"cache_dir": str(folder), "sources": {"s": {"archives": "index", "direct": True}}})
        if said.method != "PUT":
            return answer(204)
        return error(429, "too_many") if refuses[0] else answer(200, {"file": f"{folder}/plans/1"})

    seen = folder.stat()
    said = {"format": 1, "boot_id": places.boot_id(), "device": seen.st_dev, "inode": seen.st_ino}
    (folder / "daemon.json").write_text(json.dumps(said | {"direct": ["s"], "archives": {"s": "index"}}))
    with scripted(folder / "s", daemon) as script, ShardCache("s", socket=folder / "s", wait=5) as cache:
        plan = in_force(cache, Plan(cache, ["a"], 1))
        assert cache._running == (plan,)
        refuses[0] = True
        plan.begin(["b"])
        with pytest.warns(PlanWarning, match="plan of s: the too_many; its shards are read without a plan"):
            in_force(cache, plan)
        assert not cache._running
        plan.close()
        cache.status()
        assert [said.method for said in script.heard if said.target.startswith("/v1/plans")] == ["PUT", "PUT", "DELETE"]
