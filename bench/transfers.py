"""Figure 2: how often the origin sends each shard to 8 ranks x 4 workers that begin cold and at once.

    python bench/transfers.py [--shards 40] [--size 262144] [--ranks 8] [--workers 4]

Each worker is a process and opens all shards, in the same order: the worst stampede. The rival is the same without the
daemon: each worker gets each shard from the origin itself.
"""

from __future__ import annotations

import argparse
import time

from side_by_side import Daemon, main, table, verdict

from tests.fakes import readers
from tests.fakes.origin import OriginProcess, shard_name

WITH = """
with ShardCache("s") as cache:
    say("ready"); hear()
    for name in ARG["names"]:
        with cache.open(name) as shard:
            assert shard.size == ARG["size"] and content.matches(shard.path, name, ARG["size"])
say("done")
"""
WITHOUT = """
import http.client
link = http.client.HTTPConnection("127.0.0.1", ARG["port"])
say("ready"); hear()
for name in ARG["names"]:
    link.request("GET", "/" + name)
    assert link.getresponse().read() == content.data(name, ARG["size"])
say("done")
"""


def stampede(daemon: Daemon | None, snippet: str, arg: object, count: int) -> float:
    """Seconds that all readers take, from a common start."""
    with readers.spawn(daemon, snippet, [arg] * count) as crowd:
        for reader in crowd:
            reader.line(120)
        began = time.perf_counter()
        for reader in crowd:
            reader.tell("go")
        for reader in crowd:
            reader.line(300)
        return time.perf_counter() - began


def run() -> None:
    """Both sides, one after the other, each with the origin's counters at zero."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=40)
    options.add_argument("--size", type=int, default=1 << 18)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--workers", type=int, default=4)
    chosen = options.parse_args()
    count = chosen.ranks * chosen.workers
    names = [shard_name(number) for number in range(chosen.shards)]
    rows = []
    with OriginProcess(objects=chosen.shards, size=chosen.size, latency=0.01) as origin:
        arg = {"names": names, "size": chosen.size, "port": origin.port}
        with Daemon({"s": {"url": origin.url, "archives": "opaque"}}, max_shards=chosen.shards) as daemon:
            for side, snippet in (("cachedaemon", WITH), ("each for itself", WITHOUT)):
                origin.zero()
                seconds = stampede(daemon, snippet, arg, count)
                said = origin.stats()
                rows.append((side, said["gets"] / chosen.shards, said["most"], said["sent"] / 1e6, seconds))
    print(f"{chosen.shards} shards of {chosen.size} bytes, {count} readers")
    cells = [[side, f"{each:.2f}", f"{most}", f"{sent:.1f}", f"{took:.1f}"] for side, each, most, sent, took in rows]
    table(["", "transfers per shard", "most for one", "MB from the origin", "s"], cells)
    verdict(2, "transfers per shard", rows[0][1], at_most=1, at_least=1)


if __name__ == "__main__":
    main(run)
