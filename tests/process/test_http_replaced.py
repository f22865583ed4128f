"""Objects of a web server that are replaced while they are fetched, and the daemon killed meanwhile: never half and half."""

from __future__ import annotations

import concurrent.futures

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

SIZE = 4 << 20
AFTER = {"smaller.bin": SIZE // 8, "as-large.bin": SIZE}


def test_a_daemon_that_is_killed_in_mid_download_gets_the_new_object() -> None:
    """C-02, C-04: smaller than what had come, or as large; one clean GET, and nothing of the old one is left."""
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        gates = {key: Gate(SIZE // 2) for key in AFTER}
        shards = {key: origin.put(key, SIZE, gate=gate) for key, gate in gates.items()}
        with concurrent.futures.ThreadPoolExecutor(len(AFTER)) as pool:
            asked = [pool.submit(daemon.acquire, "s", key, 20) for key in AFTER]
            assert all(gate.reached.wait(20) for gate in gates.values())
            daemon.kill9()
            assert all(isinstance(one.exception(), OSError) for one in asked)
        for key, shard in shards.items():
            gates[key].open()
            until(lambda shard=shard: shard.open == 0, 20, "the end of the transfer")  # type: ignore[misc]
            shard.zero()
            shard.replace(seed=2, size=AFTER[key])
        daemon.start()
        for key, shard in shards.items():
            assert content.matches(daemon.path("s", key), key, AFTER[key], 2)
            assert shard.seen_ranges == [None]


def test_an_object_that_is_replaced_before_the_rest_is_asked_for() -> None:
    """C-02, C-04: the rest is of another version (200, or 206 with `If-Range` ignored), or beyond its end (416)."""
    with Origin() as origin, Daemon({"s": origin.url}) as daemon:
        for key, size in AFTER.items():
            for if_range in ("strict", "ignore"):
                name = f"{if_range}-{key}"
                shard = origin.put(name, SIZE, cut=[SIZE // 2], if_range=if_range)
                shard.change = SIZE // 2 - 1, lambda one, size=size: one.replace(seed=2, size=size)  # type: ignore[misc]
                assert content.matches(daemon.path("s", name), name, size, 2)
                assert (shard.seen_ranges[0], shard.seen_ranges[-1]) == (None, None)
                assert len(shard.seen_ranges) == 3, "one part that was of another version, and one restart"
