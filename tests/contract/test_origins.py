"""Every origin of this distribution passes the suite for origins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.conformance import OriginSuite, Place
from tests.contract.origins.places import PLACES
from tests.fakes.fusefs import FuseFs, fuse_fs


@pytest.fixture(scope="module")
def fuse() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, fuse_fs(Path(folder)) as mount:
        yield mount


class TestOrigins(OriginSuite):
    """On each kind of place."""

    @pytest.fixture(params=list(PLACES))
    def place(self, request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
        with PLACES[request.param](folder, lambda: request.getfixturevalue("fuse")) as made:
            yield made
            made.up()
