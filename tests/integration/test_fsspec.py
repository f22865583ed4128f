"""A daemon whose sources fsspec reads: sftp and ftp from real servers, anything else by fsspec's common calls."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.conformance import bytes_of, opened, read, read_part, stream_of
from cachedaemon.errors import Missing, OriginRefused, OriginUnavailable
from tests.fakes.daemon import Daemon
from tests.fakes.file_servers import USER, WORD, FileServer, Served, serving
from tests.fakes.waiting import until

SIZE = 3_000_000


@pytest.fixture(scope="module")
def sftp() -> Iterator[FileServer]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, serving("sftp", Path(folder)) as server:
        yield server


@pytest.fixture
def place(sftp: FileServer, folder: Path) -> Iterator[Served]:
    made = Served(sftp, folder.name)
    made.put("a.bin", bytes_of("a", SIZE))
    made.put("b.bin", bytes_of("b", SIZE))
    yield made
    made.up()


def options(folder: Path, **said: object) -> str:
    """Storage options in a file, as the configuration names it."""
    file = folder / "options.json"
    file.write_text(json.dumps(said, indent=2))
    return f"file:{file}"


def source(place: Served, credentials: str) -> dict[str, object]:
    url = place.server.url(f"/{place.folder.name}/", user=USER)
    return {"url": url, "credentials": credentials, "concurrency": 4}


def test_sftp_with_a_password_from_a_file(place: Served, folder: Path) -> None:
    """It is read again when it changes, appears nowhere, and a refusal is told as one; a cut transfer goes on."""
    known = str(place.server.known_hosts)
    credentials = options(folder, password=WORD, known_hosts=known)
    with Daemon({"s": source(place, credentials)}, fetch={"retries": 1}, log={"level": "debug"}) as daemon:
        place.server.turn(cut=SIZE // 2)
        assert daemon.path("s", "a.bin").read_bytes() == bytes_of("a", SIZE)
        assert daemon.acquire("s", "none.bin").code == "missing"
        options(folder, password="wr0ng-w0rd", known_hosts=known)
        refused = daemon.acquire("s", "b.bin")
        assert refused.code == "origin_refused"
        assert "s/b.bin: the server does not accept the credentials" in refused.body["error"]["message"]
        options(folder, password=WORD, known_hosts=known)
        assert daemon.path("s", "b.bin").read_bytes() == bytes_of("b", SIZE)
        said = daemon.log + str(daemon.status()) + str(daemon.api("GET", "/v1/hello").body) + str(refused.body)
        assert WORD not in said
        assert "wr0ng" not in said
        assert USER not in str(daemon.api("GET", "/v1/hello").body)
        assert daemon.metric("origin_requests_total", source="s", status="missing") == 1
        # Whoever gave up an idle connection in the meantime costs no try.
        place.server.turn(down=True)
        assert daemon.acquire("s", "c.bin").code == "origin_unavailable"
        place.server.turn()
        place.put("c.bin", b"new")
        assert daemon.path("s", "c.bin").read_bytes() == b"new"


def test_what_hangs_keeps_its_own_process_and_nothing_else(place: Served, folder: Path) -> None:
    """Bounded while many wait, killed when nobody does, gone with the daemon, after SIGKILL too."""
    place.put("warm.bin", b"warm")
    settings = source(place, options(folder, password=WORD, known_hosts=str(place.server.known_hosts)))
    with Daemon({"s": settings}, fetch={"stall_timeout": "60s"}, max_shards=0, max_bytes="1GB", check=False) as daemon:
        daemon.path("s", "warm.bin")
        place.server.turn(hang=True)
        job = daemon.prefetch("s", ["a.bin", "b.bin", *(f"{number}.bin" for number in range(10))])
        until(lambda: len(daemon.children()) >= 4, 20, "four processes that wait")
        assert daemon.acquire("s", "warm.bin").body["result"] == "hit"
        assert daemon.api("GET", f"/v1/jobs/{job}").body["state"] == "running"
        assert len(daemon.children()) <= 4 + 2
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 10
        until(lambda: not daemon.children(), 5, "the end of all processes")
        daemon.start()
        daemon.prefetch("s", ["a.bin"])
        until(daemon.children, 20, "a process that waits")
        os.kill(daemon.pid, signal.SIGKILL)
        until(lambda: not daemon.children(), 10, "the end of all processes after a SIGKILL")


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_server_whose_key_is_not_known_is_refused(place: Served, folder: Path) -> None:
    """Left to itself fsspec would take any key; `insecure` does."""
    async with opened(place.url, {"concurrency": 1}) as origin:
        with pytest.raises(OriginRefused, match="host key is not among the known hosts"):
            await read(origin, "a.bin")
    async with opened(place.url, {"insecure": True}) as origin:
        assert await read(origin, "a.bin") == bytes_of("a", SIZE)


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_listing_begins_where_the_url_ends(place: Served) -> None:
    """At the server's root, in a folder, within a name; and a folder that is not there is an outage."""
    name = place.folder.name
    expected = {"/": f"{name}/a.bin", f"/{name}/": "a.bin", f"/{name}": "/a.bin", f"/{name}/a": ".bin"}
    for path, key in expected.items():
        async with opened(place.server.url(path), place.settings) as origin:
            await origin.look()
            assert key in await origin.keys()
            assert await read(origin, key) == bytes_of("a", SIZE)
    async with opened(place.server.url("/nowhere/"), place.settings) as origin:
        for asked in (origin.look(), origin.keys(), read(origin, "a.bin")):
            with pytest.raises(OriginUnavailable, match="the source's folder is not there"):
                await asked


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_what_no_part_of_this_project_knows_is_read_by_common_calls(folder: Path) -> None:
    """Here members of a zip, whose CRC tells versions apart."""
    with zipfile.ZipFile(folder / "set.zip", "w") as archive:
        for key in ("a.bin", "deep/b c.bin"):
            archive.writestr(key, bytes_of(key, SIZE))
    credentials = options(folder, fo=str(folder / "set.zip"))
    async with opened("fsspec+zip:///", {"credentials": credentials}) as origin:
        assert await origin.keys() == ["a.bin", "deep/b c.bin"]
        assert await read(origin, "deep/b c.bin") == bytes_of("deep/b c.bin", SIZE)
        async with stream_of(origin, "a.bin") as stream:
            assert stream.validators.version
            assert await read_part(stream, 1_000_000, SIZE) == bytes_of("a.bin", SIZE)[1_000_000:]
        with pytest.raises(Missing):
            await read(origin, "none.bin")
