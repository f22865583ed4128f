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
    location /forbidden/ {{ return 403; }}
    location /busy/ {{ add_header Retry-After 2 always; return 429; }}
    location /silent/ {{ return 444; }}
    location /down/ {{ return 503; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
    location /coded/ {{ alias {home}/www/; gzip_static always; }}
    location /limited/ {{ alias {home}/www/; limit_rate 2m; }}
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

    def requests(self) -> list[str]:
        """Request lines so far."""
        return [line.split('"')[1] for line in (self.home / "access.log").read_text().splitlines()]


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
    places = ("forbidden", "busy", "silent", "down", "moved", "coded", "limited")
    sources: dict[str, str] = {"top": nginx.url, **{name: f"{nginx.url}{name}/" for name in places}}
    sources["signed"] = f"{nginx.url}signed/set%27s/?sig=a%2Fb%2Bc%3D&key={{key}}"
    with Daemon(sources, fetch={"retries": 1}) as made:
        yield made


@pytest.mark.parametrize("source", ["top", "moved", "limited", "signed"])
def test_a_shard_comes_whole(nginx: Nginx, daemon: Daemon, source: str) -> None:
    assert daemon.path(source, "data.zip").read_bytes() == (nginx.www / "data.zip").read_bytes()


def test_a_large_one_too(nginx: Nginx, daemon: Daemon) -> None:
    assert content.matches(daemon.path("top", "big.bin"), "big", 40 << 20)


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
    assert answer.headers["retry-after"] == "2", "what the origin asked for is passed on"
    assert nginx.requests().count("GET /busy/x.bin HTTP/1.1") == 2


def test_a_stored_coding_is_taken_off(nginx: Nginx, daemon: Daemon) -> None:
    """C-08: `gzip_static always` sends the .gz beside the file, whatever was asked for."""
    assert daemon.path("coded", "coded.tar").read_bytes() == (nginx.www / "coded.tar").read_bytes()
