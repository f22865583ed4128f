"""Every call of the API: shapes, errors, bad input, connections."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import OrdinaryUser
from tests.fakes import content
from tests.fakes.api import Answer
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.waiting import until

SIZE = 10_000


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as made:
        for number in range(10):
            made.put(f"{number}.bin", SIZE)
        yield made


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    url = origin.url.replace("//", "//user:SECRET@") + "{key}?sig=SECRET"
    with Daemon({"s": url, "t": origin.url}, max_bytes="30MB", max_shards=50, http=True, fetch={"retries": 0}) as made:
        yield made


def error(answer: Answer, status: int, code: str, *, retryable: bool = False) -> str:
    """The message of an error that has this code and the shape of all errors."""
    assert (answer.status, answer.code) == (status, code), answer
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["cachedaemon-generation"]
    said = answer.body["error"]
    assert said["retryable"] is retryable
    assert "SECRET" not in said["message"]
    assert ("retry-after" in answer.headers) == (status == 503)
    return str(said["message"])


# ---- shapes


def test_hello(origin: Origin, daemon: Daemon) -> None:
    answer = daemon.api("GET", "/v1/hello")
    assert answer.status == 200
    assert answer.headers["cachedaemon-generation"]
    assert answer.body["protocol"] == 1
    assert answer.body["cache_dir"] == str(daemon.cache)
    assert answer.body["sources"]["s"] == {"url": origin.url + "{key}", "archives": "index", "direct": True}
    assert "SECRET" not in str(answer.body)


def test_acquire_misses_then_hits(daemon: Daemon) -> None:
    first, second = daemon.acquire("s", "0.bin"), daemon.acquire("s", "0.bin")
    assert set(first.body) == {"path", "size", "result"}
    assert (first.body["result"], second.body["result"]) == ("miss", "hit")
    assert first.body["path"] == second.body["path"]
    assert first.body["size"] == SIZE == os.stat(first.body["path"]).st_size


def test_those_who_ask_together_join(origin: Origin, daemon: Daemon) -> None:
    gate = Gate(100)
    shard = origin.put("joined.bin", SIZE, gate=gate)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(daemon.acquire, "s", "joined.bin") for _ in range(5)]
        until(lambda: daemon.status()["waiters"] == 5, 20, "five waiters")
        row = {"source": "s", "key": "joined.bin", "bytes": 0, "size": SIZE}
        until(lambda: daemon.status()["fetches"] == [row], 20, "the transfer with its size")
        assert daemon.status()["sources"]["s"]["fetching"] == 1
        gate.open()
        results = sorted(one.result().body["result"] for one in asked)
    assert results == ["joined"] * 4 + ["miss"]
    assert shard.gets == 1


def test_wait_0_asks_only_whether_it_is_here(origin: Origin, daemon: Daemon) -> None:
    shard = origin.put("cold.bin", SIZE)
    error(daemon.acquire("s", "cold.bin", wait=0), 504, "wait_expired", retryable=True)
    assert shard.gets == 0
    assert daemon.status()["fetches"] == []
    daemon.path("s", "cold.bin")
    assert daemon.acquire("s", "cold.bin", wait=0).body["result"] == "hit"


def test_prefetch_and_its_job(daemon: Daemon) -> None:
    answer = daemon.api("POST", "/v1/prefetch", {"source": "s", "keys": ["1.bin", "2.bin", "none.bin"]})
    assert answer.status == 202
    job = daemon.job(answer.body["job"])
    assert {name: job[name] for name in ("job", "state", "total", "done", "failed", "bytes")} == {
        "job": answer.body["job"],
        "state": "failed",
        "total": 3,
        "done": 2,
        "failed": 1,
        "bytes": 2 * SIZE,
    }
    [failed] = job["errors"]
    assert (failed["key"], failed["code"]) == ("none.bin", "missing")
    assert "s/none.bin" in failed["message"]
    again = daemon.job(daemon.prefetch("s", ["1.bin", "2.bin"]))
    assert (again["state"], again["done"]) == ("done", 2), "what is here counts as done"
    assert daemon.job(daemon.prefetch("s", []))["state"] == "done"


def test_plans(daemon: Daemon) -> None:
    put = {"source": "s", "keys": ["1.bin", "2.bin", "3.bin"], "position": 1, "holds": 2}
    answer = daemon.api("PUT", "/v1/plans/run-1.a", put)
    assert answer.status == 200
    file = answer.body["file"]
    with Path(file).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        [plan] = [one for one in daemon.status()["plans"] if one["id"] == "run-1.a"]
        assert (plan["source"], plan["keys"], plan["position"], plan["state"]) == ("s", 3, 1, "running")
        assert daemon.api("PUT", "/v1/plans/run-1.a", put).body["file"] == file, "the same id keeps the file"
        moved = {"source": "s", "used": [], "plan": "run-1.a", "position": 3}
        assert daemon.api("POST", "/v1/touch", moved).status == 204
        assert daemon.status()["plans"][0]["position"] == 3
        ended = daemon.api("DELETE", "/v1/plans/run-1.a")
        assert (ended.status, ended.body) == (204, None)
    error(daemon.api("DELETE", "/v1/plans/run-1.a"), 404, "not_found")
    error(daemon.api("POST", "/v1/touch", moved), 404, "not_found")


def test_shards_page_by_page(origin: Origin, daemon: Daemon) -> None:
    keys = sorted(["odd/ä b.bin", "odd/%2F.bin", 'odd/".bin', "odd/0.bin", "odd/~.bin"])
    for key in keys:
        origin.put(key, 100)
        daemon.path("t", key)
    [row] = daemon.shards("t", "odd/0")
    assert set(row) == {"source", "key", "size", "state", "leased", "last_used", "path"}
    assert (row["state"], row["leased"], row["size"]) == ("ready", False, 100)
    assert abs(row["last_used"] - time.time()) < 60
    with Path(row["path"]).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert daemon.shards("t", "odd/0")[0]["leased"] is True
    seen: list[str] = []
    after = ""
    while after is not None:
        page = daemon.api("GET", f"/v1/shards?source=t&prefix=odd/&limit=2&after={quote(after)}" if after else
                          "/v1/shards?source=t&prefix=odd/&limit=2").body  # fmt: skip
        assert len(page["shards"]) <= 2
        seen += [shard["key"] for shard in page["shards"]]
        after = page["next"]
    assert sorted(seen) == keys
    assert len(daemon.shards()) == daemon.status()["cache"]["shards"]


def test_status(daemon: Daemon) -> None:
    said = daemon.status()
    assert {"version", "uptime", "cache", "fetches", "waiters", "plans", "sources"} <= set(said)
    assert {"shards", "bytes", "max_shards", "max_bytes", "policy", "regret"} <= set(said["cache"])
    assert (said["cache"]["max_shards"], said["cache"]["max_bytes"]) == (50, 30_000_000)
    assert "SECRET" not in str(said)


def test_evict(daemon: Daemon) -> None:
    path = daemon.path("s", "4.bin")
    answer = daemon.evict("s", "4.bin")
    assert (answer.status, answer.body) == (204, None), "the daemon's own grace is no lease"
    assert not path.exists()
    error(daemon.evict("s", "4.bin"), 404, "not_found")
    error(daemon.evict("nosuch", "4.bin"), 404, "unknown_source")
    path = daemon.path("s", "4.bin")
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert "s/4.bin" in error(daemon.evict("s", "4.bin"), 409, "leased", retryable=True)
    assert daemon.evict("s", "4.bin").status == 204


def test_what_is_being_fetched_is_not_evicted(origin: Origin, daemon: Daemon) -> None:
    gate = Gate(100)
    origin.put("flying.bin", SIZE, gate=gate)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(daemon.acquire, "s", "flying.bin")
        until(gate.reached.is_set, 20, "the transfer")
        error(daemon.evict("s", "flying.bin"), 409, "leased", retryable=True)
        gate.open()
        assert asked.result().status == 200


def test_a_strangers_exclusive_lock_names_its_holder(daemon: Daemon) -> None:
    path = daemon.path("s", "5.bin")
    daemon.evict("s", "5.bin")
    path = daemon.path("s", "5.bin")
    with path.open() as held:
        until(lambda: _is_locked(held.fileno()), 30, "the end of the grace")
        said = error(daemon.acquire("s", "5.bin"), 409, "locked", retryable=True)
        assert str(os.getpid()) in said


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_touch_is_counted(daemon: Daemon) -> None:
    daemon.path("s", "6.bin")
    before, used = (
        daemon.metric("requests_total", source="s", result="hit"),
        daemon.shards("s", "6.bin")[0]["last_used"],
    )
    answer = daemon.api("POST", "/v1/touch", {"source": "s", "used": [["6.bin", 0], ["6.bin", 0.25]]})
    assert (answer.status, answer.body) == (204, None)
    assert daemon.metric("requests_total", source="s", result="hit") == before + 2
    assert daemon.shards("s", "6.bin")[0]["last_used"] >= used


# ---- errors


def test_every_error_has_its_code(origin: Origin, daemon: Daemon) -> None:
    origin.put("refused.bin", always=Status(403))
    origin.put("down.bin", always=Status(500))
    origin.put("busy.bin", always=Status(503, {"Retry-After": "7"}))
    origin.put("huge.bin", 50_000_000)
    origin.put("bad.zip", data=b"<html>not a zip</html>")
    origin.put("slow.bin", SIZE, gate=Gate(0))
    assert "'nosuch'" in error(daemon.acquire("nosuch", "a"), 404, "unknown_source")
    assert "s/none.bin" in error(daemon.acquire("s", "none.bin"), 404, "missing")
    assert "s/refused.bin" in error(daemon.acquire("s", "refused.bin"), 502, "origin_refused")
    answer = daemon.acquire("s", "bad.zip")
    assert "s/bad.zip" in error(answer, 502, "bad_archive")
    assert answer.body["error"]["reason"]
    assert "s/huge.bin" in error(daemon.acquire("s", "huge.bin"), 413, "too_large")
    assert "s/slow.bin" in error(daemon.acquire("s", "slow.bin", wait=0.3), 504, "wait_expired", retryable=True)
    assert "s/down.bin" in error(daemon.acquire("s", "down.bin"), 503, "origin_unavailable", retryable=True)
    answer = daemon.acquire("s", "busy.bin")
    error(answer, 503, "origin_unavailable", retryable=True)
    assert answer.headers["retry-after"] == "7"
    error(daemon.api("GET", "/v1/jobs/nosuch"), 404, "not_found")
    error(daemon.api("GET", "/v1/nosuch"), 404, "not_found")
    error(daemon.api("GET", "/"), 404, "not_found")
    assert "GET" in error(daemon.api("POST", "/v1/status", {}), 405, "method_not_allowed")
    error(daemon.api("GET", "/v1/acquire"), 405, "method_not_allowed")
    error(daemon.api("PATCH", "/v1/status"), 405, "method_not_allowed")


def test_a_full_cache_says_how_many_are_leased(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=2, grace="200ms") as daemon, contextlib.ExitStack() as stack:
        for key in ("0.bin", "1.bin"):
            held = stack.enter_context(daemon.path("s", key).open())
            fcntl.flock(held, fcntl.LOCK_SH)
        said = error(daemon.acquire("s", "2.bin", wait=1), 503, "cache_full", retryable=True)
        assert "2 of 2 shards are leased" in said


def test_no_space_is_507_and_leaves_nothing(origin: Origin) -> None:
    """What is to be left to others is more than there is."""
    origin.put("some.bin", 1 << 20)
    with Daemon({"s": origin.url}, min_free="99.999%", fetch={"retries": 0}) as daemon:
        answer = daemon.acquire("s", "some.bin", wait=5)
        assert answer.status in (507, 413)
        error(answer, answer.status, {507: "no_space", 413: "too_large"}[answer.status], retryable=answer.status == 507)
        daemon.audit()


@pytest.mark.root
def test_only_admins_evict_and_verify(origin: Origin, as_user: OrdinaryUser) -> None:
    """Uid 65534 is neither root, nor the daemon's user, nor in the admin group until it is named."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall((sys.argv[2] + ' HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n' + sys.argv[3]).encode());"
        "print(b''.join(iter(lambda: s.recv(4096), b'')).decode())"
    )
    verify = ("POST /v1/verify", "Content-Length: 2\r\n\r\n{}")
    evict = ("DELETE /v1/shards?source=s&key=0.bin", "\r\n")
    for group, statuses in (("root", ("403", "403")), (as_user.gid, ("202", "204"))):
        server = {"socket_mode": "0666", "admin_group": str(group)}
        with Daemon({"s": origin.url}, server=server) as daemon:
            daemon.path("s", "0.bin")
            for call, status in zip((verify, evict), statuses, strict=True):
                ran = as_user.run([sys.executable, "-c", code, daemon.socket, *call])
                assert ran.stdout.startswith(f"HTTP/1.1 {status}"), ran
                assert ("forbidden" in ran.stdout) == (status == "403")
            assert len(daemon.shards()) == (statuses[1] == "403")


