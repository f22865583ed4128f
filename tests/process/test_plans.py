"""Plans' lives: made, moved, replaced and ended; with their owner at the latest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.api import Answer
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.readers import Reader
from tests.fakes.waiting import until

OWN = """
plan = ShardCache("s").plan(["a", "b", "c"], holds=2)
say(plan.id)
hear()
"""


OWN_AIO = """
import asyncio
from cachedaemon_client import aio
async def main():
    plan = await aio.ShardCache("s").plan(["a", "b", "c"])
    say(plan.id)
    hear()
asyncio.run(main())
"""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Origin() as origin:
        origin.default(lambda name: origin.put(name, 10_000))
        with Daemon({"s": origin.url}) as one:
            yield one


def put(daemon: Daemon, name: str, **more: Any) -> Answer:
    return daemon.api("PUT", f"/v1/plans/{name}", {"source": "s", "keys": ["a", "b", "c"], **more})


def move(daemon: Daemon, name: str, position: int) -> Answer:
    return daemon.api("POST", "/v1/touch", {"source": "s", "used": [], "plan": name, "position": position})


def plans(daemon: Daemon) -> dict[str, dict[str, Any]]:
    return {plan["id"]: plan for plan in daemon.status()["plans"]}


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def test_made_moved_and_deleted(daemon: Daemon) -> None:
    answer = put(daemon, "p1", position=1)
    assert answer.status == 200
    file = Path(answer.body["file"])
    assert file == daemon.cache / "plans" / "p1"
    assert file.stat().st_size == 0
    assert plans(daemon)["p1"] == {"id": "p1", "source": "s", "keys": 3, "position": 1, "state": "running"}
    assert daemon.metric("plans", source="s") == 1
    assert move(daemon, "p1", 2).status == 204
    assert plans(daemon)["p1"]["position"] == 2
    assert daemon.api("DELETE", "/v1/plans/p1").status == 204
    assert plans(daemon) == {}
    until(lambda: not file.exists())
    for gone in (daemon.api("DELETE", "/v1/plans/p1"), move(daemon, "p1", 0)):
        assert (gone.status, gone.code) == (404, "not_found")


def test_the_same_id_replaces_the_keys_and_keeps_the_file(daemon: Daemon) -> None:
    file = put(daemon, "p1").body["file"]
    inode = os.stat(file).st_ino
    with held(file):
        again = put(daemon, "p1", keys=["x", "y"], position=2)
        assert again.body["file"] == file
        assert os.stat(file).st_ino == inode
        assert (plans(daemon)["p1"]["keys"], plans(daemon)["p1"]["position"]) == (2, 2)


def test_the_loss_of_its_lock_ends_it(daemon: Daemon) -> None:
    """Within 2 s, once it has been seen held; one whose file was never locked stays."""
    put(daemon, "never")
    file = put(daemon, "p1").body["file"]
    with held(file):
        time.sleep(2.5)  # longer than the time within which it would have ended
        assert set(plans(daemon)) == {"never", "p1"}
    until(lambda: set(plans(daemon)) == {"never"}, 20)
    assert not Path(file).exists()


def test_its_owner_is_killed(daemon: Daemon) -> None:
    with Reader(daemon, OWN) as reader:
        name = reader.line()
        assert plans(daemon)[name]["keys"] == 3
        time.sleep(1.5)  # it has been seen held
        reader.kill9()
        until(lambda: not plans(daemon), 20)


@pytest.mark.parametrize("aio", [False, True])
def test_its_owner_is_killed_at_once(daemon: Daemon, aio: bool) -> None:  # noqa: FBT001 - a case
    """Before the daemon's own look: a plan that is in force has been seen held."""
    for _ in range(5):
        with Reader(daemon, OWN_AIO if aio else OWN) as reader:
            reader.line()
            reader.kill9()
            until(lambda: not plans(daemon), 20)


def test_a_stopped_owner_keeps_it(daemon: Daemon) -> None:
    with Reader(daemon, OWN) as reader:
        name = reader.line()
        reader.freeze()
        time.sleep(2.5)
        assert set(plans(daemon)) == {name}
        reader.thaw()


def test_a_plan_does_not_survive_the_daemon(daemon: Daemon) -> None:
    file = put(daemon, "p1").body["file"]
    daemon.kill9()
    assert Path(file).exists()
    daemon.start()
    assert plans(daemon) == {}
    assert not Path(file).exists()
    assert put(daemon, "p1").status == 200


def test_looking_at_a_plan_disturbs_nobody_who_takes_it(daemon: Daemon) -> None:
    """The daemon's own look locks the file for a moment: an owner that comes just then must not fail."""
    take = """
import cachedaemon_client.lease as lease
for _ in range(ARG[1]):
    os.close(lease.hold_plan(ARG[0]))
say("fine")
"""
    file = put(daemon, "p1").body["file"]
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            with open(file, "rb") as one, contextlib.suppress(BlockingIOError):
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with Reader(daemon, take, [file, 20_000]) as reader:
            assert reader.rest() == ["fine"]
    finally:
        stop.set()
        looking.join()


def test_a_plan_that_is_made_again_is_not_lost(daemon: Daemon) -> None:
    """After a reload the owner tells its plan anew, and keeps the file locked meanwhile: no look finds it free."""
    with Reader(daemon, OWN + "\nfor _ in range(300): plan.renew()\nsay('renewed')\nhear()\n") as reader:
        name = reader.line()
        time.sleep(1.5)  # it has been seen held
        reader.tell("go")
        assert reader.line(60) == "renewed"
        time.sleep(1.5)
        assert set(plans(daemon)) == {name}


@pytest.mark.parametrize("name", [".a", "-a", "a%2Fb", "%C3%A4", "a" * 65])
def test_names_that_no_plan_has(daemon: Daemon, name: str) -> None:
    answer = put(daemon, name)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert os.listdir(daemon.cache / "plans") == []


@pytest.mark.parametrize("more", [{"position": 4}, {"position": -1}, {"holds": 0}, {"keys": [""]}, {"keys": "abc"}])
def test_plans_that_cannot_be(daemon: Daemon, more: dict[str, Any]) -> None:
    answer = put(daemon, "p1", **more)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert plans(daemon) == {}
