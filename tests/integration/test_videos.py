"""A daemon whose source yt-dlp reads, from a site of the test's own."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SIZE = 3_000_000
PAGE = "<html><head><title>A video</title></head><body><video src='{}'></video></body></html>"


@pytest.fixture
def site() -> Iterator[Origin]:
    with Origin() as origin:
        origin.put("files/a.mp4", data=content.data("a", SIZE))
        pages = {
            "a": "/files/a.mp4",
            "inner": "http://169.254.169.254/latest/a.mp4",
        }
        for key, file in pages.items():
            origin.put(f"watch/{key}", data=PAGE.format(file).encode(), extra={"Content-Type": "text/html"})
        origin.put("watch/sent", redirect="http://127.0.0.1:9/page")
        origin.put("watch/empty", data=b"<html></html>", extra={"Content-Type": "text/html"})
        yield origin


def started(daemon: Daemon) -> list[int]:
    """Processes that read a video."""
    return daemon.helpers("foreign.videos")


def test_a_video_its_failures_and_its_process(site: Origin) -> None:
    """One process a transfer, which ends with it; no page leads into the node's own network; nothing secret is said."""
    source = {"url": f"ytdlp:{site.url.replace('//', '//user:w0rd@')}watch/", "concurrency": 2}
    with Daemon({"v": source}, fetch={"retries": 0}, log={"level": "debug"}) as daemon:
        assert daemon.path("v", "a", wait=60).read_bytes() == content.data("a", SIZE)
        told = {key: daemon.acquire("v", key, wait=60) for key in ("inner", "sent", "empty", "none", "../x")}
        assert {key: one.code for key, one in told.items()} == {
            "inner": "origin_refused",
            "sent": "origin_refused",
            "empty": "origin_refused",
            "none": "missing",
            "../x": "bad_request",
        }
        for key in ("inner", "sent"):
            message = told[key].body["error"]["message"]
            assert message == f"v/{key}: the page leads to an address that is not public"
        assert "finds no video" in told["empty"].body["error"]["message"]
        hello = daemon.api("GET", "/v1/hello").body
        assert hello["sources"]["v"]["url"] == f"ytdlp:{site.url}watch/"
        assert "w0rd" not in f"{daemon.log}{hello}{told}"
        until(lambda: not started(daemon), 5, "the end of each process with its transfer")


IN_PARTS = """
import hashlib, sys
from cachedaemon.foreign.videos import Finder, Video, options
finder = Finder(options({"insecure": False, "proxy": None, "timeout": 10}), lambda: None)
video = Video(finder, {"url": sys.argv[1], "downloader_options": {"http_chunk_size": 1_000_000}})
sha = hashlib.sha256()
for piece in video.pieces():
    sha.update(piece)
print(video.state["size"], sha.hexdigest())
"""


def test_a_site_that_wants_small_requests_gets_them(site: Origin) -> None:
    """A file in several parts of one version; another version in the middle is noticed."""
    command = [sys.executable, "-c", IN_PARTS, site.at("files/a.mp4")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(SIZE), hashlib.sha256(content.data("a", SIZE)).hexdigest()]
    assert site["files/a.mp4"].gets == 3
    site["files/a.mp4"].on_get = lambda file, _: file.replace(data=file.data, etag=f'"{file.gets}"')
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "changed while it was read" in ran.stderr


def test_whoever_leaves_ends_the_process(site: Origin) -> None:
    """Nobody waits any more, so yt-dlp is killed in the middle of the file; nothing of it is on the disk."""
    site["files/a.mp4"].bps = 100_000
    with Daemon({"v": f"ytdlp:{site.url}watch/"}) as daemon:
        connection = daemon.connection()
        connection.request("POST", "/v1/acquire", b'{"source": "v", "key": "a", "wait": 60}')
        until(lambda: daemon.metric("origin_bytes_total", source="v") > 0, 30, "the first bytes")
        [process] = started(daemon)
        environ = Path(f"/proc/{process}/environ").read_text().split("\0")
        assert {re.match(r"\w*", line)[0] for line in environ if line} == {"HOME", "PATH", "PYTHONPATH", "PYTHONUTF8"}  # type: ignore[index]
        held = {str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir()}
        assert not [path for path in held if str(daemon.home) in path], "it holds nothing of the cache"
        began = time.monotonic()
        connection.close()
        until(lambda: not started(daemon), 5, "the end of the process")
        assert time.monotonic() - began < 5