def test_verify(daemon: Daemon) -> None:
    """What a job says; what was never here is told. The rest is `tests/process/test_verify.py`'s."""
    daemon.path("s", "0.bin")
    answer = daemon.api("POST", "/v1/verify", {"source": "s", "keys": ["0.bin", "none.bin"]})
    assert answer.status == 202
    said = daemon.job(answer.body["job"])
    names = {"job", "state", "total", "done", "failed", "bytes", "errors", "damaged", "fetched_again", "gone", "absent"}
    assert set(said) == names
    assert (said["state"], said["total"], said["done"], said["absent"], said["bytes"]) == ("failed", 2, 1, 1, SIZE)
    assert "body.source" in error(daemon.api("POST", "/v1/verify", {"keys": ["0.bin"]}), 400, "bad_request")
    assert "'../up'" in error(daemon.api("POST", "/v1/verify", {"source": "s", "keys": ["../up"]}), 400, "bad_request")
    for body in ({"source": "nosuch"}, {"source": "nosuch", "keys": []}):
        error(daemon.api("POST", "/v1/verify", body), 404, "unknown_source")


# ---- bad input

BODIES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/acquire", {"source": "s", "key": "0.bin", "wait": 1}),
    ("POST", "/v1/prefetch", {"source": "s", "keys": ["0.bin"]}),
    ("POST", "/v1/verify", {"source": "s", "keys": ["0.bin"]}),
    ("PUT", "/v1/plans/p", {"source": "s", "keys": ["0.bin"], "position": 0, "holds": 1}),
    ("POST", "/v1/touch", {"source": "s", "used": [["0.bin", 1.5]], "plan": "p", "position": 0}),
]


