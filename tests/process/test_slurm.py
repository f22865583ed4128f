"""The scripts for Slurm, run as slurmd would: the prolog's daemon is there, once, and nothing of it is after the epilog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fakes import toml
from tests.fakes.daemon import COMMAND
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SCRIPTS = PROJECT / "deploy/slurm"
FAKE_SRUN = '#!/bin/sh\nwhile :; do case "$1" in -*) shift ;; *) break ;; esac; done\nexec "$@"\n'
STAND_IN = """#!/usr/bin/python3
import signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.bind(sys.argv[sys.argv.index("--socket") + 1])
signal.sigwait([signal.SIGTERM])
"""
TRAINER = "from cachedaemon_client import ShardCache\nwith ShardCache('s').open('a.bin') as shard: print(shard.size)"


class Node:
    """A node with its folders, on which jobs begin and end."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        self.config = folder / "cachedaemon.toml"
        self.config.write_text(toml.dumps({"sources": {"s": {"url": url}}, "cache": {"min_free": "1MB"}}))
        # The project may lie where the job's user cannot go: the tests' own way in stands in for an installed program.
        self.program = folder / "bin/cachedaemon"
        self.program.write_text(f"#!/bin/sh\nexec '{COMMAND}' \"$@\"\n")
        self.program.chmod(0o755)

    def environ(self, job: int) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SLURM_JOB_ID": str(job),
            "SLURM_NNODES": "1",
            "SLURM_JOB_UID": str(os.geteuid()),
            "SLURM_JOB_GID": str(os.getegid()),
            "CACHEDAEMON_PROGRAM": str(self.program),
            "CACHEDAEMON_CONFIG": str(self.config),
            "CACHEDAEMON_SCRATCH": str(self.folder / "scratch"),
            "CACHEDAEMON_RUN": str(self.folder / "run"),
            "PYTHONPATH": f"{PROJECT}:{PROJECT / 'client'}",
        }

    def run(self, script: str, job: int, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPTS / script)],
            env=self.environ(job) | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def pid(self, job: int) -> int:
        return int((self.folder / f"run/{job}.pid").read_text().split()[0])

    def left(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.glob("*/*") if p.parent.name != "bin")


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with Origin() as origin:
        origin.put("a.bin", 1234)
        node = Node(folder, origin.url)
        yield node
        for note in (folder / "run").glob("*.pid"):
            node.run("epilog.sh", int(note.stem))


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def trained(environ: Mapping[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", TRAINER], env=environ, capture_output=True, text=True, check=True
    ).stdout


def test_a_job_has_its_daemon_from_prolog_to_epilog(node: Node) -> None:
    """Each script does nothing more when it is run again; another job's daemon is left alone."""
    for _ in range(2):
        ran = node.run("prolog.sh", 7)
        assert (ran.returncode, ran.stderr) == (0, "")
    assert node.run("prolog.sh", 8).returncode == 0
    first, other = node.pid(7), node.pid(8)
    assert first != other
    told = node.run("task-prolog.sh", 7).stdout
    assert told.startswith("export CACHEDAEMON_SOCKET=")
    assert trained(node.environ(7) | {"CACHEDAEMON_SOCKET": told.strip().partition("=")[2]}) == "1234\n"
    assert (node.folder / "scratch/job-7").stat().st_mode & 0o777 == 0o700
    for _ in range(2):
        ran = node.run("epilog.sh", 7)
        assert (ran.returncode, ran.stderr) == (0, "")
    assert not lives(first)
    assert lives(other)
    assert not [name for name in node.left() if "7" in name]
    assert node.run("epilog.sh", 8).returncode == 0
    assert node.left() == []


@pytest.mark.parametrize("job", ["../kept", "*", "7 8", "-7"])
def test_what_is_no_jobs_number_removes_nothing(node: Node, job: str) -> None:
    (kept := node.folder / "kept").mkdir()
    ran = node.run("epilog.sh", 7, SLURM_JOB_ID=job)
    assert (ran.returncode, ran.stderr) == (1, f"SLURM_JOB_ID: {job} is no number\n")
    assert kept.exists()


@pytest.mark.slow
def test_a_number_that_another_process_has_by_now_is_not_ended(node: Node) -> None:
    assert node.run("prolog.sh", 7).returncode == 0
    pid, note = node.pid(7), node.folder / "run/7.pid"
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), 10, "the end of the daemon")
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        note.write_text(f"{bystander.pid} {note.read_text().split()[1]}1\n")
        assert node.run("epilog.sh", 7).returncode == 0
        assert bystander.poll() is None
        assert node.left() == []
    finally:
        bystander.kill()
        bystander.wait()


def test_a_daemon_that_cannot_start_fails_the_prolog_with_its_reason(node: Node) -> None:
    node.config.write_text("[cache]\nmax_shard = 1\n")
    ran = node.run("prolog.sh", 7)
    assert ran.returncode == 1
    assert "cachedaemon of job 7 did not start" in ran.stderr
    assert "did you mean cache.max_shards?" in ran.stderr
    assert node.run("epilog.sh", 7).returncode == 0
    assert node.left() == []


@pytest.mark.root
@pytest.mark.slow
def test_the_daemon_is_the_jobs_users(node: Node) -> None:
    """Root starts it, and it has no right of root's. A stand-in for the program, since the tests' own may lie where no user gets."""
    node.program.write_text(STAND_IN)
    ids = {"SLURM_JOB_UID": "65534", "SLURM_JOB_GID": "65534"}
    assert (ran := node.run("prolog.sh", 7, **ids)).returncode == 0, ran.stderr
    status = Path(f"/proc/{node.pid(7)}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "Gid:\t65534\t65534\t65534\t65534" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert (node.folder / "run/7.pid").stat().st_uid == 0, "whom root ends is root's to say"
    assert node.run("epilog.sh", 7, **ids).returncode == 0
    assert node.left() == []


@pytest.mark.slow
def test_a_job_that_brings_its_own(node: Node) -> None:
    """The batch script with an srun that knows one node."""
    srun = node.folder / "bin/srun"
    srun.write_text(FAKE_SRUN)
    srun.chmod(0o755)
    (node.folder / "tmp").mkdir()
    environ = node.environ(7) | {"TMPDIR": str(node.folder / "tmp")}
    bash = shutil.which("bash") or "bash"
    ran = subprocess.run(
        [bash, str(SCRIPTS / "job.sbatch"), sys.executable, "-c", TRAINER],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert ran.returncode == 0, ran.stderr
    assert "1234\n" in ran.stdout
    assert not list((node.folder / "tmp").iterdir())


def test_the_scripts_are_sound() -> None:
    for script in SCRIPTS.iterdir():
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert os.access(script, os.X_OK) == (script.suffix == ".sh" and script.name != "places.sh")
