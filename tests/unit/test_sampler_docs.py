"""What `docs/samplers.md` shows runs as it stands, one block after the other."""

from __future__ import annotations

import re

from cachedaemon_client import ShardCache
from tests.conftest import PROJECT
from tests.fakes import packing
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

PAGE = PROJECT / "docs/samplers.md"
KEYS = [f"{kind}-{number}.zip" for kind in ("cats", "dogs") for number in range(8)]


def test_every_example_runs() -> None:
    """With a daemon and zip shards. The first example trains on a quarter of the shards, twice."""
    seen: list[bytes] = []
    with Origin() as origin:
        for number, key in enumerate(KEYS):
            origin.put(key, data=packing.zip_bytes(packing.image_like(5, number, 100)))
        with Daemon({"s": origin.url}) as daemon, ShardCache("s", socket=daemon.socket, wait=60) as cache:
            names = {"keys": KEYS, "cache": cache, "train": seen.append, "print": lambda *_: None}
            for number, block in enumerate(
                re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
            ):
                exec(compile(block, f"{PAGE.name}, example {number}", "exec"), names)
                if not number:
                    assert len(seen) == 2 * 4 * 5
    assert number >= 8