@pytest.mark.parametrize(("method", "path", "good"), BODIES)
def test_what_is_no_such_body_is_refused(daemon: Daemon, method: str, path: str, good: dict[str, Any]) -> None:
    texts = [b"", b"null", b"[]", b"{", b"{nope", b'"s"', b"\xff\xfe", b"1" * 5000, b"[" * 100_000, b'{"source": "s"']
    for text in texts:
        error(daemon.api(method, path, text), 400, "bad_request")
    for name in good:
        for wrong in (True, {"a": 1}, [[]]):
            answer = daemon.api(method, path, {**good, name: wrong})
            assert name in error(answer, 400, "bad_request"), (name, wrong)
        error(daemon.api(method, path, {**good, name: "half a \ud800 pair"}), 400, "bad_request")


@pytest.mark.parametrize("wait", [b"NaN", b"Infinity", b"-Infinity", b"-1", b"1e999", b"604801", b'"1"', b"true"])
def test_a_time_that_cannot_be_meant(daemon: Daemon, wait: bytes) -> None:
    answer = daemon.api("POST", "/v1/acquire", b'{"source": "s", "key": "0.bin", "wait": ' + wait + b"}")
    assert "wait" in error(answer, 400, "bad_request")


@pytest.mark.parametrize("age", [b"NaN", b"1e308", b"Infinity", b"-1", b'"1"', b"null"])
def test_an_age_that_cannot_be_meant_ends_nobody(daemon: Daemon, age: bytes) -> None:
    daemon.path("s", "0.bin")
    answer = daemon.api("POST", "/v1/touch", b'{"source": "s", "used": [["0.bin", ' + age + b"]]}")
    assert "used" in error(answer, 400, "bad_request")
    assert daemon.acquire("s", "0.bin").status == 200


