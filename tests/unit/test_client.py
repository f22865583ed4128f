"""The client's parts without a daemon: settings, errors, places, what a daemon vouches for, connections, patience."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import gc
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cachedaemon_client
from cachedaemon_client import ShardCache, aio, errors, places, view
from cachedaemon_client.connection import Connection, Pause, call
from cachedaemon_client.folder import OpenFolder
from cachedaemon_client.plan import Plan
from tests.fakes.waiting import until
from tests.unit.scripted import Said, answer, error, scripted

PACKAGE = Path(cachedaemon_client.__file__).parent

# --- errors

CODES = {
    "missing": (errors.ShardMissing, FileNotFoundError),
    "unknown_source": (errors.SourceUnknown, Exception),
    "forbidden": (errors.Refused, PermissionError),
    "bad_request": (errors.BadRequest, ValueError),
    "origin_refused": (errors.OriginFailed, Exception),
    "origin_unavailable": (errors.OriginFailed, Exception),
    "corrupt": (errors.Corrupt, Exception),
    "bad_archive": (errors.BadArchive, Exception),
    "cache_full": (errors.CacheFull, Exception),
    "too_large": (errors.TooLarge, Exception),
    "no_space": (errors.NoSpace, Exception),
    "wait_expired": (errors.WaitExpired, TimeoutError),
    "stopping": (errors.DaemonUnavailable, ConnectionError),
    "locked": (errors.CacheError, Exception),
    "leased": (errors.CacheError, Exception),
    "a_code_of_tomorrow": (errors.CacheError, Exception),
}


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_its_class(code: str) -> None:
    kind, builtin = CODES[code]
    said = {"error": {"code": code, "message": "s/k: why", "retryable": True, "reason": "crc", "member": "m"}}
    one = errors.from_answer(500, said, "s", "k")
    assert type(one) is kind
    assert isinstance(one, builtin)
    assert (str(one), one.code, one.source, one.key, one.retryable) == ("s/k: why", code, "s", "k", True)
    if isinstance(one, errors.BadArchive):
        assert (one.reason, one.member) == ("crc", "m")


def every_error() -> Iterator[errors.CacheError]:
    for name in cachedaemon_client.__all__:
        kind = getattr(cachedaemon_client, name)
        if isinstance(kind, type) and issubclass(kind, errors.CacheError):
            yield kind("words", code="c", source="s", key="k", retryable=True)
    yield errors.BadArchive("words", reason="crc", member="m", code="bad_archive", source="s", key="k")


@pytest.mark.parametrize("one", list(every_error()), ids=lambda e: type(e).__name__)
def test_errors_travel_between_processes_whole(one: errors.CacheError) -> None:
    for other in (pickle.loads(pickle.dumps(one)), copy.copy(one)):
        assert type(other) is type(one)
        assert other.__dict__ == one.__dict__
        assert str(other) == str(one) == "words"


@pytest.mark.parametrize("body", [None, [], "text", {"error": "text"}, {}])
def test_an_answer_that_is_no_error_of_ours(body: object) -> None:
    one = errors.from_answer(502, body, "s", "k")
    assert type(one) is errors.CacheError
    assert "502" in str(one)
    assert one.retryable


# --- settings


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
@pytest.mark.parametrize(("length", "good"), [(107, True), (108, False), (150, False)])
def test_a_socket_s_path_has_at_most_107_bytes(kind: Any, length: int, *, good: bool) -> None:
    """C-63: said when the client is made, with the length and the limit."""
    path = "/tmp/" + "é" * ((length - 5) // 2) + "x" * ((length - 5) % 2)
    assert len(path.encode()) == length
    if good:
        assert kind("s", socket=path).socket == path
        return
    with pytest.raises(errors.BadRequest, match=rf"{length} bytes, 107 are possible") as caught:
        kind("s", socket=path)
    assert (caught.value.code, caught.value.source) == ("bad_request", "s")


def test_a_socket_s_path_of_107_bytes_is_used(folder: Path) -> None:
    path = folder / ("x" * (107 - len(str(folder)) - 1))
    with scripted(path, lambda _: answer(200, {"uptime": 1})), ShardCache("s", socket=path) as cache:
        assert cache.status() == {"uptime": 1}


def test_where_the_socket_is_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHEDAEMON_SOCKET", "CACHEDAEMON_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert places.socket_path() == places.SYSTEM_SOCKET
    own = folder / "cachedaemon/cachedaemon.sock"
    own.parent.mkdir()
    own.touch()
    assert places.socket_path() == str(own)
    monkeypatch.setenv("CACHEDAEMON_SOCKET", "/env.sock")
    assert places.socket_path() == "/env.sock"
    assert places.socket_path(Path("/given.sock")) == "/given.sock"
    assert places.cache_folder() is None
    monkeypatch.setenv("CACHEDAEMON_DIR", "/cache/")
    assert places.cache_folder() == "/cache"
    assert places.cache_folder("/given") == "/given"


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
@pytest.mark.parametrize(
    "how", [{"source": "A/B"}, {"source": ""}, *({"wait": wait} for wait in (-1, float("nan"), None, "60", [1]))]
)
def test_settings_that_cannot_be(kind: Any, how: dict[str, Any]) -> None:
    """The message says what is allowed."""
    with pytest.raises(errors.BadRequest, match="allowed are"):
        kind(**({"source": "s"} | how))


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
@pytest.mark.parametrize("how", ["prefetch", "plan", "as_ready"])
def test_a_key_in_the_place_of_several_is_not_taken_for_its_letters(kind: Any, how: str) -> None:
    async def ask(cache: aio.ShardCache) -> None:
        asked = getattr(cache, how)("images-1.zip")
        await (asked if how == "prefetch" else anext(asked))

    cache = kind("s", socket="/nobody.sock", wait=0)
    with pytest.raises(errors.BadRequest, match=r"'images-1\.zip' is one key: .*\['images-1\.zip'\]"):
        getattr(cache, how)("images-1.zip") if kind is ShardCache else asyncio.run(ask(cache))


def test_a_job_that_has_not_been_asked_for_says_so(folder: Path) -> None:
    said = {"job": "j", "state": "done", "total": 2, "done": 2, "failed": 0, "bytes": 7, "errors": []}
    with scripted(folder / "s", lambda _: answer(200, said)), ShardCache("s", socket=folder / "s") as cache:
        job = cache.prefetch(["a", "b"])
        assert (job.total, repr(job)) == (2, "<Job j of 2 keys, not asked yet: refresh()>")
        assert repr(job.refresh()) == "<Job j done 2/2>"


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
def test_a_client_pickles_by_its_settings(kind: Any) -> None:
    one = kind("s", socket="/a.sock", cache_dir="/c", wait=7)
    for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert (type(other), other.source, other.socket, other._folder, other.wait) == (kind, "s", "/a.sock", "/c", 7)
        assert other is not one
    assert kind("s", wait=float("inf")).wait == 7 * 86400, "for ever is what the daemon allows"


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
def test_relative_places_stay_where_they_were(kind: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the working directory becomes, here or in a worker that unpickles the client."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CACHEDAEMON_SOCKET", "by-env.sock")
    by_env, one = kind("s"), kind("s", socket="../a.sock", cache_dir=Path("c"))
    monkeypatch.chdir("/")
    assert by_env.socket == f"{folder}/by-env.sock"
    for other in (one, pickle.loads(pickle.dumps(one))):
        assert (other.socket, other._folder) == (f"{folder}/../a.sock", f"{folder}/c")


# --- what the daemon vouches for


@pytest.fixture
def cache(folder: Path) -> Path:
    seen = folder.stat()
    vouch(folder, format=1, boot_id=places.boot_id(), device=seen.st_dev, inode=seen.st_ino)
    return folder


def vouch(folder: Path, **said: object) -> None:
    path = folder / "daemon.json"
    before = json.loads(path.read_text()) if path.exists() else {"direct": ["s"], "archives": {"s": "opaque"}}
    path.write_text(json.dumps(before | said))


def hello(cache_dir: Path | str) -> dict[str, Any]:
    return {"cache_dir": str(cache_dir), "sources": {"s": {"archives": "index", "direct": True}}}


def test_a_folder_that_is_vouched_for(cache: Path) -> None:
    known = view.from_folder(str(cache))
    assert known is not None
    assert known.direct == {"s"}
    assert known.archives == {"s": "opaque"}
    assert known.path_of("s", "a/b") == f"{cache}/shards/s/a%2Fb"
    assert view.from_hello(str(cache), hello("/daemon/says")).local("/daemon/says/shards/s/x") == f"{cache}/shards/s/x"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"boot_id": "other"}, "another boot or kernel"),
        ({"inode": 1}, "another folder here"),
        ({"device": 1}, "another folder here"),
        ({"format": 2}, "format 2, this client reads format 1"),
    ],
)
def test_a_folder_whose_locks_do_not_reach_the_daemon(cache: Path, said: dict[str, object], why: str) -> None:
    vouch(cache, **said)
    assert view.from_folder(str(cache)) is None
    known = view.from_hello(str(cache), hello(cache))
    assert not known.direct
    assert known.why_not is not None
    assert why in known.why_not


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_folder_that_cannot_be_read(folder: Path, content: str | None) -> None:
    if content is not None:
        (folder / "daemon.json").write_text(content)
    assert view.from_folder(str(folder)) is None
    known = view.from_hello(str(folder), hello(folder))
    assert not known.direct
    assert str(folder) in str(known.why_not)


def test_a_path_is_noted_whole_while_another_thread_learns_of_a_daemon(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a name without its folder, which would be looked for in the working directory, nor in another folder."""
    (cache / "shards/s").mkdir(parents=True)
    (cache / "shards/s/key").write_bytes(b"right")
    (cache / "key").write_bytes(b"foreign")
    monkeypatch.chdir(cache)
    one = ShardCache("s", socket=cache / "none", cache_dir=cache, wait=0)
    learning = [True]

    def while_learning(folder: OpenFolder, path: str, name_of: Any = OpenFolder.name_of) -> str:
        if learning and learning.pop():
            thread = threading.Thread(target=one._see, args=(one._view,))
            thread.start()
            thread.join()
        return str(name_of(folder, path))

    monkeypatch.setattr(OpenFolder, "name_of", while_learning)
    with one.open("key") as shard:
        assert not learning
        assert os.pread(shard._descriptor, 9, 0) == b"right"


