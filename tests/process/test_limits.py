"""What one user may do to another who uses the same daemon: limits of each, and plans that are their owner's alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OrdinaryUser
from tests.fakes import readers, somebody
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

pytestmark = pytest.mark.root
ONE, OTHER, ADMINS = 60_001, 60_002, 60_009
SMALL = {"user_waiters": 2, "user_plans": 2, "user_prefetches": 1, "user_keys": 50, "user_listeners": 2}


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as made:
        for n in range(4):
            made.put(f"{n}.bin", 1000)
        yield made


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    server = {"socket_mode": "0666", "admin_group": str(ADMINS), **SMALL}
    with Daemon({"s": origin.url}, server=server) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(daemon: Daemon) -> Iterator[None]:
    """Plans go before the next test."""
    yield
    for one in daemon.status()["plans"]:
        daemon.api("DELETE", f"/v1/plans/{one['id']}")


def ask(daemon: Daemon, calls: list[list[Any]], uid: int, groups: tuple[int, ...] = ()) -> list[list[Any]]:
    """Status, body and headers of each call, as this user."""
    said = somebody.run("say([ask(ARG[0], *call) for call in ARG[1]])", [str(daemon.socket), calls], uid, groups=groups)
    assert isinstance(said, list)
    return said


def codes(answers: list[list[Any]]) -> list[int | str]:
    """The error's code where there is one, else the status."""
    return [body["error"]["code"] if body and "error" in body else status for status, body, _ in answers]


def plan(name: str, keys: int = 4, **more: object) -> list[Any]:
    return ["PUT", f"/v1/plans/{name}", {"source": "s", "keys": [f"{n % 4}.bin" for n in range(keys)], **more}]


def test_a_plan_is_its_owners(daemon: Daemon) -> None:
    """Another user can neither end, replace nor move it; an admin may, and it stays its owner's."""
    moved = ["POST", "/v1/touch", {"source": "s", "used": [], "plan": "mine", "position": 2}]
    end = ["DELETE", "/v1/plans/mine"]
    assert codes(ask(daemon, [plan("mine"), moved], ONE)) == [200, 204]
    refused = ask(daemon, [plan("mine", 1), [*moved[:2], {**moved[2], "position": 4}], end], OTHER)
    assert codes(refused) == ["forbidden"] * 3
    [mine] = daemon.status()["plans"]
    assert (mine["keys"], mine["position"]) == (4, 2)
    assert codes(ask(daemon, [plan("mine", 3), moved, end], OTHER, (ADMINS,))) == [200, 204, 204]
    assert codes(ask(daemon, [plan("mine"), plan("mine", 3)], ONE)) == [200, 200]
    assert daemon.api(*plan("mine", 3)).status == 200, "root may, too"
    assert codes(ask(daemon, [plan("mine", 2), end], ONE)) == [200, 204], "it is still its owner's"


def test_readers_may_not_evict_or_verify(daemon: Daemon) -> None:
    """They may all the rest, within configured sources."""
    for key in ("0.bin", "2.bin"):
        daemon.path("s", key)
    calls: list[list[Any]] = [
        ["DELETE", "/v1/shards?source=s&key=0.bin"],
        ["POST", "/v1/verify", {"source": "s"}],
        ["POST", "/v1/acquire", {"source": "s", "key": "0.bin", "wait": 0}],
        ["POST", "/v1/acquire", {"source": "other", "key": "0.bin", "wait": 0}],
        ["POST", "/v1/prefetch", {"source": "s", "keys": ["1.bin"]}],
        ["GET", "/v1/shards"],
        ["GET", "/v1/status"],
    ]
    said = codes(ask(daemon, calls, ONE))
    assert said == ["forbidden", "forbidden", 200, "unknown_source", 202, 200, 200]
    assert codes(ask(daemon, [["DELETE", "/v1/shards?source=s&key=2.bin"]], OTHER, (ADMINS,))) == [204]


def test_plans_and_their_keys_are_bounded(daemon: Daemon) -> None:
    """Each user has limits of its own; to replace a plan is no second one; root has none."""
    answers = ask(daemon, [plan("a"), plan("b"), plan("c"), plan("b", 30), plan("b", 51)], ONE)
    assert codes(answers) == [200, 200, "too_many", 200, "bad_request"]
    status, body, headers = answers[2]
    assert (status, body["error"]["retryable"], headers["Retry-After"]) == (429, True, "1")
    assert body["error"]["message"] == (f"uid {ONE} would have 3 plans under way: allowed are 2 (server.user_plans)")
    prefetch = ["POST", "/v1/prefetch", {"source": "s", "keys": ["0.bin"] * 17}]
    assert codes(ask(daemon, [prefetch], ONE)) == ["too_many"], "34 keys stand in plans"
    assert codes(ask(daemon, [plan("a1"), plan("a2", 40)], OTHER)) == [200, 200]
    assert [daemon.api(*plan(f"root{n}", 60)).status for n in range(3)] == [200] * 3


def test_prefetches_under_way_are_bounded(daemon: Daemon, origin: Origin) -> None:
    """One that has ended makes room for the next."""
    origin.put("slow.bin", 1000, gate=(gate := Gate(0)))
    slow, fast = (["POST", "/v1/prefetch", {"source": "s", "keys": [key]}] for key in ("slow.bin", "0.bin"))
    first, second = ask(daemon, [slow, fast], ONE)
    assert codes([first, second]) == [202, "too_many"]
    assert codes(ask(daemon, [fast], OTHER)) == [202]
    gate.open()
    assert daemon.job(first[1]["job"])["state"] == "done"
    assert codes(ask(daemon, [fast], ONE)) == [202]