@pytest.mark.parametrize("key", ["", "..", "a/../b", ".", "nul\0", "x" * 5000, "\ud800"])
def test_an_impossible_key(daemon: Daemon, key: str) -> None:
    error(daemon.acquire("s", key), 400, "bad_request")


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "limit=99999999999", "limit=٣", "after=nonsense"])
def test_an_impossible_page(daemon: Daemon, query: str) -> None:
    error(daemon.api("GET", f"/v1/shards?{quote(query, safe='=')}"), 400, "bad_request")
    error(daemon.api("GET", "/v1/shards?source=nosuch"), 404, "unknown_source")
    error(daemon.api("DELETE", "/v1/shards?source=s"), 400, "bad_request")


@pytest.mark.parametrize("name", ["-a", "x" * 65, ".hidden", "a%20b", "%C3%A4", "a%2Fb"])
def test_an_impossible_plan(daemon: Daemon, name: str) -> None:
    answer = daemon.api("PUT", f"/v1/plans/{name}", {"source": "s", "keys": []})
    assert answer.status in (400, 404)


def test_positions_and_holds_that_cannot_be(daemon: Daemon) -> None:
    plan = {"source": "s", "keys": ["0.bin"]}
    for wrong in ({"position": 2}, {"position": -1}, {"holds": 0}, {"holds": -5}, {"position": 0.5}):
        error(daemon.api("PUT", "/v1/plans/p", {**plan, **wrong}), 400, "bad_request")
    error(daemon.api("PUT", "/v1/plans/p", {"source": "s", "keys": ["..", ""]}), 400, "bad_request")


