"""One job: ranks that read all epochs by a rival's loader, in step at the end of each. Runs under the rival's interpreter.

    python rivals_read.py TASK FOLDER

TASK is JSON; each rank writes what it saw to FOLDER. It prints a line when it is ready, and begins when it reads one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import rivals_sides
from rivals_data import load
from rivals_sides import Task

PATIENCE = 300.0
"""Seconds that a rank waits for the others."""


def read(task: Task, rank: int, gate: Barrier, step: Barrier, out: Path) -> None:
    """One rank's epochs, and what became of them."""
    os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK", "GLOBAL_RANK")}
    seen: list[list[int]] = []
    said: dict[str, Any] = {"epochs": seen, "error": ""}
    try:
        _read(task, rank, gate, step, said)
    except BrokenBarrierError:
        pass  # another one's error, which that one tells
    except Exception as cause:  # noqa: BLE001 - a rival's error is a result
        said["error"] = f"{type(cause).__name__}: {cause}"
        gate.abort()
        step.abort()
    out.write_text(json.dumps(said))


def _read(task: Task, rank: int, gate: Barrier, step: Barrier, said: dict[str, Any]) -> None:
    epochs = rivals_sides.loader_of(task, rank)
    gate.wait(PATIENCE)
    gate.wait(PATIENCE)
    said["began"] = time.monotonic()
    for number in range(task.epochs):
        seen: list[int] = []
        said["epochs"].append(seen)
        for batch in epochs(number):
            seen += batch
        step.wait(PATIENCE)
    said["ended"] = time.monotonic()


def free_port() -> int:
    """A TCP port that was free a moment ago: where the ranks of a job meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Fork the ranks once everything is imported."""
    task, folder = Task(**json.loads(sys.argv[1])), Path(sys.argv[2])
    os.environ |= rivals_sides.ENVIRONMENT
    os.environ |= {name: str(task.ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    load(task.rival)  # before the ranks are forked, so that none of them pays for it
    fork = multiprocessing.get_context("fork")
    gate, step = fork.Barrier(task.ranks + 1), fork.Barrier(task.ranks)
    ranks = [
        fork.Process(target=read, args=(task, rank, gate, step, folder / f"{rank}.json")) for rank in range(task.ranks)
    ]
    for rank in ranks:
        rank.start()
    try:
        gate.wait(PATIENCE)
        print("ready", flush=True)
        sys.stdin.readline()
        gate.wait(PATIENCE)
    except BrokenBarrierError:
        pass
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
