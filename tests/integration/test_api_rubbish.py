"""What is no request of the API, and peers that leave at once: an answer like every other, and not a line in the log."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.put("0.bin", 1000)
        yield made


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=10, http=True, log={"format": "json"}) as made:
        yield made


@contextlib.contextmanager
def quiet(daemon: Daemon) -> Iterator[None]:
    """Whatever is done meanwhile leaves nothing in the log, and the daemon as it was."""
    before, descriptors = daemon.log, daemon.descriptors()
    yield
    for _ in range(5):  # connections are taken in their order: those before have been dealt with
        assert daemon.api("GET", "/v1/hello").status == 200
    until(lambda: daemon.descriptors() <= descriptors, 20, "connections to be closed")
    assert daemon.log == before


def dialled(daemon: Daemon, *, tcp: bool = False) -> socket.socket:
    link = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    link.settimeout(20)
    link.connect(("127.0.0.1", daemon.port) if tcp else str(daemon.socket))
    return link


def told(link: socket.socket) -> tuple[int, dict[str, str], dict[str, str]]:
    """Status, header fields and error of the answer; the other side closes after it."""
    said = b""
    while piece := link.recv(65536):
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return int(line.split()[1]), headers, json.loads(body)["error"]


POST = b"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
RUBBISH = {
    "no HTTP": b"\xff\xfe\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(200),
    "a long line": b"GET " + b"/" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long field": b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000 + b"\r\n\r\n",
    "many fields": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    "an odd field": b"GET /healthz HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n",
    "an odd version": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "a length beside chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "an odd length": POST + b"Content-Length: -5\r\n\r\n",
}
BODIES = {
    "no gzip": POST + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
    "half of gzip": POST + b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + gzip.compress(b"{}" * 99)[:12],
    "an expectation": POST + b"Expect: miracles\r\nContent-Length: 0\r\n\r\n",
    "no body": POST + b"\r\n",
}


@pytest.mark.parametrize("what", [*RUBBISH, *BODIES])
def test_rubbish_is_answered_and_not_logged(daemon: Daemon, what: str) -> None:
    with quiet(daemon), contextlib.closing(dialled(daemon)) as link:
        link.sendall({**RUBBISH, **BODIES}[what])
        status, headers, error = told(link)
        assert (status, error["code"], error["retryable"]) == (400, "bad_request", False)
        assert error["message"]
        assert "\n" not in error["message"]
        assert headers["content-type"].startswith("application/json")
        assert headers["cachedaemon-generation"]


@pytest.mark.parametrize("what", RUBBISH)
def test_nor_is_it_where_metrics_are_scraped(daemon: Daemon, what: str) -> None:
    with quiet(daemon), contextlib.closing(dialled(daemon, tcp=True)) as link:
        link.sendall(RUBBISH[what])
        assert told(link)[2]["code"] == "bad_request"


@pytest.mark.parametrize("tcp", [False, True])
def test_no_body_is_unpacked(daemon: Daemon, *, tcp: bool) -> None:
    """What is small on its way must not become large here, wherever it comes in."""
    bomb = gzip.compress(bytes(30_000_000))
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" if tcp else POST
    before = peak(daemon)
    with quiet(daemon), contextlib.closing(dialled(daemon, tcp=tcp)) as link:
        link.sendall(head + f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode() + bomb)
        said = everything(link).decode()
    assert peak(daemon) < before + 20_000
    assert said.startswith("HTTP/1.1 200" if tcp else "HTTP/1.1 400")
    assert tcp or "the body has a Content-Encoding; allowed is none" in said


def peak(daemon: Daemon) -> int:
    """Of the daemon's memory, in KiB (VmHWM of proc_pid_status(5))."""
    [line] = [one for one in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1])


def everything(link: socket.socket) -> bytes:
    """Until the daemon hangs up."""
    return b"".join(iter(lambda: link.recv(65536), b""))


@pytest.mark.slow
def test_half_a_body_is_not_waited_for_for_ever(daemon: Daemon) -> None:
    """Ten seconds are enough for what comes from this machine."""
    with quiet(daemon), contextlib.closing(dialled(daemon)) as link:
        link.sendall(POST + b"Content-Length: 10\r\n\r\n{}")
        status, _, error = told(link)
    assert (status, error["code"]) == (400, "bad_request")
    assert "did not come to its end" in error["message"]


def test_a_malformed_chunk_ends_the_request(daemon: Daemon) -> None:
    """The asker waits for its answer, and does not wait for ever."""
    with quiet(daemon), contextlib.closing(dialled(daemon)) as link:
        link.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        link.sendall(b"zz\r\n")
        assert told(link)[2]["code"] == "bad_request"


LEAVES = {
    "events": b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
    "old events": b"GET /v1/events HTTP/1.0\r\n\r\n",
    "status": b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a body": b"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nabcde",
    "acquire": b'POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n{"source":"s","key":"0.bin","wait":10.50}',
    **RUBBISH,
}


@pytest.mark.parametrize("what", LEAVES)
def test_who_leaves_at_once_is_not_logged(daemon: Daemon, what: str) -> None:
    daemon.path("s", "0.bin")
    with quiet(daemon):
        for _ in range(20):
            with contextlib.closing(dialled(daemon)) as link:
                link.sendall(LEAVES[what])
