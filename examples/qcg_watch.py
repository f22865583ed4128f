"""A program on each file that appears in a folder, as a job of QCG-PilotJob: on one machine, or in a Slurm allocation.

    python examples/qcg_watch.py incoming results/ [--idle 60] [--nodes 4] -- sha256sum {}

`incoming` is a source with `watch = true`; see `docs/watching.md`. Each job is `cachedaemon exec`, which has the shard
leased until the program ends. Its name is the shard's, since QCG-PilotJob refuses a name that it has had. Needs
`cachedaemon`, on every node of the allocation, and `qcg-pilotjob`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

try:
    from qcg.pilotjob.api.job import Jobs
    from qcg.pilotjob.api.manager import LocalManager, Manager

    from cachedaemon_client import ShardCache
    from cachedaemon_client.names import name_of
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"qcg_watch.py needs qcg-pilotjob and cachedaemon-client: {cause}") from None


def job(source: str, key: str, results: Path, command: list[str]) -> Jobs:
    """One job, on one core; what its program prints is the result."""
    name = name_of(key)
    return Jobs().add(
        name=name,
        exec=shutil.which("cachedaemon"),
        args=["exec", source, key, "--", *command],
        stdout=str(results / f"{name}.out"),
        stderr=str(results / f"{name}.err"),
        numCores=1,
    )


def run(manager: Manager, source: str, results: Path, command: list[str], idle: float | None) -> dict[str, str]:
    """Submit a job for each shard until nothing has come for `idle` seconds; how each of them ended."""
    submitted: list[str] = []
    with ShardCache(source) as cache:
        for shard in cache.watch(idle=idle):
            if name_of(shard.key) not in submitted:
                submitted += manager.submit(job(source, shard.key, results, command))
    manager.wait4all()
    return {name: said["data"]["status"] for name, said in manager.status(submitted)["jobs"].items()}


def main() -> None:
    """See the module."""
    words = argparse.ArgumentParser(description="A program on each file that appears in a watched folder.")
    words.add_argument("source")
    words.add_argument("results", type=Path, help="folder of what the programs print")
    words.add_argument("--idle", type=float, help="seconds without a new file after which it ends; default: never")
    words.add_argument("--nodes", help="cores to use on this machine; default: what the allocation has")
    words.add_argument("command", nargs="+", help="the program, with {} for the shard's path")
    said = words.parse_args()
    results = said.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    log = {"log_file": str(results / ".qcg.log")}
    manager = LocalManager(["--wd", str(results), *(["--nodes", said.nodes] if said.nodes else [])], log)
    try:
        ended = run(manager, said.source, results, said.command, said.idle)
    finally:
        manager.finish()
    for name, state in ended.items():
        print(name, state, flush=True)
    sys.exit(any(state != "SUCCEED" for state in ended.values()))


if __name__ == "__main__":
    main()
