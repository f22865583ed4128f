"""Trainers with a DataLoader that end in the middle of an epoch and close nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import disk, readers
from tests.fakes.waiting import until
from tests.process.torch_shards import IMPORTS, KEYS, MARKS, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.daemon import Daemon

pytestmark = MARKS


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


ENDING = (
    IMPORTS
    + """
cache = ShardCache("s")  # never closed

def batches():
    while True:
        for batches in epochs(cache, ARG["keys"], style=ARG["style"], count=1, batch_size=2, num_workers=2):
            yield from batches

def leave():
    sys.exit(3)

if __name__ == "__main__":
    held = cache.open(ARG["keys"][0])  # never closed
    plan = cache.plan(ARG["keys"])
    seen = batches()
    for _ in range(3):
        next(seen)
    say("in mid-epoch")
    hear()
    if ARG["how"] == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
        say("going on")
        for _ in seen:
            pass
    if ARG["how"] == "thread":
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    if ARG["how"] == "exception":
        raise RuntimeError("the trainer's own")
    if ARG["how"] == "exit":
        leave()
    if ARG["how"] == "break":
        seen.close()
"""
)
WAYS = {"end": 0, "break": 0, "thread": 0, "exit": 3, "exception": 1, "interrupt": -signal.SIGINT}


def leased(cache: Path) -> list[str]:
    """Published shards that somebody holds a lock on."""
    found = []
    for name in disk.published(cache):
        with (cache / "shards" / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(name)
    return found


@pytest.fixture(params=["alive", "frozen", "stopped"])
def other(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[tuple[Daemon, Any]]:
    """The daemon with all shards local, and what happens to it in mid-epoch."""
    for key in KEYS:
        daemon.path("s", key)
    yield daemon, {"alive": lambda: None, "frozen": daemon.freeze, "stopped": daemon.stop}[request.param]
    daemon.thaw()
    if not daemon.alive:
        daemon.start()


@pytest.mark.slow
@pytest.mark.parametrize("style", ["iterable", "map"])
def test_a_trainer_that_closes_nothing_ends_at_once(other: tuple[Daemon, Any], style: str) -> None:
    """However it ends, and whatever the daemon does at that moment; all its leases end with it (C-60)."""
    daemon, happens = other
    args = [{"how": how, "style": style, "keys": KEYS} for how in WAYS]
    with readers.spawn(daemon, ENDING, args) as trainers:
        for trainer in trainers:
            assert trainer.line(90) == "in mid-epoch"
        happens()
        for trainer, (how, status) in zip(trainers, WAYS.items(), strict=True):
            began = time.monotonic()
            trainer.tell()
            if how == "interrupt":
                assert trainer.line(20) == "going on"
                os.killpg(trainer.pid, signal.SIGINT)
            assert trainer.wait(60) == status, (how, trainer.errors)
            assert time.monotonic() - began < 5, how
            assert not trainer.children()
        daemon.thaw()  # it may hold shards for a moment itself, for those who asked just now
        until(lambda: not leased(daemon.cache), 20, "the end of all leases")
