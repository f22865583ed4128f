"""Figures 8 and 9: how long a restart takes with many shards in the cache, and what memory the daemon needs.

    python bench/restart.py [--shards 10000 100000] [--rounds 3] [--cache /tmp]

The rival is the same daemon on an empty cache; they take turns. Shards of one block are put where a daemon would have
published them. Time runs from the start of the process to the first answer. Then 200 of the shards are asked for, and the
origin's requests are counted; a reader goes on reading through the last restart.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import time
from collections.abc import Iterator
from pathlib import Path

from side_by_side import Daemon, NotMeasured, folder, main, middle, rss, table, verdict

from cachedaemon.model import Meta
from cachedaemon.store import disk, files
from cachedaemon.store.layout import Layout, Modes
from cachedaemon_client.names import name_of
from tests.fakes.origin import Origin
from tests.fakes.readers import Reader

ALLOWED = {10_000: 0.3, 100_000: 4.5}
"""Seconds more than an empty cache."""
READER = """
cache = ShardCache("s", cache_dir=ARG["cache"], wait=0.1)
keys, wrong, reads = ARG["keys"], 0, 0
say("ready")
stop = threading.Event()
threading.Thread(target=lambda: (hear(), stop.set())).start()
while not stop.is_set():
    for key in keys:
        reads += 1
        try:
            with cache.open(key) as shard:
                wrong += shard.path.read_bytes() != key.encode()
        except Exception as cause:
            wrong += 1
say([reads, wrong])
"""


def key(number: int) -> str:
    """The key of one shard."""
    return f"train/part-{number:06d}.bin"


def fill(root: Path, count: int) -> None:
    """Publish shards as the daemon would, without fetching them."""
    layout, modes = Layout(root), Modes.for_group(None)
    began = time.time_ns()
    for number in range(count):
        name, content = name_of(key(number)), key(number).encode()
        place, meta = layout.shard("s", name), layout.meta("s", name)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, content)
        disk.seal(descriptor, modes.file, modes.group, began + number)
        os.close(descriptor)
        said = Meta(key(number), len(content), disk.file_digest(place), 4096, 3, time.time(), synced=True)
        files.write_meta(said, meta, modes)


def begin(daemon: Daemon) -> float:
    """Seconds until a daemon that starts answers."""
    daemon.write()
    began = time.perf_counter()
    process = daemon.launch()
    while not answers(daemon):
        if process.poll() is not None or time.perf_counter() - began > 60:
            raise AssertionError(f"the daemon did not start:\n{daemon.log}")
        time.sleep(0.002)
    return time.perf_counter() - began


def answers(daemon: Daemon) -> bool:
    """Whether `hello` is answered."""
    try:
        return daemon.api("GET", "/v1/hello", timeout=60).status == 200
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def reading(daemon: Daemon, count: int) -> Iterator[list[int]]:
    """A reader all the while; afterwards its reads and those that went wrong."""
    result: list[int] = []
    keys = [key(number) for number in range(min(count, 500))]
    with Reader(daemon, READER, {"cache": daemon.cache, "keys": keys}) as reader:
        reader.line()
        yield result
        reader.tell("stop")
        result += reader.line()


def run() -> None:
    """An empty cache and full ones, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, nargs="*", default=[10_000, 100_000])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cache", default="/tmp", help="where the caches lie")
    chosen = options.parse_args()
    counts = [0, *chosen.shards]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    memory: dict[int, list[float]] = {count: [] for count in counts}
    more: dict[int, list[str]] = {0: ["", "", ""]}
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(Origin())
        daemons = {count: made(stack, origin.url, Path(chosen.cache), count) for count in counts}
        for _ in range(chosen.rounds):
            for count, daemon in daemons.items():
                seconds[count].append(begin(daemon))
                if (here := daemon.status()["cache"]["shards"]) != count:
                    raise NotMeasured(f"{here} of {count} shards are there after a restart")
                memory[count].append(rss(daemon.pid))
                daemon.stop()
        for count in chosen.shards:
            more[count] = asked(daemons[count], origin, count)
    report(seconds, memory, more)


def made(stack: contextlib.ExitStack, url: str, where: Path, count: int) -> Daemon:
    """A daemon that is not running, and its cache."""
    root = stack.enter_context(folder(where)) / "cache"
    how = {"cache_dir": root, "max_shards": 0, "max_bytes": "1TB", "scan": "1h", "begin": False, "check": False}
    daemon = stack.enter_context(Daemon({"s": {"url": url, "archives": "opaque"}}, **how))
    daemon.start()  # makes the folders
    daemon.stop()
    fill(root, count)
    return daemon


def asked(daemon: Daemon, origin: Origin, count: int) -> list[str]:
    """Restart under a reader, ask for some shards: requests at the origin, reads and failed reads."""
    daemon.start(60)
    with reading(daemon, count) as result:
        daemon.stop()
        daemon.start(60)
        for number in range(0, count, max(1, count // 200)):
            answer = daemon.acquire("s", key(number))
            if answer.status != 200:
                raise AssertionError(f"{key(number)}: {answer}")
    daemon.stop()
    return [str(len(origin.log)), f"{result[0]:,}", str(result[1])]


def report(seconds: dict[int, list[float]], memory: dict[int, list[float]], more: dict[int, list[str]]) -> None:
    """Print medians, and the differences to the empty cache."""
    empty = middle(seconds[0])
    rows = [
        [f"{count:,} shards", f"{middle(took):.2f}", f"{middle(took) - empty:.2f}", f"{max(memory[count]) / 1e6:.0f}"]
        + more[count]
        for count, took in seconds.items()
    ]
    table(["", "s to ready", "more than empty", "MB", "fetched again", "reads meanwhile", "failed"], rows)
    for count, took in seconds.items():
        if count in ALLOWED:
            verdict(8, f"{count:,} shards, seconds more", middle(took) - empty, at_most=ALLOWED[count])
    verdict(9, "MB idle", max(memory[0]) / 1e6, at_most=90)
    if 100_000 in memory:
        verdict(9, "MB with 100,000 shards", max(memory[100_000]) / 1e6, at_most=250)


if __name__ == "__main__":
    main(run)