LISTINGS = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    calls = [pool.submit(ask, ARG, "POST", "/v1/prefetch", {"source": "f"}) for _ in range(3)]
    for call in concurrent.futures.as_completed(calls):
        said = call.result()
        say(said[1].get("error", {}).get("code", said[0]))
"""


def test_prefetches_that_begin_are_bounded(folder: Path) -> None:
    """Those whose origin is still asked what it has count, too: it is not asked a hundred times at once."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (folder / "a.bin").write_bytes(b"of the source")
    with Daemon({"f": {"url": f"file://{folder}/", "settle": 0}}, server={"socket_mode": "0666", **SMALL}) as daemon:
        daemon.path("f", "a.bin")
        [mount] = daemon.children()
        os.kill(mount, signal.SIGSTOP)
        with somebody.popen(LISTINGS, str(daemon.socket), ONE) as asks:
            assert asks.stdout is not None
            assert [asks.stdout.readline() for _ in range(2)] == ['"too_many"\n'] * 2
            os.kill(mount, signal.SIGCONT)
            assert asks.stdout.readline() == "202\n"
            asks.communicate()


LISTEN = """
links = [Unix(ARG) for _ in range(3)]
for link in links:
    link.request("GET", "/v1/events")
    say(link.getresponse().status)
links[0].close()
time.sleep(60)
"""


def test_listeners_are_bounded(daemon: Daemon, folder: Path) -> None:
    """Each event is work for each stream: one user cannot have so many that nothing else goes on."""
    with somebody.popen(LISTEN, str(daemon.socket), ONE) as listens:
        assert listens.stdout is not None
        assert [listens.stdout.readline() for _ in range(3)] == ["200\n", "200\n", "429\n"]
        [again] = ask(daemon, [["GET", "/v1/hello"]], OTHER)
        assert again[0] == 200
        listens.kill()


WAIT = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    body = {"source": "s", "key": "gated.bin", "wait": 60}
    calls = [pool.submit(ask, ARG, "POST", "/v1/acquire", body) for _ in range(3)]
    first = next(concurrent.futures.as_completed(calls)).result()
    say([first[0], first[1]])
    say(sorted(call.result()[0] for call in calls))
"""


def test_waiters_are_bounded(daemon: Daemon, origin: Origin) -> None:
    """With as many waiting as may, one user's next request is refused at once, and another's is taken."""
    origin.put("gated.bin", 1000, gate=(gate := Gate(0)))
    with somebody.popen(WAIT, str(daemon.socket), ONE) as waits:
        assert waits.stdout is not None
        said = waits.stdout.readline()
        assert '[429, {"error": {"code": "too_many"' in said, said
        assert codes(ask(daemon, [["POST", "/v1/acquire", {"source": "s", "key": "0.bin", "wait": 30}]], OTHER)) == [
            200
        ]
        gate.open()
        assert waits.stdout.readline() == "[200, 200, 429]\n"
        waits.communicate()


CLIENT = """
from cachedaemon_client import TooMany
cache = ShardCache("s", wait=30)
plans = [cache.plan(["0.bin"]) for _ in range(2)]
for plan in plans: plan.__enter__()
try:
    cache.plan(["0.bin"]).__enter__()
except TooMany as cause:
    say([cause.code, cause.retryable])
for plan in plans: plan.close()
threads = [threading.Thread(target=lambda: cache.open("late.bin").close()) for _ in range(4)]
for thread in threads: thread.start()
say("asked")
for thread in threads: thread.join()
say("had")
"""


def test_a_client_is_told_and_who_waits_for_a_shard_waits_for_a_place(
    daemon: Daemon, origin: Origin, as_user: OrdinaryUser
) -> None:
    """A plan too many raises `TooMany`; of four threads two may wait at once, and all have the shard in the end."""
    origin.put("late.bin", 1000, gate=(gate := Gate(0)))
    with readers.Reader(daemon, CLIENT, wrap=as_user.command([])) as reader:
        assert reader.line() == ["too_many", True]
        assert reader.line() == "asked"
        until(lambda: daemon.status()["waiters"] == 2, 20, "as many as may")
        gate.open()
        assert reader.line() == "had"


def test_limits_are_taken_over_by_a_reload(daemon: Daemon) -> None:
    assert codes(ask(daemon, [plan("a"), plan("b"), plan("c")], ONE)) == [200, 200, "too_many"]
    daemon.tables["server"]["user_plans"] = 0
    daemon.reload()
    until(lambda: "reloaded: server.user_plans" in daemon.log, 20, "the reload")
    assert codes(ask(daemon, [plan("c"), plan("d")], ONE)) == [200, 200]


CONNECT = """
links = []
for _ in range(ARG[1]):
    link = socket.socket(socket.AF_UNIX); link.connect(ARG[0]); links.append(link)
links[-1].settimeout(20)
say(links[-1].recv(4096).decode())
"""


def test_connections_of_one_user_are_bounded(origin: Origin) -> None:
    """Half of the descriptors that the daemon may have, at the most: others find it open."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    wrap = ("prlimit", "--nofile=400:400", "--")
    with Daemon({"s": origin.url}, server={"socket_mode": "0666"}, wrap=wrap) as daemon:
        said = somebody.run(CONNECT, [str(daemon.socket), 201], ONE)
        assert said.startswith("HTTP/1.1 429 ")
        assert f"uid {ONE} has 200 connections open" in said
        assert "Retry-After: 1" in said
        with closing(daemon.connection(10)) as link:
            link.request("GET", "/v1/hello")
            assert link.getresponse().status == 200
        assert codes(ask(daemon, [["GET", "/v1/hello"]], ONE)) == [200], "they have gone with their owner"
