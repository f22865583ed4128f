"""Origins whose objects somebody else's library reads pass the suite for origins.

fsspec on an FTP and an SFTP server, yt-dlp on a site with a page for each video. Each test starts processes that take a
second to load their library, so these are slow; `tests/integration` has the usual run's share.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cachedaemon.conformance import STALL, OriginSuite, Place, Then, nothing
from cachedaemon.conformance.place import Trait
from tests.fakes.file_servers import FileServer, Served, serving
from tests.fakes.origin import Origin, Status

pytestmark = pytest.mark.slow

_names = itertools.count()


@pytest.fixture(scope="module", params=["ftp", "sftp"])
def server(request: pytest.FixtureRequest) -> Iterator[FileServer]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, serving(request.param, Path(folder)) as one:
        yield one


class TestFsspec(OriginSuite):
    """On each server."""

    @pytest.fixture
    def place(self, server: FileServer) -> Iterator[Place]:
        made = Served(server, f"set-{next(_names)}")
        yield made
        made.up()


class Site(Place):
    """A page for each key, which shows a file."""

    settings: Mapping[str, object] = {"concurrency": 1}
    lacks: Mapping[Trait, str] = {
        "parts": "a page is opened anew for each request",
        "listing": "a site has no list of its videos",
    }

    def __init__(self, origin: Origin) -> None:
        self.origin, self.url = origin, f"ytdlp:{origin.url}watch/"
        self._files: dict[str, str] = {}

    def put(self, key: str, data: bytes) -> None:
        file = self._files.setdefault(key, f"files/{len(self._files)}.mp4")
        page = f"<html><head><title>A video</title></head><body><video src='/{file}'></video></body></html>"
        self.origin.put(f"watch/{key}", data=page.encode(), extra={"Content-Type": "text/html"})
        self.origin.put(file, data=data, etag=f'"{next(_names)}"')

    def refuse(self, key: str) -> None:
        self.origin.put(f"watch/{key}", always=Status(403))

    def down(self) -> None:
        self.origin.down()

    def up(self) -> None:
        self.origin.thaw()
        self.origin.up()

    def trickle(self, key: str) -> None:
        file = self.origin[self._files[key]]
        file.bps = file.size / (1.5 * STALL)

    def hang(self, key: str) -> None:
        self.origin.freeze()

    def cut(self, key: str, offset: int) -> Then:
        self.origin[self._files[key]].cut = [offset]
        return nothing

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.origin[self._files[key]].replace(data=data, etag='"changed"')


class TestVideos(OriginSuite):
    """On a site."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with Origin() as origin:
            made = Site(origin)
            yield made
            made.up()
