"""The origin of all rivals, as a process: serves a folder over HTTP, slowly, and counts.

    python rivals_origin.py FOLDER

prints its port. `GET /-/counts` answers JSON and forgets. It is S3 enough for those that speak nothing else: a bucket is a
folder, objects are GETs and HEADs of a path, and nobody's signature is looked at.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import uvloop

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.origin import Object, Origin, Request  # noqa: E402 - needs the path

LATENCY = 0.05
"""Seconds before each answer."""
CONNECTION_BPS = 4e6
LINK_BPS = 16e6


class Counts:
    """What was asked for since the last look, indexes left out."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self._origin = origin
        self._last: dict[str, float] = {}
        self._together = 0
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self._shards = [self._put(path.relative_to(folder), path) for path in paths if path.suffix != ".json"]
        for path in folder.rglob("*.json"):
            origin.put(str(path.relative_to(folder)), data=path.read_bytes(), latency=LATENCY)
        origin.put("-/counts", on_get=lambda o, _: o.replace(data=json.dumps(self.taken()).encode()))

    def _put(self, name: Path, path: Path) -> Object:
        return self._origin.put(str(name), data=path.read_bytes(), latency=LATENCY, on_get=self._begun)

    def _begun(self, shard: Object, request: Request) -> None:
        """Counts a transfer that begins while another of the same shard has not ended."""
        waiting = request.at - self._last.get(shard.name, -1.0) <= LATENCY
        self._together += request.method == "GET" and (waiting or shard.open > 0)
        self._last[shard.name] = request.at

    def taken(self) -> dict[str, int]:
        """The counts, which begin anew."""
        said = {
            "gets": sum(shard.gets for shard in self._shards),
            "sent": sum(shard.sent for shard in self._shards),
            "together": self._together,
        }
        self._together = 0
        self._origin.zero()
        return said


def main() -> None:
    """Serve until killed."""
    with Origin(link_bps=LINK_BPS, connection_bps=CONNECTION_BPS, new_loop=uvloop.new_event_loop) as origin:
        Counts(Path(sys.argv[1]), origin)
        print(origin.port, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
