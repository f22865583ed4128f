"""Origins that fail, through the whole daemon: what the asker is told, what the origin sees, and that nothing stays."""

from __future__ import annotations

import concurrent.futures
import contextlib
import email.utils
import gzip
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content
from tests.fakes.api import Answer
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status, busy
from tests.fakes.waiting import until

SIZE = 2 << 20


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as made:
        yield made


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    limits = {"retries": 2, "stall_timeout": "1s", "connect_timeout": "1s"}
    settings = {"url": origin.url, "archives": "opaque"}
    with Daemon({"s": settings}, max_shards=0, max_bytes="300MB", fetch=limits) as made:
        yield made


def message(answer: Answer) -> str:
    return str(answer.body["error"]["message"])


def nothing_of(daemon: Daemon, key: str) -> None:
    """Neither published nor in staging, and not listed."""
    assert not (daemon.cache / "shards/s" / key).exists()
    assert not daemon.shards("s", key)
    daemon.audit()


def ask_all(daemon: Daemon, keys: list[str], wait: float = 60) -> list[Answer]:
    with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
        return list(pool.map(lambda key: daemon.acquire("s", key, wait), keys))


# ---- C-01


def test_cut_once_is_mended(origin: Origin, daemon: Daemon) -> None:
    """C-01."""
    shard = origin.put("once.bin", SIZE, cut=[SIZE // 3])
    assert content.matches(daemon.path("s", "once.bin"), "once.bin", SIZE)
    assert shard.gets == 2


@pytest.mark.parametrize("offset", [0, 1, 65536, SIZE - 1])
def test_cut_always_ends_after_the_tries_and_leaves_nothing(origin: Origin, daemon: Daemon, offset: int) -> None:
    """C-01."""
    shard = origin.put(f"always-{offset}.bin", SIZE, cut_always=offset, etag=None)  # so that nothing is resumed
    answer = daemon.acquire("s", shard.name)
    assert (answer.status, answer.code) == (503, "origin_unavailable")
    assert f"s/{shard.name}: got {offset} of {SIZE} bytes" in message(answer)
    assert shard.gets == 3
    nothing_of(daemon, shard.name)


def test_chunks_without_an_end_are_cut(origin: Origin, daemon: Daemon) -> None:
    """C-01."""
    shard = origin.put("unfinished.bin", SIZE, framing="unfinished")
    answer = daemon.acquire("s", shard.name)
    assert (answer.status, answer.code) == (503, "origin_unavailable")
    nothing_of(daemon, shard.name)


@pytest.mark.parametrize("ending", ["half-close", "reset", "drop"])
def test_all_bytes_and_an_odd_end_need_one_get(origin: Origin, daemon: Daemon, ending: str) -> None:
    """C-01, C-02."""
    shard = origin.put(f"{ending}.bin", 20 << 20, ending=ending)
    assert content.matches(daemon.path("s", shard.name), shard.name, 20 << 20)
    assert shard.gets == 1


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_without_a_length_it_comes_whole(origin: Origin, daemon: Daemon, framing: str) -> None:
    origin.put(f"{framing}.bin", 5 << 20, framing=framing)
    assert content.matches(daemon.path("s", f"{framing}.bin"), f"{framing}.bin", 5 << 20)


# ---- C-08


def test_a_coding_that_nobody_asked_for(origin: Origin, daemon: Daemon) -> None:
    """C-08."""
    origin.put("coded.tar", SIZE, gzip=True)
    assert content.matches(daemon.path("s", "coded.tar"), "coded.tar", SIZE)


def test_all_members_of_a_coding_are_there(origin: Origin, daemon: Daemon) -> None:
    data = content.data("members", SIZE)
    body = b"".join(gzip.compress(data[at : at + 100_000]) for at in range(0, SIZE, 100_000))
    origin.put("members.tar", data=body, extra={"Content-Encoding": "gzip"})
    assert daemon.path("s", "members.tar").read_bytes() == data


def test_a_bomb_ends_at_the_cap_and_leaves_nothing(origin: Origin, daemon: Daemon) -> None:
    bomb = b"".join(gzip.compress(bytes(50 << 20), 9) for _ in range(8))
    origin.put("bomb.tar", data=bomb, extra={"Content-Encoding": "gzip"})
    answer = daemon.acquire("s", "bomb.tar")
    assert (answer.status, answer.code) == (413, "too_large")
    nothing_of(daemon, "bomb.tar")


# ---- C-12, C-13


@pytest.mark.parametrize("head", [Status(403), Status(405), Status(501), "hang"])
def test_head_does_not_matter(origin: Origin, daemon: Daemon, head: object) -> None:
    """C-12."""
    name = f"head-{getattr(head, 'code', head)}.bin"
    shard = origin.put(name, SIZE, head=head, head_length=0)
    assert content.matches(daemon.path("s", name), name, SIZE)
    assert shard.gets == 1


def test_slow_and_steady_takes_longer_than_every_limit(origin: Origin, daemon: Daemon) -> None:
    """C-13: the whole takes three times as long as the longest limit."""
    shard = origin.put("trickle.bin", 300_000, bps=100_000)
    began = time.monotonic()
    assert content.matches(daemon.path("s", shard.name), shard.name, 300_000)
    assert time.monotonic() - began > 2
    assert shard.gets == 1


@pytest.mark.parametrize("offset", [0, 65536])
def test_silence_is_a_stall(origin: Origin, daemon: Daemon, offset: int) -> None:
    shard = origin.put(f"stall-{offset}.bin", SIZE, stall=[offset])
    assert content.matches(daemon.path("s", shard.name), shard.name, SIZE)
    assert shard.gets == 2


def test_black_hole_and_refused_are_outages_and_end(origin: Origin, daemon: Daemon) -> None:
    origin.put("warm.bin", 1000)
    daemon.path("s", "warm.bin")
    origin.put("away.bin", 1000)
    for leave in (origin.black_hole, origin.down):
        leave()
        answer = daemon.acquire("s", "away.bin")
        assert (answer.status, answer.code) == (503, "origin_unavailable")
        assert "s/away.bin" in message(answer)
        assert daemon.acquire("s", "warm.bin").body["result"] == "hit"
        origin.up()
    assert daemon.acquire("s", "away.bin").status == 200, "no failure is remembered"


def test_the_last_cause_is_told_when_the_time_is_over(origin: Origin, daemon: Daemon) -> None:
    origin.put("later.bin", always=busy(60))
    answer = daemon.acquire("s", "later.bin", wait=2)
    assert (answer.status, answer.code) == (504, "wait_expired")
    assert "503" in message(answer)
    origin.remove("later.bin")


# ---- C-15


def test_two_hundred_askers_of_an_origin_that_asks_for_a_pause() -> None:
    """C-15. The first 20 requests get 503 and `Retry-After`: nobody comes back before, all are served in the end."""
    refused: list[float] = []
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=300, fetch={"retries": 5}) as daemon:

        def refuse(shard: object, _: object) -> None:
            shard.statuses = [busy(1)] if len(refused) < 12 else []  # type: ignore[attr-defined]
            refused.extend([time.monotonic()] if len(refused) < 12 else [])

        for number in range(200):
            origin.put(f"{number}.bin", 2000, on_get=refuse)
        answers = ask_all(daemon, [f"{number}.bin" for number in range(200)])
        assert [answer.status for answer in answers] == [200] * 200
        assert len(refused) == 12
        assert daemon.status()["sources"]["s"]["connections"] == daemon.metric("connections_allowed") == 8, "as before"
        assert origin.shared.peak <= 8, "connections to one source are bounded by its concurrency"
        for number in range(200):
            times = [request.at for request in origin[f"{number}.bin"].requests]
            assert all(late - early >= 0.99 for early, late in itertools.pairwise(times))
        served = [r.at for r in origin.log]
        first = min(refused)
        # The 8 that were under way together hear of it together; nobody else asks within the second.
        assert sum(at < first + 0.9 for at in served) <= 8


@pytest.mark.parametrize("value", ["soon", "1000000000", "", email.utils.formatdate(0, usegmt=True)])
def test_odd_words_in_retry_after_mean_the_usual_pause(origin: Origin, daemon: Daemon, value: str) -> None:
    """C-15."""
    name = f"odd-{len(value)}.bin"
    origin.put(name, 1000, statuses=[busy(value), busy(value, 429)])
    assert daemon.acquire("s", name, wait=20).status == 200


def test_connections_closed_after_each_reply_go_unseen(origin: Origin, daemon: Daemon) -> None:
    """C-15: the reuse race."""
    failures = daemon.metric("fetch_failures_total")
    for number in range(60):
        origin.put(f"drop-{number}.bin", 100, ending="drop")
        assert daemon.acquire("s", f"drop-{number}.bin").status == 200
    assert daemon.metric("fetch_failures_total") == failures


# ---- order and limits


def test_limits_over_all_and_per_source_and_demand_before_prefetch() -> None:
    gate = Gate(10)
    with (
        Origin() as origin,
        Daemon(
            {"a": {"url": origin.url + "a/", "concurrency": 2}, "b": origin.url + "b/"},
            fetch={"concurrency": 3},
        ) as daemon,
    ):
        at_once: list[int] = []

        def count(*_: object) -> None:
            at_once.append(1 + sum(shard.open for shard in origin.shared.objects.values()))

        for source in "ab":
            for number in range(6):
                origin.put(f"{source}/{number}.bin", 1000, gate=gate, on_get=count)
        ahead = daemon.prefetch("a", [f"{number}.bin" for number in range(5)])
        until(lambda: origin.gets == 2, 20, "two transfers of a")
        other = daemon.prefetch("b", [f"{number}.bin" for number in range(6)])
        until(lambda: origin.gets == 3, 20, "one more of b")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.acquire, "a", "5.bin", 40)
            until(lambda: daemon.status()["waiters"] >= 1, 20, "the demand")
            gate.open()
            assert asked.result().status == 200
        assert [daemon.job(job)["state"] for job in (ahead, other)] == ["done", "done"]
        assert max(at_once) == 3
        order = [request.target for request in origin.log if request.target.startswith("/a/")]
        assert order.index("/a/5.bin") == 2, "the first place that came free went to the demand"


