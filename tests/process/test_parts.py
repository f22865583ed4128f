"""Large shards by several connections, through the daemon: one copy, within the caps, and nothing left however it ends."""

from __future__ import annotations

import contextlib
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SIZE = 40 << 20
SLOW = 12e6
"""Bytes per second of a connection: one alone takes 3.5 s."""


def test_a_large_shard_comes_by_several_connections_for_everybody_who_waits() -> None:
    """Checked by the origin's own digest, whatever order its parts came in."""
    digest = b64encode(md5(content.data("large.bin", SIZE)).digest()).decode()
    with Origin(connection_bps=SLOW) as origin, Daemon({"s": {"url": origin.url, "concurrency": 4}}) as daemon:
        shard = origin.put("large.bin", SIZE, extra={"Content-MD5": digest})
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: daemon.acquire("s", "large.bin"), range(8)))
        assert {answer.status for answer in answers} == {200}
        assert content.matches(daemon.path("s", "large.bin"), "large.bin", SIZE)
        assert shard.seen_ranges.count(None) == 1, "one transfer"
        assert 2 <= shard.peak <= 4
        assert daemon.metric("origin_bytes_total", source="s") < SIZE * 1.2


@pytest.mark.parametrize("how", ["leave", "stop", "kill"])
def test_what_ends_amid_its_parts_leaves_nothing(how: str) -> None:
    """C-76."""
    with Origin(connection_bps=2e6) as origin, Daemon({"s": {"url": origin.url, "concurrency": 4}}) as daemon:
        shard = origin.put("large.bin", SIZE)
        base = daemon.descriptors()
        with contextlib.closing(daemon.connection()) as connection:
            connection.request("POST", "/v1/acquire", b'{"source": "s", "key": "large.bin"}')
            until(lambda: shard.open == 4, 20, "four connections")
            if how == "stop":
                assert daemon.stop() == 0
            elif how == "kill":
                daemon.kill9()
        if how != "leave":
            daemon.start()
        until(lambda: not daemon.status()["fetches"], 20, "the end of the flight")
        until(lambda: shard.open == 0, 20, "the end of its connections")
        until(lambda: daemon.descriptors() <= base + 4, 20, "its descriptors")
        assert not daemon.shards("s")
        daemon.audit()


def test_further_connections_make_room_for_other_shards() -> None:
    with Origin(connection_bps=SLOW) as origin, Daemon({"s": {"url": origin.url, "concurrency": 3}}) as daemon:
        shard = origin.put("large.bin", SIZE)
        origin.put("small.bin", 1000)
        with ThreadPoolExecutor(1) as pool:
            large = pool.submit(daemon.acquire, "s", "large.bin")
            until(lambda: shard.open == 3, 20, "three connections")
            began = time.monotonic()
            assert daemon.acquire("s", "small.bin").status == 200
            assert not large.done(), f"after {time.monotonic() - began:.1f} s"
            assert large.result().status == 200
        assert origin.shared.peak <= 3 + 1, "one that is given up may end a moment later"
