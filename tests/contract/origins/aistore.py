"""A bucket of an AIStore cluster, on the stand-in for one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cachedaemon.conformance import STALL, Place, Then, nothing
from tests.fakes.ais import Cluster
from tests.fakes.ais_object import Bucket, Stored

BUCKET = Bucket("b")
PREFIX = "a set/"


class AisBucket(Place):
    """Objects under a prefix, behind a gateway that asks for a token."""

    url = f"ais://{BUCKET.name}/{PREFIX}"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.token = "t0ken"
        cluster.strict = True
        cluster.put(BUCKET, "beside it.bin", b"not of the source")
        self.settings = {"endpoint": cluster.url, "credentials": "t0ken"}

    def _at(self, key: str) -> Stored:
        return self.cluster.buckets[BUCKET][PREFIX + key]

    def put(self, key: str, data: bytes) -> None:
        self.cluster.put(BUCKET, PREFIX + key, data)

    def refuse(self, key: str) -> None:
        self.cluster.put(BUCKET, PREFIX + key, b"", always=403)

    def down(self) -> None:
        self.cluster.down()

    def up(self) -> None:
        self.cluster.up()

    def trickle(self, key: str) -> None:
        self._at(key).bps = len(self._at(key).data) / (1.5 * STALL)

    def hang(self, key: str) -> None:
        """The gateway; a target may be silent for longer (see `test_ais.py`)."""
        self.cluster.freeze("gateway")

    def cut(self, key: str, offset: int) -> Then:
        self._at(key).cut = [offset]
        return nothing

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.put(key, data)


@contextlib.contextmanager
def ais_bucket(_: Path, __: object) -> Iterator[Place]:
    """`ais`; with one target, so that a read needs as many connections as the one before."""
    with Cluster(targets=1) as cluster:
        yield AisBucket(cluster)
