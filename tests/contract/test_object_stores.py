"""Object stores pass the suite for origins: real servers, behind a proxy that can misbehave."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import pytest

from cachedaemon.conformance import STALL, OriginSuite, Place, Then, nothing
from tests.fakes import stores
from tests.fakes.between import Between, answer
from tests.fakes.stores import BUCKET, Running

STORES = {"moto": "s3", "fake_gcs": "gs", "azurite": "az"}
_tests = itertools.count()


class Bucket(Place):
    """A prefix of its own in a real store."""

    impossible: Collection[str] = {"tab\there", "new\nline"}

    def __init__(self, store: str, running: Running, proxy: Between) -> None:
        scheme = STORES[store]
        self.running, self.proxy = running, proxy
        self.prefix = f"{next(_tests)}/set/"
        self.url = f"{scheme}://{BUCKET}/{self.prefix}"
        path = f"/{stores.ACCOUNT}" if scheme == "az" else ""
        self.settings = {"endpoint": proxy.url + path, **stores.SETTINGS[scheme]}
        self._sizes: dict[str, int] = {}

    def put(self, key: str, data: bytes) -> None:
        self._sizes[key] = len(data)
        self.running.put(self.prefix + key, data)

    def refuse(self, key: str) -> None:
        self.proxy.rule(key, answer=answer(403, "AccessDenied"))

    def down(self) -> None:
        self.proxy.down()

    def up(self) -> None:
        self.proxy.up()

    def trickle(self, key: str) -> None:
        self.proxy.rule(key, bps=self._sizes[key] / (1.5 * STALL))

    def hang(self, key: str) -> None:
        self.proxy.freeze()

    def cut(self, key: str, offset: int) -> Then:
        self.proxy.rule(key, cut=offset, times=1)
        return nothing

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.put(key, data)


class TestObjectStores(OriginSuite):
    """On each kind of store."""

    @pytest.fixture(params=["moto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fake_gcs", "azurite"))])
    def place(self, request: pytest.FixtureRequest) -> Iterator[Place]:
        running = request.getfixturevalue(request.param)
        with Between(running.url, renames=request.param == "fake_gcs") as proxy:
            made = Bucket(request.param, running, proxy)
            yield made
            made.up()