def test_members_that_nobody_knows_are_ignored(daemon: Daemon) -> None:
    """A newer client may say more than this daemon knows."""
    body = {"source": "s", "key": "0.bin", "wait": 5, "color": "blue", "nested": {"a": [1]}}
    assert daemon.api("POST", "/v1/acquire", body).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    call=st.sampled_from(BODIES),
    members=st.dictionaries(
        st.sampled_from(["source", "key", "keys", "wait", "used", "plan", "position", "holds"]), JSON
    ),
    keep=st.booleans(),
)
def test_no_body_makes_the_daemon_fail(
    daemon: Daemon,
    call: tuple[str, str, Any],
    members: dict[str, Any],
    keep: bool,  # noqa: FBT001
) -> None:
    method, path, good = call
    body = {**(good if keep else {}), **members}
    if isinstance(body.get("wait"), int | float):
        body["wait"] = min(body["wait"], 0.05)
    answer = daemon.api(method, path, body)
    assert answer.status < 500 or answer.code in ("wait_expired", "origin_unavailable"), answer
    if answer.status >= 400:
        assert answer.body["error"]["message"]


def test_a_huge_body_is_refused_before_it_is_read(daemon: Daemon) -> None:
    with contextlib.closing(daemon.connection()) as connection:
        connection.putrequest("POST", "/v1/acquire")
        connection.putheader("Content-Length", str(10 << 30))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 400
        assert "too long" in json.loads(answer.read())["error"]["message"]


def test_a_huge_chunked_body_is_refused_while_it_is_read(daemon: Daemon) -> None:
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with contextlib.closing(daemon.connection()) as connection:
        connection.connect()
        connection.sock.sendall(b"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(80):
                connection.sock.sendall(piece)
        with contextlib.suppress(ConnectionResetError):
            assert b" 400 " in connection.sock.recv(100)
    assert daemon.api("GET", "/v1/hello").status == 200


def test_what_is_no_http_harms_nobody(daemon: Daemon) -> None:
    for text in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01" * 50,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ):
        with contextlib.closing(daemon.connection()) as connection:
            connection.connect()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sock.sendall(text)
                connection.sock.shutdown(socket.SHUT_WR)
                while connection.sock.recv(65536):
                    pass
    assert daemon.api("GET", "/v1/hello").status == 200


# ---- connections


def test_one_connection_carries_many_calls(daemon: Daemon) -> None:
    with contextlib.closing(daemon.connection()) as connection:
        for _ in range(20):
            connection.request("GET", "/v1/hello")
            assert connection.getresponse().read()
        connection.request("GET", "/v1/nosuch")
        assert connection.getresponse().read()
        connection.request("GET", "/v1/hello")
        assert connection.getresponse().status == 200, "an error ends no connection"


def test_pipelined_calls_are_answered_in_order(daemon: Daemon) -> None:
    paths = ["/v1/hello", "/healthz", "/v1/nosuch", "/v1/status"]
    with contextlib.closing(daemon.connection()) as connection:
        connection.connect()
        text = "".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths)
        connection.sock.sendall(text.encode())
        said = [_next(connection.sock) for _ in paths]
    assert [status for status, _ in said] == [200, 200, 404, 200]
    assert ["protocol" in said[0][1], "reasons" in said[1][1], "fetches" in said[3][1]] == [True] * 3


