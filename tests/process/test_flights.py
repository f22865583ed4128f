"""One transfer a shard, whoever asks, joins, dies or leaves (C-31, C-33)."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
from collections.abc import Iterator

from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.readers import Reader, run_all, spawn
from tests.fakes.waiting import until

MB = 1 << 20

READ_ALL = """
names = ARG["names"][ARG["n"] % len(ARG["names"]):] + ARG["names"][:ARG["n"] % len(ARG["names"])]
cache = ShardCache("s")
say("ready")
hear()
for name in names:
    with cache.open(name) as shard:
        say([name, content.matches(shard.path, name, ARG["size"])])
"""

READ_ONE = """
say("asking")
with ShardCache("s").open("x.bin") as shard:
    say(content.matches(shard.path, "x.bin", ARG))
"""


@contextlib.contextmanager
def asking(daemon: Daemon, key: str, count: int, wait: float = 60) -> Iterator[list[socket.socket]]:
    """So many connections, each with a request for one shard under way."""
    body = json.dumps({"source": "s", "key": key, "wait": wait}).encode()
    head = f"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        links = []
        for _ in range(count):
            link = stack.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(60)
            link.connect(str(daemon.socket))
            link.sendall(head + body)
            links.append(link)
        yield links


def waiters(daemon: Daemon) -> int:
    return int(daemon.status()["waiters"])


def results(links: list[socket.socket]) -> list[str]:
    """What each was answered."""
    said = []
    for link in links:
        answer = link.recv(1 << 16)
        while b"\r\n\r\n" not in answer or not answer.rstrip().endswith(b"}"):
            answer += link.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        said.append(json.loads(answer.partition(b"\r\n\r\n")[2])["result"])
    return said


def test_32_processes_ask_for_the_same_8_cold_shards() -> None:
    """8 transfers, every byte right."""
    names = [f"shard-{n}.bin" for n in range(8)]
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=20) as daemon:
        for name in names:
            origin.put(name, 3 * MB, latency=0.05)
        with spawn(daemon, READ_ALL, [{"n": n, "names": names, "size": 3 * MB} for n in range(32)]) as readers:
            for reader in readers:
                assert reader.line(60) == "ready"
            for reader in readers:
                reader.tell("go")
            said = [reader.rest(60) for reader in readers]
        assert all(sorted(lines) == [[name, True] for name in names] for lines in said)
        assert {name: origin[name].gets for name in names} == dict.fromkeys(names, 1)


def test_the_first_asker_is_killed_at_half() -> None:
    """The others get theirs, and it stays one transfer."""
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        shard = origin.put("x.bin", 8 * MB, gate=(gate := Gate(4 * MB)))
        with Reader(daemon, READ_ONE, 8 * MB) as first, contextlib.ExitStack() as stack:
            assert first.line() == "asking"
            assert gate.reached.wait(30)
            others = [stack.enter_context(Reader(daemon, READ_ONE, 8 * MB)) for _ in range(4)]
            until(lambda: waiters(daemon) == 5, 30)
            first.kill9()
            until(lambda: waiters(daemon) == 4, 30)
            gate.open()
            assert [other.rest() for other in others] == [["asking", True]] * 4
        assert (shard.gets, shard.aborted) == (1, 0)


def test_200_clients_ask_for_the_same_cold_shard_at_once() -> None:
    """C-31: exactly one GET."""
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        shard = origin.put("x.bin", 30 * MB, gate=(gate := Gate(15 * MB)))
        with asking(daemon, "x.bin", 200) as links:
            until(lambda: waiters(daemon) == 200, 30)
            gate.open()
            said = results(links)
        assert sorted(said) == ["joined"] * 199 + ["miss"]
        assert shard.gets == 1
        assert daemon.metric("requests_total", source="s", result="joined") == 199


def test_the_last_waiter_leaves() -> None:
    """The transfer ends, nothing is left of it, and the next one begins anew."""
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        shard = origin.put("x.bin", 8 * MB, gate=(gate := Gate(4 * MB)))
        with asking(daemon, "x.bin", 3):
            assert gate.reached.wait(30)
            until(lambda: waiters(daemon) == 3, 30)
        until(lambda: not daemon.status()["fetches"], 30)
        until(lambda: shard.aborted == 1, 30)
        daemon.audit()
        assert daemon.status()["cache"]["reserved_bytes"] == 0
        gate.open()
        daemon.path("s", "x.bin")
        assert shard.gets == 2


def test_one_that_gives_up_harms_nobody() -> None:
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        shard = origin.put("x.bin", 8 * MB, gate=(gate := Gate(4 * MB)))
        with asking(daemon, "x.bin", 2) as links:
            assert gate.reached.wait(30)
            late = daemon.acquire("s", "x.bin", wait=0.3)
            assert (late.status, late.code) == (504, "wait_expired")
            gate.open()
            assert sorted(results(links)) == ["joined", "miss"]
        assert shard.gets == 1


def test_no_time_starts_nothing() -> None:
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        shard = origin.put("x.bin", MB)
        answer = daemon.acquire("s", "x.bin", wait=0)
        assert (answer.status, answer.code) == (504, "wait_expired")
        assert shard.gets == 0
        daemon.path("s", "x.bin")
        assert daemon.acquire("s", "x.bin", wait=0).body["result"] == "hit"


def test_all_waiters_hear_of_a_failure_and_none_is_remembered() -> None:
    with Origin() as origin, Daemon({"s": origin.url}, fetch={"retries": 0}) as daemon:
        shard = origin.put("x.bin", MB, always=Status(403), latency=0.5)
        said: list[str | None] = []

        def ask() -> None:
            said.append(daemon.acquire("s", "x.bin").code)

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert said == ["origin_refused"] * 5
        shard.always = None
        daemon.path("s", "x.bin")


def test_500_clients_reset_before_reading_their_answer() -> None:
    """C-33: leases and sockets are back to none, and the daemon serves on."""
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=2, grace="1s") as daemon:
        origin.put("x.bin", MB, gate=(gate := Gate(MB // 2)))
        for name in "ab":
            origin.put(name, MB)
        daemon.path("s", "a")
        daemon.evict("s", "a")
        base = daemon.descriptors()
        with asking(daemon, "x.bin", 250) as links:
            until(lambda: waiters(daemon) == 250, 30)
            for link in links:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gate.open()
        with asking(daemon, "x.bin", 250):
            pass
        until(lambda: waiters(daemon) == 0, 30)
        until(lambda: daemon.descriptors() <= base + 1, 30, "descriptors back to base")
        until(lambda: daemon.evict("s", "x.bin").status in (204, 404), 30)
        for name in "ab":
            daemon.path("s", name)


def test_what_is_on_its_way_out_is_never_fetched_over_itself() -> None:
    """Many ask for more shards than there is room for: each transfer answers to one eviction, and counts agree."""
    names = [f"{n}.bin" for n in range(8)]
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=3, grace="50ms") as daemon:
        for name in names:
            origin.put(name, 64 << 10)

        def ask(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(60):
                name = chance.choice(names)
                if chance.random() < 0.15:
                    daemon.evict("s", name)
                else:
                    assert daemon.acquire("s", name).status in (200, 503)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        until(lambda: not daemon.status()["fetches"], 30)
        daemon.audit()
        gone = daemon.metric("evictions_total", source="s")
        assert origin.gets == gone + daemon.status()["cache"]["shards"]
        assert daemon.metric("evictions_total", source="s", reason="damaged") == 0


def test_transfers_of_readers_that_come_and_go() -> None:
    """Readers that take what they can, one process each: no shard comes twice while there is room for all."""
    names = [f"{n}.bin" for n in range(12)]
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=12) as daemon:
        for name in names:
            origin.put(name, 300_000)
        said = run_all(
            daemon, READ_ALL.replace("hear()", ""), [{"n": n, "names": names, "size": 300_000} for n in range(6)]
        )
        assert all(ok for lines in said for _, ok in lines[1:])
        assert origin.gets == 12
