"""Several consumers with plans, some of which do not go on: nobody is starved for their sake, and users share the room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from cachedaemon_client import ShardCache
from tests.conftest import OrdinaryUser
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.readers import Reader
from tests.fakes.waiting import until
from tests.process.test_ahead import N, here, shuffled
from tests.unit.replay import fewest

BEGIN = """
plan = ShardCache("s").plan(ARG)
going = iter(plan)
shard = next(going)
say(plan.id)
hear()
"""
TELL = """
say("here")
hear()
plan = ShardCache("s").plan(ARG)
say(plan.id)
hear()
"""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        one.default(lambda name: one.put(name, 20_000))
        yield one


@pytest.mark.slow
def test_stopped_trainers_starve_nobody(origin: Origin) -> None:
    """Seven that are stopped with a shard open: once they are idle another has nearly the least transfers for the rest of the cap."""
    keys = shuffled(4)
    with Daemon({"s": origin.url}, max_shards=16, grace="50ms") as daemon, contextlib.ExitStack() as stack:
        stopped = [stack.enter_context(Reader(daemon, BEGIN, shuffled(4, seed))) for seed in range(10, 17)]
        for reader in stopped:
            reader.line()
            reader.freeze()
        until(lambda: {plan["state"] for plan in daemon.status()["plans"]} == {"idle"}, 90, "seven idle plans")
        begun = origin.gets
        with ShardCache("s", socket=daemon.socket) as cache, cache.plan(keys) as plan:
            for shard in plan:
                shard.path.read_bytes()
        assert origin.gets - begun <= 1.1 * fewest(keys, 16 - 7) + 4
        assert len(daemon.status()["plans"]) >= 7, "stopped processes keep their plans"
        for reader in stopped:
            reader.thaw()


@pytest.mark.slow
@pytest.mark.root
def test_another_user_gets_its_part_of_the_room(origin: Origin, as_user: OrdinaryUser) -> None:
    """One has the whole cache full of what it has not read yet; when another comes, only half of the cap stays kept for it."""
    own, other = [f"a{number}" for number in range(N)], [f"b{number}" for number in range(N)]
    with (
        Daemon({"s": origin.url}, max_shards=12, grace="50ms", server={"socket_mode": "0666"}) as daemon,
        Reader(daemon, TELL, other, wrap=as_user.command([])) as reader,
        ShardCache("s", socket=daemon.socket) as cache,
    ):
        assert reader.line() == "here"
        with cache.plan(own) as plan:
            until(lambda: here(daemon) == set(own[:12]), 20)
            reader.tell("go")
            until(lambda: here(daemon) & set(other), 20, "the first of what the other wants")
            kept = here(daemon)
            states = {one["id"]: one["state"] for one in daemon.status()["plans"]}
            assert states[plan.id] == "running", "a plan that is idle keeps nothing: this took too long"
            assert kept >= set(own[:6])