def _next(link: socket.socket) -> tuple[int, Any]:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += link.recv(1)
    length = next(int(line[16:]) for line in head.decode().split("\r\n") if line.lower().startswith("content-length: "))
    body = b""
    while len(body) < length:
        body += link.recv(length - len(body))
    return int(head[9:12]), json.loads(body)


def test_an_asker_who_leaves_in_mid_wait_is_forgotten(origin: Origin, daemon: Daemon) -> None:
    shard = origin.put("gone.bin", SIZE, gate=Gate(100))
    with contextlib.closing(daemon.connection()) as stays, contextlib.closing(daemon.connection()) as leaves:
        for connection in (stays, leaves):
            connection.request("POST", "/v1/acquire", json.dumps({"source": "s", "key": "gone.bin"}))
        until(lambda: daemon.status()["waiters"] == 2, 20, "two waiters")
        leaves.close()
        until(lambda: daemon.status()["waiters"] == 1, 20, "one waiter")
        assert shard.gate is not None
        shard.gate.open()
        assert stays.getresponse().status == 200
    assert shard.gets == 1
    assert content.matches(daemon.path("s", "gone.bin"), "gone.bin", SIZE)


def test_events_come_as_they_happen(origin: Origin, daemon: Daemon) -> None:
    origin.put("event.bin", SIZE)
    with contextlib.closing(daemon.connection(20)) as connection, contextlib.closing(daemon.connection(20)) as slow:
        slow.request("GET", "/v1/events")
        connection.request("GET", "/v1/events")
        answer = connection.getresponse()
        assert answer.getheader("content-type") == "text/event-stream"
        assert answer.readline().startswith(b":")
        daemon.path("s", "event.bin")
        daemon.evict("s", "event.bin")
        daemon.acquire("s", "none.bin")
        events = [_event(answer) for _ in range(3)]
    assert [name for name, _ in events] == ["ready", "evicted", "failed"]
    assert events[0][1]["source"] == "s"
    assert events[0][1]["key"] == "event.bin"
    assert events[2][1]["code"] == "missing"
    assert "SECRET" not in str(events)


def _event(answer: http.client.HTTPResponse) -> tuple[str, Any]:
    name = ""
    while True:
        line = answer.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        if line.startswith("data: "):
            return name, json.loads(line[6:])


# ---- the other listener


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_answer_on_both_listeners(daemon: Daemon, method: str) -> None:
    for path in ("/metrics", "/healthz", "/readyz"):
        assert daemon.api(method, path).status == 200
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status == 200
            assert bool(answer.read()) == (method == "GET")
    assert daemon.api("GET", "/healthz").body == {"status": "ok", "reasons": {}}


def test_nothing_else_answers_on_tcp(daemon: Daemon) -> None:
    for method, path in (
        ("GET", "/v1/status"),
        ("POST", "/v1/acquire"),
        ("DELETE", "/v1/shards"),
        ("POST", "/metrics"),
    ):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as connection:
            connection.request(method, path)
            assert connection.getresponse().status in (404, 405)


def test_the_description_names_every_route_that_answers(daemon: Daemon) -> None:
    described = daemon.api("GET", "/v1/openapi.json").body
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        on_the_socket = any(one["url"] == "http://localhost" for one in methods.pop("servers"))
        for method in methods:
            if path != "/v1/events" and on_the_socket:
                answer = daemon.api(method.upper(), path.format(job="nosuch", id="nosuch"))
                assert answer.status != 405, (method, path)
                assert answer.code != "not_found" or "nothing answers" not in answer.body["error"]["message"]
