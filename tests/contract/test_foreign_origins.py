"""Origins that read with fsspec pass the suite for origins: on an FTP and an SFTP server."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.conformance import OriginSuite, Place
from tests.fakes.file_servers import FileServer, Served, serving

_names = itertools.count()


@pytest.fixture(scope="module", params=["ftp", "sftp"])
def server(request: pytest.FixtureRequest) -> Iterator[FileServer]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, serving(request.param, Path(folder)) as one:
        yield one


class TestForeign(OriginSuite):
    """On each server."""

    @pytest.fixture
    def place(self, server: FileServer) -> Iterator[Place]:
        made = Served(server, f"set-{next(_names)}")
        yield made
        made.up()
