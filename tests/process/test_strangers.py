"""Somebody else on the machine, whom the configuration gives nothing; and what a key or the port for scraping may reach."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import somebody
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

GROUP = 60_100
SECRET = "5ecret5ecret"

TRIES = """
cache, sock = ARG["cache"], ARG["socket"]
def connect():
    with socket.socket(socket.AF_UNIX) as link: link.connect(sock)
def lock(path, how):
    number = os.open(path, os.O_RDONLY)
    fcntl.flock(number, how | fcntl.LOCK_NB)
shard = cache + "/shards/s/a.bin"
said = {
    "connect": tried(connect),
    "list": tried(os.listdir, cache),
    "stat": tried(os.stat, shard),
    "read": tried(open, shard),
    "pin": tried(lock, shard, fcntl.LOCK_SH),
    "block": tried(lock, shard, fcntl.LOCK_EX),
    "lock the daemon out": tried(lock, cache + "/daemon.lock", fcntl.LOCK_SH),
    "lock the socket": tried(lock, sock + ".lock", fcntl.LOCK_SH),
    "hold a plan": tried(os.listdir, cache + "/plans"),
    "know": tried(open, cache + "/daemon.json"),
    "write": tried(os.mkdir, cache + "/shards/t"),
    "replace": tried(os.rename, shard, "/tmp/cd-stolen"),
    "evict": tried(os.unlink, shard),
    "replace all": tried(os.rename, cache, cache + ".old"),
    "take the socket's place": tried(os.unlink, sock),
    "stop it": tried(os.kill, ARG["pid"], 15),
}
say(said)
"""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.put("a.bin", 1000)
        yield made


@pytest.mark.root
def test_a_stranger_can_do_nothing(origin: Origin) -> None:
    """Neither read, evict, replace, pin nor block: not one call that reaches the cache, its locks or the socket."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with Daemon({"s": origin.url}, server={"socket_group": str(GROUP)}) as daemon:
        path = daemon.path("s", "a.bin")
        arg = {"cache": str(daemon.cache), "socket": str(daemon.socket), "pid": daemon.pid}
        said: dict[str, str] = somebody.run(TRIES, arg)
        assert {what: how for what, how in said.items() if how not in {"EACCES", "EPERM"}} == {}
        assert path.exists()
        assert daemon.shards()[0]["leased"] is False


MEMBER = (
    TRIES.replace("say(said)", "")
    + """
with open(shard, "rb") as file: said["bytes"] = len(file.read())
said["ask"] = ask(sock, "POST", "/v1/acquire", {"source": "s", "key": "a.bin", "wait": 5})[0]
said["evict by name"] = ask(sock, "DELETE", "/v1/shards?source=s&key=a.bin")[0]
say(said)
"""
)


@pytest.mark.root
def test_a_reader_reads_and_leases_and_changes_nothing(origin: Origin) -> None:
    """One of the cache's group, which is no admin group: it may hold a shard, and take nothing away from others."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with Daemon({"s": origin.url}, server={"socket_group": str(GROUP)}) as daemon:
        path = daemon.path("s", "a.bin")
        arg = {"cache": str(daemon.cache), "socket": str(daemon.socket), "pid": daemon.pid}
        said: dict[str, Any] = somebody.run(MEMBER, arg, groups=[GROUP])
        assert (said["connect"], said["bytes"], said["ask"], said["evict by name"]) == ("done", 1000, 200, 403)
        assert said["pin"] == "done"
        for what in ("write", "replace", "evict", "replace all", "take the socket's place", "lock the daemon out"):
            assert said[what] in {"EACCES", "EPERM"}, what
        assert path.exists()


def odd_keys(origin: Origin, victim: Path) -> list[str]:
    """Keys that some library could take for another place than the source's."""
    host = origin.url.split("//")[1].strip("/")
    places = [f"http://{host}/stolen", f"//{host}/stolen", f"file://{victim}", str(victim), f"@{host}/stolen"]
    steps = ["../" * n + str(victim).lstrip("/") for n in (1, 4, 12)] + ["..", ".", "./.", "a/../../b", "/.."]
    coded = [step.replace("/", "%2f").replace(".", "%2e") for step in (*steps, *places)]
    backs = [
        "..\\..\\etc\\passwd",
        "\\\\host\\share",
        "a\x00b",
        f"{victim}\x00.bin",
        "a\r\nHost: x\r\n\r\n",
        "a?b#c",
        "?x",
        "#x",
        ":80/x",
    ]
    return [
        *places,
        *steps,
        *coded,
        *backs,
        f"x {host}/stolen HTTP/1.1",
        "~root/.ssh/id_rsa",
        "$HOME",
        "`id`",
        "\ud800",
    ]


