"""What it costs the daemon that somebody looks at its page: its CPU time, with viewers and without, by shards in the cache.

    python bench/page.py [--shards 20 1000 100000] [--viewers 1 4] [--seconds 20] [--cache /tmp]

The same daemon is its own rival. Shards are put where it would have published them; a plan over all of them runs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import threading
import time
from pathlib import Path

from restart import fill, key
from side_by_side import cpu, folder, main, table

from cachedaemon_client import ShardCache
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin


class Viewer:
    """A browser's part of the page's feed."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._link.request("GET", "/page/events")
        self._answer = self._link.getresponse()
        self.bytes = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while part := self._answer.read1(1 << 16):
                self.bytes += len(part)

    def close(self) -> None:
        """Look no more."""
        if self._link.sock is not None:
            self._link.sock.shutdown(2)
        self._thread.join(10)
        self._link.close()


def spent(daemon: Daemon, viewers: int, seconds: float) -> tuple[float, float]:
    """Milliseconds of CPU time a second, and kB a second to each viewer."""
    looking = [Viewer(daemon.port) for _ in range(viewers)]
    try:
        time.sleep(2)  # the first snapshot, and what the plan stirred
        before, sent = cpu(daemon.pid), sum(one.bytes for one in looking)
        time.sleep(seconds)
        used, more = cpu(daemon.pid) - before, sum(one.bytes for one in looking) - sent
    finally:
        for one in looking:
            one.close()
    return used / seconds * 1000, more / seconds / 1000 / max(1, viewers)


def measure(count: int, numbers: list[int], seconds: float, cache: Path) -> list[list[str]]:
    """Rows for a cache of so many shards."""
    how = {"max_shards": count, "http": True, "begin": False, "check": False, "scan": 0}
    with Origin() as origin, Daemon({"s": origin.url}, cache_dir=cache, **how) as daemon:
        daemon.start()
        daemon.stop()
        fill(cache, count)
        daemon.start(60)
        with ShardCache("s", socket=str(daemon.socket)) as reader, reader.plan([key(n) for n in range(count)]):
            found = {viewers: spent(daemon, viewers, seconds) for viewers in (0, *numbers)}
    alone = found[0][0]
    return [
        [f"{count:,}", str(viewers), f"{used:.1f}", f"{used - alone:+.1f}", f"{sent:.1f}"]
        for viewers, (used, sent) in found.items()
    ]


def run() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[20, 1000, 100_000])
    parser.add_argument("--viewers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cache", type=Path, default=Path("/tmp"))
    said = parser.parse_args()
    rows = []
    for count in said.shards:
        with folder(said.cache) as place:
            rows += measure(count, said.viewers, said.seconds, place / "cache")
    table(["shards", "viewers", "CPU ms/s", "more than without", "kB/s each"], rows)


if __name__ == "__main__":
    main(run)