def test_when_the_last_asker_leaves_the_transfer_ends(origin: Origin, daemon: Daemon) -> None:
    shard = origin.put("left.bin", SIZE, gate=Gate(65536))
    with contextlib.closing(daemon.connection()) as connection:
        connection.request("POST", "/v1/acquire", b'{"source": "s", "key": "left.bin"}')
        until(lambda: shard.open == 1, 20, "the transfer")
    until(lambda: shard.aborted == 1, 20, "the end of the transfer")
    until(lambda: not daemon.status()["fetches"], 20, "the end of the flight")
    nothing_of(daemon, "left.bin")


def test_two_hundred_cancelled_transfers_leave_no_descriptor(origin: Origin, daemon: Daemon) -> None:
    """C-76."""
    shard = origin.put("cancel.bin", 20 << 20, bps=4_000_000)
    base = daemon.descriptors()
    for number in range(200):
        with contextlib.closing(daemon.connection()) as connection:
            connection.request("POST", "/v1/acquire", b'{"source": "s", "key": "cancel.bin"}')
            if number % 2:
                time.sleep(number / 20_000)  # a different moment each time
    until(lambda: not daemon.status()["fetches"], 20, "the end of the flights")
    until(lambda: daemon.descriptors() <= base + 10, 20, f"{base} descriptors, not {daemon.descriptors()}")
    nothing_of(daemon, shard.name)
    assert "Traceback" not in daemon.log


def rss(pid: int) -> int:
    """Resident bytes of a process that belong to it alone (proc(5), RssAnon)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10


@pytest.mark.slow
def test_never_a_whole_shard_in_memory() -> None:
    with Origin() as origin, Daemon({"s": origin.url}, max_bytes="2GB", check=False) as daemon:
        origin.put("small.bin", 1000)
        daemon.path("s", "small.bin")
        base, most = rss(daemon.pid), 0
        origin.put("large.bin", 500 << 20)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.acquire, "s", "large.bin", 300)
            while not asked.done():
                most = max(most, rss(daemon.pid))
                time.sleep(0.02)
            assert asked.result().status == 200
        assert most - base < 40 << 20