@pytest.mark.parametrize("form", ["{key}", "set/{key}?sig=1"])
def test_no_key_names_another_place(origin: Origin, folder: Path, form: str) -> None:
    """Whatever a key holds: the origin is asked below the source's prefix, and no file outside of its folder is read."""
    victim = folder / "victim.txt"
    victim.write_text(SECRET)
    (data := folder / "data").mkdir()
    (data / "there.bin").write_text("of the source")
    other = Origin()
    prefix = form.partition("{")[0]
    with other, Daemon({"w": origin.url + form, "f": f"file://{data}/"}, fetch={"retries": 0}) as daemon:
        for key in odd_keys(other, victim):
            for source in ("w", "f"):
                body = json.dumps({"source": source, "key": key, "wait": 20}).encode()
                said = daemon.api("POST", "/v1/acquire", body)
                assert said.status in {400, 404, 502, 504}, (source, key, said)
                assert said.code in {"bad_request", "missing", "origin_refused"}, (source, key, said)
        assert other.log == []
        for request in origin.log:
            step = request.target.removeprefix("/" + prefix).partition("?")[0]
            assert request.target.startswith("/" + prefix), request.line
            assert not {".", ".."} & set(re.split(r"[/\\]", step)), request.line
        assert daemon.shards() == []


def test_the_port_shows_nothing_that_is_secret(origin: Origin, folder: Path) -> None:
    """Not in any answer, and none changes anything: other methods and paths are refused, other machines' names too."""
    token = folder / "the-token"
    token.write_text(f"Bearer {SECRET}")
    source = {"url": f"{origin.url}{{key}}?sig={SECRET}", "headers": {"Authorization": f"file:{token}"}}
    with Daemon({"s": source}, http=True) as daemon:
        daemon.path("s", "a.bin")
        calls = [
            ("GET", path) for path in ("/metrics", "/healthz", "/readyz", "/", "/v1/hello", "/v1/status", "/v1/shards")
        ]
        calls += [("GET", "/none"), ("HEAD", "/metrics"), ("OPTIONS", "*"), ("GET", "http://other.example/metrics")]
        calls += [(method, "/metrics") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")]
        calls += [("DELETE", "/v1/shards?source=s&key=a.bin"), ("POST", "/v1/prefetch")]
        said = {call: _asked(daemon, *call) for call in calls}
        for call, (status, text) in said.items():
            assert SECRET not in text, call
            assert str(token) not in text, call
            assert "sig=" not in text, call
            if call[0] not in {"GET", "HEAD"} or call[1].startswith("/v1/"):
                assert status in {400, 404, 405}, call
        assert said["GET", "/metrics"][0] == said["HEAD", "/metrics"][0] == 200
        assert {said["POST", "/metrics"][0], said["DELETE", "/metrics"][0]} == {405}
        assert len(daemon.shards()) == 1


def test_the_port_answers_to_its_own_names(origin: Origin) -> None:
    """A page in somebody's browser whose own name points here (DNS rebinding) is refused; scrapers and people are not."""
    with Daemon({"s": origin.url}, http=True) as daemon:
        for host in (
            "localhost",
            f"localhost:{daemon.port}",
            f"127.0.0.1:{daemon.port}",
            f"[::1]:{daemon.port}",
            "10.0.0.7",
        ):
            assert _asked(daemon, "GET", "/healthz", host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example", f"127.0.0.1.evil.example:{daemon.port}", "evil"):
            status, text = _asked(daemon, "GET", "/metrics", host)
            assert (status, json.loads(text)["error"]["code"]) == (403, "forbidden"), host


def _asked(daemon: Daemon, method: str, path: str, host: str = "localhost") -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as link:
        link.putrequest(method, path, skip_host=True)
        link.putheader("Host", host)
        link.endheaders()
        answer = link.getresponse()
        return answer.status, answer.read().decode()
