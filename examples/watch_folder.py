"""Inference on files as a downloader writes them into a folder, with a pool of processes.

    python examples/watch_folder.py incoming results/ [--workers 4] [--idle 60]

`incoming` is a source with `watch = true`; see `docs/watching.md`. A file whose result is there already is left out, so
that a run that is started again goes on where the one before ended. Needs `cachedaemon-client`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cachedaemon_client import Shard, ShardCache
from cachedaemon_client.names import name_of


def infer(shard: Shard) -> dict[str, Any]:
    """One result, made in a worker: here a digest, where a real job would run its model."""
    return {"key": shard.key, "size": shard.size, "sha256": hashlib.sha256(shard.path.read_bytes()).hexdigest()}


def work(source: str, key: str, result: Path) -> str:
    """Infer on one shard, leased meanwhile. A result appears whole or not at all."""
    with ShardCache(source) as cache, cache.open(key) as shard:
        said = infer(shard)
    part = result.with_suffix(".part")
    part.write_text(json.dumps(said))
    part.rename(result)
    return key


def report(done: set[Future[str]]) -> None:
    """A line for each shard that is done, or has failed: one bad file does not end the run."""
    for job in done:
        if (error := job.exception()) is not None:
            print(f"failed: {error}", file=sys.stderr, flush=True)
        else:
            print(job.result(), flush=True)


def run(source: str, results: Path, workers: int, idle: float | None) -> None:
    """Until nothing has come for `idle` seconds; None: for ever."""
    results.mkdir(parents=True, exist_ok=True)
    under_way: set[Future[str]] = set()
    # Not forked: a worker has its own connections from the start.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool, ShardCache(source) as cache:
        for shard in cache.watch(idle=idle):
            result = results / f"{name_of(shard.key)}.json"
            if result.exists():
                continue
            under_way.add(pool.submit(work, source, shard.key, result))
            # While all workers are busy, shard by shard is waited for; the next ones are fetched meanwhile.
            done, under_way = wait(under_way, 0 if len(under_way) < 2 * workers else None, FIRST_COMPLETED)
            report(done)
        report(wait(under_way).done)


def main() -> None:
    """See the module."""
    words = argparse.ArgumentParser(description="Inference on files as they appear in a watched folder.")
    words.add_argument("source")
    words.add_argument("results", type=Path, help="folder of the results, a JSON file for each shard")
    words.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    words.add_argument("--idle", type=float, help="seconds without a new file after which it ends; default: never")
    said = words.parse_args()
    run(said.source, said.results, said.workers, said.idle)


if __name__ == "__main__":
    main()