def test_a_folder_of_another_daemon_is_not_used_for_a_path(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
    one = OpenFolder.of(str(folder / "a"))
    assert one.serves(str(folder / "a"))
    assert not one.serves(str(folder / "b"))
    (folder / "a").rmdir()
    assert not one.serves(str(folder / "a"))


def opened_by(one: Any, key: str) -> str:
    """Where a shard is opened, once the next report is due."""

    async def wait() -> str:
        async with one.open(key) as shard:
            return str(shard.path)

    one._reporter.due[0] = one._reporter._again = 0.0
    if isinstance(one, aio.ShardCache):
        return asyncio.run(wait())
    with one.open(key) as shard:
        return str(shard.path)


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
def test_another_daemon_s_folder_is_noticed_by_hits(folder: Path, kind: Any) -> None:
    """It listens at the same socket; the folder of the one before vouches for itself still."""
    for name in "ab":
        path = folder / name
        (path / "shards/s").mkdir(parents=True)
        (path / "shards/s/key").write_bytes(b"bytes")
        seen = path.stat()
        vouch(path, format=1, boot_id=places.boot_id(), device=seen.st_dev, inode=seen.st_ino)

    def daemon(said: Said) -> bytes:
        return (
            answer(200, hello(folder / serving[0]), serving[0])
            if said.target == "/v1/hello"
            else answer(204, None, serving[0])
        )

    one, serving = kind("s", socket=folder / "sock", wait=5), ["a"]
    with scripted(folder / "sock", daemon):
        assert opened_by(one, "key") == f"{folder}/a/shards/s/key"
        serving[0] = "b"
        until(lambda: opened_by(one, "key") == f"{folder}/b/shards/s/key", 10)
    assert opened_by(one, "key") == f"{folder}/b/shards/s/key", "the daemon has gone: a hit goes on"
    one._reporter._drop()


def test_another_daemon_without_the_source_is_noticed_by_hits(cache: Path) -> None:
    (cache / "shards/s").mkdir(parents=True)
    (cache / "shards/s/key").write_bytes(b"bytes")
    hellos = {"a": hello(cache), "b": hello(cache) | {"sources": {}}}
    one, serving = ShardCache("s", socket=cache / "sock", wait=5), ["a"]
    with scripted(cache / "sock", lambda _: answer(200, hellos[serving[0]], serving[0])):
        opened_by(one, "key")
        serving[0] = "b"

        def is_noticed() -> bool:
            with contextlib.suppress(errors.SourceUnknown):
                return not opened_by(one, "key")
            return True

        until(is_noticed, 10)
        one.close()


# --- plans


def test_plans_of_many_threads_are_each_noted_and_forgotten_once() -> None:
    cache = ShardCache("s", socket="/nobody.sock")
    kept: list[Plan] = [Plan(cache, ["a"], 1) for _ in range(50)]
    for plan in kept:
        cache.start(plan)

    def come_and_go() -> None:
        for _ in range(300):
            plan = Plan(cache, ["a"], 1)
            cache.start(plan)
            forgotten.append(cache.forget(plan) and not cache.forget(plan))
        cache.start(plan)
        kept.append(plan)

    forgotten: list[bool] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert all(forgotten)
    assert len(cache._running) == len(kept) == 54
    assert set(cache._running) == set(kept)


def test_a_plan_s_place_can_be_set(cache: Path) -> None:
    plan = Plan(ShardCache("s", socket="/nobody.sock"), ["a", "b", "a"], 1)
    assert (plan.position, plan.ahead) == (0, "a")
    plan.position = 1
    assert (plan.position, plan.ahead) == (1, "b")
    plan.position = 3
    plan.advance()
    assert (plan.position, plan.ahead) == (3, None)
    for wrong in (-1, 4):
        with pytest.raises(errors.BadRequest, match="allowed are 0 to 3"):
            plan.position = wrong
    assert plan.position == 3


# --- connections


def test_a_connection_that_the_daemon_closed_is_made_again_at_once(folder: Path) -> None:
    """With no time to wait, too: every call can be repeated."""
    with scripted(
        folder / "sock", lambda s: None if s.link == 0 and s.target == "/b" else answer(200, s.link)
    ) as daemon:
        link = Connection(str(folder / "sock"))
        assert call(link, "GET", "/a", wait=0) == 0
        assert call(link, "GET", "/b", wait=0) == 1
        assert daemon.links == 2
        link.close()


def test_a_signal_s_handler_that_calls_in_the_middle_of_a_call(folder: Path) -> None:
    """Each gets its own answer, and so do those that come after."""
    going_on, heard = threading.Event(), []

    def answering(said: Said) -> bytes:
        if said.target == "/v1/jobs/main":
            going_on.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            going_on.wait(10)
        return answer(200, said.target)

    def handler(*_: object) -> None:
        heard.append(cache.call("GET", "/v1/jobs/handler"))
        going_on.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with scripted(folder / "s", answering) as daemon, ShardCache("s", socket=folder / "s", wait=5) as cache:
            for target in ("/v1/jobs/main", "/v1/jobs/next", "/v1/jobs/main", "/v1/jobs/last"):
                assert cache.call("GET", target) == target
            assert heard == ["/v1/jobs/handler"] * 2
            assert daemon.links == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_while_something_is_told_leaves_no_answer_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(link: Connection, data: bytes, send: Any = Connection._send) -> None:
        send(link, data)
        raise KeyboardInterrupt

    with scripted(folder / "s", lambda s: answer(200, s.target)):
        link = Connection(str(folder / "s"))
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "_send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                link.tell("POST", "/told", {})
        assert [call(link, "GET", target, wait=1) for target in ("/a", "/b")] == ["/a", "/b"]
        assert not link.busy
        link.close()


@pytest.mark.parametrize("kind", [ShardCache, aio.ShardCache])
def test_another_shard_s_answer_is_not_taken(cache: Path, kind: Any) -> None:
    (cache / "other").write_bytes(b"bytes")
    one = kind("s", socket="/nobody.sock")
    with pytest.raises(errors.CacheError, match="another shard's"):
        one.lease({"path": str(cache / "other"), "result": "hit"}, "key")


def test_what_is_told_is_answered_before_the_next_call(folder: Path) -> None:
    with scripted(folder / "sock", lambda s: answer(200, s.target)) as daemon:
        link = Connection(str(folder / "sock"))
        for number in range(5):
            assert link.tell("POST", f"/told/{number}", {})
        assert call(link, "GET", "/asked", wait=0) == "/asked"
        assert [said.target for said in daemon.heard] == [*(f"/told/{number}" for number in range(5)), "/asked"]
        link.close()


def test_a_silent_daemon_is_unavailable_in_time(folder: Path) -> None:
    quiet = threading.Event()
    with scripted(folder / "sock", lambda _: (quiet.wait(30), None)[1]):
        link, began = Connection(str(folder / "sock")), time.monotonic()
        with pytest.raises(errors.DaemonUnavailable, match="does not answer") as caught:
            call(link, "POST", "/v1/acquire", {"wait": 0}, wait=0.5, source="s", key="k")
        assert 0.5 <= time.monotonic() - began < 10
        assert (caught.value.source, caught.value.key, caught.value.retryable) == ("s", "k", True)
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        quiet.set()


def test_a_call_is_repeated_with_what_is_left_of_its_time(folder: Path) -> None:
    """`stopping`, and connections that break, are waited out."""
    waits: list[float] = []

    def answering(said: Said) -> bytes | None:
        waits.append(said.body["wait"])
        return [error(503, "stopping"), None, error(503, "stopping"), answer(200, "here")][len(waits) - 1]

    with scripted(folder / "sock", answering):
        link = Connection(str(folder / "sock"))
        assert call(link, "POST", "/v1/acquire", {"wait": 0}, wait=20) == "here"
        assert len(waits) == 4
        assert sorted(waits, reverse=True) == waits
        assert all(15 < wait <= 20 for wait in waits)
        link.close()


@pytest.mark.parametrize("code", [code for code in CODES if code != "stopping"])
def test_other_errors_are_raised_at_once(folder: Path, code: str) -> None:
    with scripted(folder / "sock", lambda _: error(500, code)) as daemon:
        link = Connection(str(folder / "sock"))
        with pytest.raises(CODES[code][0], match=f"the {code}"):
            call(link, "GET", "/", wait=20)
        assert len(daemon.heard) == 1
        link.close()


def test_a_socket_that_this_user_may_not_use(folder: Path, as_user: Any) -> None:
    """No daemon is waited for; what is raised is Refused, told apart from the daemon's own refusals by its code."""
    path = folder / "d.sock"
    snippet = f"""
import json, time
from cachedaemon_client import Refused, ShardCache
began = time.monotonic()
try:
    ShardCache("s", socket={str(path)!r}, wait=60).open("k")
except Refused as cause:
    print(json.dumps([isinstance(cause, PermissionError), cause.code, cause.retryable, str(cause)]))
assert time.monotonic() - began < 30
"""
    with scripted(path, lambda _: answer(200, {})):
        path.chmod(0)
        folder.chmod(0o755)
        ran = as_user.run([sys.executable, "-c", snippet])
    assert ran.returncode == 0, ran.stderr
    kind, code, retryable, message = json.loads(ran.stdout)
    assert (kind, code, retryable) == (True, "unreachable", False)
    assert f"no permission to use the socket {path}" in message


@pytest.mark.filterwarnings("error")
def test_a_client_that_is_dropped_leaves_no_warning(folder: Path) -> None:
    """Neither of its connection nor of its reports'; a thread's connection ends with the thread."""
    with scripted(folder / "s", lambda _: answer(200, {})):
        cache = ShardCache("s", socket=folder / "s")
        cache.status()
        thread = threading.Thread(target=cache.status)
        thread.start()
        thread.join()
        cache._uses.append(("k", time.monotonic()))
        cache._report()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del cache
            gc.collect()
        assert not [str(one.message) for one in caught]


@pytest.mark.filterwarnings("error")
def test_a_client_for_asyncio_that_is_dropped_leaves_no_warning(folder: Path) -> None:
    async def ask() -> None:
        await aio.ShardCache("s", socket=folder / "s").status()
        gc.collect()

    with scripted(folder / "s", lambda _: answer(200, {})), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(ask())
        gc.collect()
    assert not [str(one.message) for one in caught]


def test_stopping_to_the_end_is_what_is_said(folder: Path) -> None:
    with scripted(folder / "sock", lambda _: error(503, "stopping")):
        link = Connection(str(folder / "sock"))
        with pytest.raises(errors.DaemonUnavailable, match="the stopping"):
            call(link, "GET", "/", wait=0.3)
        link.close()


@pytest.mark.parametrize("kind", ["none", "nobody listens", "a file below a file"])
def test_no_daemon(folder: Path, kind: str) -> None:
    path = folder / "sock"
    if kind == "nobody listens":
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
    if kind == "a file below a file":
        path.touch()
        path = path / "sock"
    began = time.monotonic()
    with pytest.raises(errors.DaemonUnavailable, match=str(path)):
        call(Connection(str(path)), "GET", "/", wait=0.2)
    assert time.monotonic() - began >= 0.2, "it is waited for"


def test_a_full_backlog_is_waited_out(folder: Path) -> None:
    """connect(2) says EAGAIN at once then."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "sock"))
    listener.listen(0)
    fillers = []
    with pytest.raises(BlockingIOError) as caught:  # noqa: PT012 - until it is full
        while True:
            fillers.append(socket.socket(socket.AF_UNIX))
            fillers[-1].setblocking(False)
            fillers[-1].connect(str(folder / "sock"))
    assert caught.value.errno == errno.EAGAIN

    def serve() -> None:
        time.sleep(0.2)
        while True:
            link, _ = listener.accept()
            link.settimeout(0.5)
            with link:
                try:
                    if link.recv(1000):
                        link.sendall(answer(200, "served"))
                        return
                except TimeoutError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    link = Connection(str(folder / "sock"))
    for filler in fillers:
        filler.close()
    assert call(link, "GET", "/", wait=20) == "served"
    thread.join()
    link.close()
    listener.close()


def test_what_is_no_daemon_is_not_waited_for(folder: Path) -> None:
    with scripted(folder / "sock", lambda _: b"220 smtp.example.org ESMTP\r\n\r\n"):
        link = Connection(str(folder / "sock"))
        with pytest.raises(errors.DaemonUnavailable, match="not an HTTP answer"):
            call(link, "GET", "/", wait=20)


def test_pauses_grow_and_keep_to_the_deadline() -> None:
    pause = Pause.of(100)
    spans = [pause.next() for _ in range(20)]
    assert 0.01 <= spans[0] <= 0.02
    assert all(0.25 <= span <= 0.5 for span in spans[-5:])
    assert Pause.of(0).next() == 0
    assert Pause.of(None).left == float("inf")


# --- the distribution


def python(code: str, *flags: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CACHEDAEMON"))}
    ran = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


LOADED = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
import cachedaemon_client, cachedaemon_client.aio
own = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(name for name in own if name not in sys.stdlib_module_names))
print(sorted({{"http", "email", "ssl", "uuid", "logging", "multiprocessing", "ctypes"}} & own) if "asyncio" not in own else [])
"""


def test_nothing_but_the_standard_library_is_imported() -> None:
    assert python(LOADED, "-I", "-S").splitlines()[0] == "['__main__', 'cachedaemon_client']"


def test_the_import_brings_nothing_slow() -> None:
    """http.client alone would be 20 ms in each worker."""
    code = LOADED.replace(", cachedaemon_client.aio", "")
    assert python(code, "-I", "-S").splitlines()[1] == "[]"


@pytest.mark.parametrize("absent", ["torch", "cachedaemon_client"])
@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_example_says_in_one_line_what_it_needs(absent: str, words: list[str]) -> None:
    """The names of modules are hidden from it; everything else is as usual. Torch may be missing anyway."""
    example = PACKAGE.parents[1] / "examples/torch_dataloader.py"
    code = f"import runpy, sys; sys.modules[{absent!r}] = None; sys.argv = ['x', *{words!r}]\n"
    code += f"runpy.run_path({str(example)!r}, run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    needs = f"torch_dataloader.py needs torch and cachedaemon-client: .*({absent}|torch).*"
    assert re.fullmatch(needs, ran.stderr.splitlines()[-1])
    assert "Traceback" not in ran.stderr


def test_only_one_module_reads_the_environment() -> None:
    readers = [
        path.name for path in PACKAGE.glob("*.py") if "environ" in path.read_text() or "getenv" in path.read_text()
    ]
    assert readers == ["places.py"]
