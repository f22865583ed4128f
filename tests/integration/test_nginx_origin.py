"""A real web server as origin: nginx."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import content, packing
from tests.fakes.daemon import Daemon, free_port
from tests.fakes.waiting import until

CONFIG = """
worker_processes 1; daemon off; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {home}/access.log;
  {temp}
  default_type application/octet-stream;
  server {{
    listen 127.0.0.1:{port};
    root {home}/www;
    location /asked/ {{ alias {home}/www/; }}
    location /forbidden/ {{ return 403; }}
    location /busy/ {{ add_header Retry-After 1 always; return 429; }}
    location /silent/ {{ return 444; }}
    location /down/ {{ return 503; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
    location /coded/ {{ alias {home}/www/; gzip_static always; }}
    location /limited/ {{ alias {home}/www/; limit_rate 2m; }}
    location /throttled/ {{ alias {home}/www/; limit_rate 4m; }}
    location /whole/ {{ alias {home}/www/; limit_rate 20m; max_ranges 0; }}
    location /signed/ {{ if ($request_uri != "/signed/set%27s/?sig=a%2Fb%2Bc%3D&key=data.zip") {{ return 403; }} rewrite ^ /data.zip; }}
  }}
}}
"""
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx:
    """One server with its folder; `www` holds the objects."""

    def __init__(self, home: Path) -> None:
        self.home, self.www, self.port = home, home / "www", free_port()
        self.url = f"http://127.0.0.1:{self.port}/"

    def answers(self) -> list[tuple[str, int]]:
        """Request lines so far, and the status of each answer."""
        lines = (line.split('"') for line in (self.home / "access.log").read_text().splitlines())
        return [(line[1], int(line[2].split()[0])) for line in lines]

    def requests(self) -> list[str]:
        """Request lines so far."""
        return [request for request, _ in self.answers()]


@contextlib.contextmanager
def running(home: Path) -> Iterator[Nginx]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    server = Nginx(home)
    server.www.mkdir()
    home.chmod(0o755)
    temp = " ".join(f"{kind}_temp_path {home}/{kind};" for kind in KINDS)
    (home / "nginx.conf").write_text(CONFIG.format(home=home, temp=temp, port=server.port))
    command = ["nginx", "-p", str(home), "-c", str(home / "nginx.conf"), "-e", str(home / "error.log")]
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    process = subprocess.Popen([*command, *user], start_new_session=True)
    try:
        until(lambda: (home / "pid").exists() or process.poll() is not None, 20, "nginx")
        yield server
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with running(tmp_path_factory.mktemp("nginx")) as server:
        members = {f"{n}.jpg": content.data(str(n), 5000) for n in range(20)}
        (server.www / "data.zip").write_bytes(packing.zip_bytes(members))
        content.write(server.www / "big.bin", "big", 40 << 20)
        plain = content.data("coded", 3 << 20)
        (server.www / "coded.tar").write_bytes(packing.tar_bytes({"a": plain}))
        (server.www / "coded.tar.gz").write_bytes(gzip.compress((server.www / "coded.tar").read_bytes()))
        yield server


@pytest.fixture(scope="module")
def daemon(nginx: Nginx) -> Iterator[Daemon]:
    places = ("forbidden", "busy", "silent", "down", "moved", "coded", "limited", "throttled", "whole")
    sources: dict[str, object] = {"top": nginx.url, **{name: f"{nginx.url}{name}/" for name in places}}
    sources["signed"] = f"{nginx.url}signed/set%27s/?sig=a%2Fb%2Bc%3D&key={{key}}"
    sources["asked"] = {"url": f"{nginx.url}asked/", "revalidate": "always"}
    with Daemon(sources, fetch={"retries": 1}) as made:  # type: ignore[arg-type]
        yield made


@pytest.mark.parametrize("source", ["top", "moved", "limited", "signed"])
def test_a_shard_comes_whole(nginx: Nginx, daemon: Daemon, source: str) -> None:
    """C-10: what is signed arrives as it was written."""
    assert daemon.path(source, "data.zip").read_bytes() == (nginx.www / "data.zip").read_bytes()


def test_a_large_one_too(nginx: Nginx, daemon: Daemon) -> None:
    assert content.matches(daemon.path("top", "big.bin"), "big", 40 << 20)


def test_a_large_one_from_a_server_that_throttles_each_connection_comes_in_parts(nginx: Nginx, daemon: Daemon) -> None:
    assert content.matches(daemon.path("throttled", "big.bin"), "big", 40 << 20)
    statuses = [status for request, status in nginx.answers() if "/throttled/big.bin" in request]
    assert statuses.count(206) >= 2
    assert set(statuses) <= {200, 206, 499}


def test_a_server_without_ranges_is_asked_once_more_at_most(nginx: Nginx, daemon: Daemon) -> None:
    """C-03: `max_ranges 0` answers 200."""
    assert content.matches(daemon.path("whole", "big.bin"), "big", 40 << 20)
    statuses = [status for request, status in nginx.answers() if "/whole/big.bin" in request]
    assert set(statuses) == {200}
    assert len(statuses) <= 2


def test_what_has_not_changed_is_not_sent_again(nginx: Nginx, daemon: Daemon) -> None:
    """C-06: by the server's own ETag, of time and size."""
    (nginx.www / "fresh.bin").write_bytes(b"one")
    first = daemon.path("asked", "fresh.bin")
    assert daemon.path("asked", "fresh.bin") == first
    (nginx.www / "fresh.bin").write_bytes(b"two!")
    assert daemon.path("asked", "fresh.bin").read_bytes() == b"two!"
    assert first.read_bytes() == b"one" or not first.exists()
    statuses = [status for request, status in nginx.answers() if "/asked/fresh.bin" in request]
    assert statuses == [200, 304, 200]


def test_missing_and_refused(daemon: Daemon) -> None:
    answer = daemon.acquire("top", "none.zip")
    assert (answer.status, answer.code) == (404, "missing")
    answer = daemon.acquire("forbidden", "data.zip")
    assert (answer.status, answer.code) == (502, "origin_refused")
    assert "forbidden/data.zip" in answer.body["error"]["message"]


@pytest.mark.parametrize(("source", "cause"), [("down", "503"), ("silent", "closed the connection")])
def test_unavailable_after_the_tries(nginx: Nginx, daemon: Daemon, source: str, cause: str) -> None:
    """`return 444` closes the connection without a word."""
    answer = daemon.acquire(source, "x.bin")
    assert (answer.status, answer.code) == (503, "origin_unavailable")
    assert cause in answer.body["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1


def test_too_many_requests_are_asked_again_when_the_server_said(nginx: Nginx, daemon: Daemon) -> None:
    answer = daemon.acquire("busy", "x.bin")
    assert (answer.status, answer.code) == (503, "origin_unavailable")
    assert answer.headers["retry-after"] == "1", "what the origin asked for is passed on"
    assert nginx.requests().count("GET /busy/x.bin HTTP/1.1") > 1


def test_a_stored_coding_is_taken_off(nginx: Nginx, daemon: Daemon) -> None:
    """C-08: `gzip_static always` sends the .gz beside the file, whatever was asked for."""
    assert daemon.path("coded", "coded.tar").read_bytes() == (nginx.www / "coded.tar").read_bytes()
