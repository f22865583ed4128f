"""Figure 6: one large shard from a server that limits each connection, in parts by several connections.

    python bench/ranges.py [--size 268435456] [--rate 8000000] [--streams 8] [--rounds 3] [--latency 0.02]

The rival is the same daemon with one connection (`concurrency = 1`). Both sides have a fresh cache each time and take turns;
the ratio of their times, divided by the number of connections, is what is reached of what the server would give.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from side_by_side import Daemon, NotMeasured, folder, main, middle, table, verdict

from tests.fakes import content
from tests.fakes.origin import OriginProcess, shard_name


def fetched(origin: OriginProcess, place: Path, size: int, streams: int) -> float:
    """Seconds until the shard is local, whole and right."""
    source = {"url": origin.url, "archives": "opaque", "concurrency": streams}
    with Daemon({"s": source}, cache_dir=place / "cache", check=False, scan="1h") as daemon:
        began = time.perf_counter()
        path = daemon.path("s", shard_name(0), 600)
        seconds = time.perf_counter() - began
        if not content.matches(path, shard_name(0), size):
            raise NotMeasured("what came is not the shard")
    return seconds


def run() -> None:
    """Take turns, and print times, requests and what is reached."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=int, default=1 << 28)
    options.add_argument("--rate", type=float, default=8e6, help="bytes a second of one connection")
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--latency", type=float, default=0.02, help="seconds before each answer")
    chosen = options.parse_args()
    server = {"objects": 1, "size": chosen.size, "connection_bps": chosen.rate, "latency": chosen.latency}
    seconds: dict[int, list[float]] = {1: [], chosen.streams: []}
    requests: dict[int, list[float]] = {1: [], chosen.streams: []}
    for _ in range(chosen.rounds):
        for streams in (1, chosen.streams):
            with OriginProcess(**server) as origin, folder("/dev/shm") as place:
                seconds[streams].append(fetched(origin, place, chosen.size, streams))
                stats = origin.stats()
                requests[streams].append(stats["gets"])
                if stats["peak"] > streams + 1:  # the one that asks for the counts is open too
                    raise NotMeasured(f"{stats['peak']} connections at once, {streams} are allowed")
    print(
        f"a shard of {chosen.size} bytes, {chosen.rate / 1e6:g} MB/s a connection, {chosen.latency * 1e3:g} ms an answer"
    )
    rows = [
        [
            f"{streams} connections",
            f"{middle(found):.2f}",
            f"{chosen.size / middle(found) / 1e6:.1f}",
            f"{middle(requests[streams]):g}",
        ]
        for streams, found in seconds.items()
    ]
    table(["", "s", "MB/s", "GETs"], rows)
    ratio = middle(seconds[1]) / middle(seconds[chosen.streams])
    verdict(6, f"{ratio:.2f} times one connection, of {chosen.streams}", ratio / chosen.streams, at_least=0.9)


if __name__ == "__main__":
    main(run)
