"""Plans at work, through a real daemon: what they want is here when it is wanted, and nobody suffers from it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from cachedaemon_client import ShardCache
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.readers import Reader
from tests.fakes.waiting import until

SIZE = 20_000
N = 24


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(N):
            one.put(f"{number}.bin", SIZE, latency=0.02)
        yield one


def shuffled(epochs: int, seed: int = 1) -> list[str]:
    keys: list[str] = []
    for epoch in range(epochs):
        order = [f"{number}.bin" for number in range(N)]
        random.Random(f"{seed} {epoch}").shuffle(order)
        keys += order
    return keys


def gets(origin: Origin) -> int:
    return sum(origin[f"{number}.bin"].gets for number in range(N))


def here(daemon: Daemon) -> set[str]:
    return {row["key"] for row in daemon.shards("s")}


def put(daemon: Daemon, name: str, keys: list[str], position: int = 0, holds: int = 1) -> dict[str, object]:
    body = {"source": "s", "keys": keys, "position": position, "holds": holds}
    answer = daemon.api("PUT", f"/v1/plans/{name}", body)
    assert answer.status == 200, answer.body
    return dict(answer.body)


def move(daemon: Daemon, name: str, position: int) -> None:
    body = {"source": "s", "used": [], "plan": name, "position": position}
    assert daemon.api("POST", "/v1/touch", body).status == 204


def test_an_epoch_costs_little_more_than_it_must(origin: Origin) -> None:
    """Half of the shards fit: the least is (1-c)N an epoch after the first. The account says how near it came."""
    keys = shuffled(4)
    with (
        Daemon({"s": origin.url}, max_shards=N // 2, grace="50ms") as daemon,
        ShardCache("s", socket=daemon.socket) as cache,
    ):
        with cache.plan(keys) as plan:
            for shard in plan:
                shard.path.read_bytes()
        least = N + 3 * N // 2
        assert gets(origin) <= least + 3 + 3, "a window of one shard costs one transfer an epoch"
        ratio = until(lambda: daemon.status()["cache"]["regret"], 20)
        assert 0.9 <= ratio <= 1.3
        assert daemon.metric("regret_ratio", source="s") == pytest.approx(ratio, abs=0.001)
        assert daemon.status()["sources"]["s"]["regret"] == ratio
        assert f"regret     {ratio:.2f} times" in daemon.cli("status").out


def test_what_comes_next_is_here_before_it_is_asked_for(origin: Origin) -> None:
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": origin.url}, max_shards=8, grace="50ms") as daemon:
        put(daemon, "p", keys)
        until(lambda: here(daemon) >= set(keys[:3]), 20)
        assert daemon.metric("requests_total", source="s") == 0
        assert len(here(daemon)) <= 8
        for position in range(1, 12):
            until(lambda position=position: keys[position] in here(daemon), 20)  # type: ignore[misc]
            assert daemon.path("s", keys[position], wait=0).exists()
            move(daemon, "p", position + 1)
        assert daemon.metric("evicted_unread_total", source="s") == 0


def test_a_trainer_that_stops_stops_what_comes_for_it(origin: Origin) -> None:
    """Without progress no more is fetched than the cap holds, and nothing that was fetched for it goes."""
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": origin.url}, max_shards=6, grace="50ms") as daemon:
        put(daemon, "p", keys)
        until(lambda: len(here(daemon)) == 6 and not daemon.status()["fetches"], 20)
        before = here(daemon)
        time.sleep(1.0)  # a state that lasts can only be waited for
        assert here(daemon) == before == set(keys[:6])
        assert gets(origin) == 6


def test_a_demand_comes_before_what_comes_ahead(origin: Origin) -> None:
    """What nobody plans for is had at once, though a plan would fill the cache; and it displaces what is needed last."""
    origin.put("other.bin", SIZE)
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": {"url": origin.url, "concurrency": 1}}, max_shards=4, grace="50ms") as daemon:
        put(daemon, "p", keys)
        assert daemon.path("s", "other.bin").exists()
        until(lambda: len(here(daemon)) == 4, 20)
        assert keys[0] in here(daemon)


def test_a_killed_trainer_takes_its_plan_along(origin: Origin) -> None:
    """Within two seconds; what it alone wanted goes like anything else.

    The plan's end is when the daemon removed its file, by the file system's clock: how often this test looks counts for nothing.
    """
    own = f"""
    plan = ShardCache("s").plan([f"{{n}}.bin" for n in range({N})])
    say("planned")
    hear()
    """
    with Daemon({"s": origin.url}, max_shards=4, grace="50ms") as daemon:
        plans = daemon.cache / "plans"
        with Reader(daemon, "\n".join(line.strip() for line in own.splitlines())) as reader:
            assert reader.line() == "planned"
            until(lambda: len(here(daemon)) == 4 and not daemon.status()["fetches"], 20)
            killed = time.time()
            reader.kill9()
            until(lambda: not daemon.status()["plans"] and not list(plans.iterdir()), 20)
            assert plans.stat().st_mtime - killed < 2
        for number in range(N - 4, N):
            assert daemon.path("s", f"{number}.bin").exists()
        assert here(daemon) == {f"{number}.bin" for number in range(N - 4, N)}


def test_consumers_that_hold_more_than_fits_are_told_of(origin: Origin) -> None:
    """At once: in the answer, the log, status and metrics."""
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": origin.url}, max_shards=5, grace="50ms") as daemon:
        assert "warning" not in put(daemon, "p", keys, holds=3)
        said = put(daemon, "q", keys[::-1], holds=4)
        assert "hold 7 shards at once and there is room for 5" in str(said["warning"])
        assert "hold 7 shards at once and there is room for 5" in daemon.log
        assert daemon.status()["cache"]["held_by_plans"] == 7
        assert daemon.metric("held_by_plans") == 7


def test_lru_prefetches_and_goes_by_last_use(origin: Origin) -> None:
    """`policy = "lru"`: plans are fetched for, and decide nothing of what goes."""
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": origin.url}, max_shards=4, policy="lru", grace="50ms") as daemon:
        put(daemon, "p", keys)
        until(lambda: set(keys[:2]) <= here(daemon), 20)
        for position in range(10):
            assert daemon.path("s", keys[position]).exists()
            move(daemon, "p", position + 1)
        assert gets(origin) <= 16


def test_two_plans_of_one_order_share_what_comes(origin: Origin) -> None:
    """Two ranks, one a little behind: each shard is fetched once."""
    keys = [f"{number}.bin" for number in range(N)]
    with Daemon({"s": origin.url}, max_shards=10, grace="50ms") as daemon:
        put(daemon, "p", keys)
        put(daemon, "q", keys)
        for position in range(N):
            assert daemon.path("s", keys[position]).exists()
            move(daemon, "p", position + 1)
            if position >= 3:
                assert daemon.path("s", keys[position - 3], wait=0).exists()
                move(daemon, "q", position - 2)
        assert gets(origin) == N


@pytest.mark.slow
def test_an_origin_is_not_asked_again_and_again_for_what_it_has_not(origin: Origin) -> None:
    """Keys of a plan that are misspelt, say: each is tried half as often after each failure, and costs a line of the log."""
    with Daemon({"s": origin.url}, max_shards=60) as daemon:
        put(daemon, "p", [f"missing-{number}" for number in range(20)])
        until(lambda: len(origin.log) >= 40, 60)  # each twice
        began, asked = time.monotonic(), len(origin.log)
        until(lambda: len(origin.log) >= 60, 60)  # the pause between is ten seconds now, not five
        assert asked < 45
        assert time.monotonic() - began > 7


@pytest.mark.slow
def test_nobody_is_warned_of_a_byte_cap_before_anything_is_here(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=0, max_bytes=3 * SIZE) as daemon:
        assert "warning" not in put(daemon, "p", shuffled(1), holds=2)
        until(lambda: here(daemon), 20)
        assert "hold 9 shards" in str(put(daemon, "p", shuffled(1), holds=9)["warning"])


@pytest.mark.slow
def test_nothing_is_asked_for_that_has_no_place(origin: Origin) -> None:
    """All room is taken by what other plans have not read yet: the origin is left alone until somebody moves."""
    with Daemon({"s": origin.url}, max_shards=2) as daemon:
        for number in range(6):
            put(daemon, f"p{number}", shuffled(1, seed=number))
        until(lambda: len(here(daemon)) == 2, 20)
        time.sleep(2)  # each is asked for once
        asked = gets(origin)
        time.sleep(2)  # twenty looks
        assert gets(origin) <= asked + 4
        assert len(here(daemon)) == 2
