"""Containerfiles: what their instructions say, and their steps performed in a folder of this machine in place of a base image.

The root of such a container is an overlay of this machine's: what is done in it changes nothing outside. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

_SETUP = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
chmod 755 "$1/root/root" # an interpreter below root's home is everybody's in here
echo ready
read -r end
"""


@dataclass(frozen=True)
class Step:
    """One instruction. `words` are those of its exec form, or None where it is left to a shell."""

    name: str
    text: str

    @property
    def words(self) -> list[str] | None:
        said = self.text[self.text.index("[") :] if "[" in self.text else ""
        return list(json.loads(said)) if said else None


@dataclass
class Stage:
    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def last(self, name: str) -> Step:
        """The instruction that is in force."""
        return [step for step in self.steps if step.name == name][-1]


def parse(text: str) -> list[Stage]:
    """The stages; every instruction stands on one line."""
    stages: list[Stage] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stages.append(Stage(base, alias))
        elif line and not line.startswith("#"):
            stages[-1].steps.append(Step(name, rest))
    return stages


class Container:
    """A root of its own, until the block ends."""

    def __init__(self) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="cd-root-", dir="/tmp"))
        self.root = self._work / "root"
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", _SETUP, "bash", str(self._work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._holder.stdout is not None
        if (said := self._holder.stdout.readline()) != "ready\n":
            self.__exit__()
            pytest.skip(f"no root can be made here: {said.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.communicate("end\n", timeout=30)
        shutil.rmtree(self._work)

    def outside(self, *argv: str | os.PathLike[str]) -> None:
        """Run a program of this machine's that sees the root's mounts at `root`."""
        assert self._holder is not None
        command = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *map(os.fspath, argv)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert ran.returncode == 0, f"{argv}: {ran.stderr}"

    def bind(self, source: Path, place: str, *, read_only: bool = False) -> None:
        """Mount a folder of this machine."""
        there = f"{self.root}{place}"
        self.outside("mkdir", "-p", there)
        self.outside("mount", "--bind", source, there)
        if read_only:
            self.outside("mount", "-o", "remount,bind,ro", there)

    def seal(self) -> None:
        """From now on the root is read-only, and without a shell."""
        for shell in ("sh", "bash", "dash"):
            self.outside("mount", "--bind", "/dev/null", f"{self.root}/bin/{shell}")
        self.outside("mount", "-o", "remount,ro", self.root)

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: int = 0,
        group: int = 0,
        groups: Sequence[int] = (),
        bounding: str = "",
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program in it, as PID 1 of its own. `bounding`: what root may still do, as setpriv takes it."""
        assert self._holder is not None
        rights = [f"--reuid={user}", f"--regid={group}", "--no-new-privs"]
        rights += [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        rights += [f"--bounding-set={bounding}"] if bounding else []
        command = [
            *("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"),
            *("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", f"--mount-proc={self.root}/proc"),
            *("env", f"--chdir={self.root}{cwd}", "chroot", str(self.root)),
            *("env", f"--chdir={cwd}", "setpriv", *rights, "--", *argv),
        ]
        return subprocess.Popen(command, env={"PATH": os.environ["PATH"], **(env or {})}, **options)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program in it to its end, 600 s at most."""
        with self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options) as process:
            said, _ = process.communicate(timeout=600)
        return subprocess.CompletedProcess(list(argv), process.returncode, said, "")

    def build(self, stages: Sequence[Stage], context: Path) -> None:
        """Perform what the stages say of files: all of them in this one root."""
        for stage in stages:
            folder = "/"
            for step in stage.steps:
                if step.name == "WORKDIR":
                    folder = step.text
                    self.outside("mkdir", "-p", f"{self.root}{folder}")
                elif step.name == "COPY" and not step.text.startswith("--from"):
                    self._copy(step.text.split(), context, folder)
                elif step.name == "RUN":
                    assert step.words is not None
                    ran = self.run(step.words, cwd=folder, env={"HOME": "/root"})
                    assert ran.returncode == 0, f"{step.text}: {ran.stdout}"

    def _copy(self, words: list[str], context: Path, folder: str) -> None:
        *sources, target = words
        place = Path(f"{self.root}{os.path.join(folder, target)}")
        self.outside("mkdir", "-p", place if target.endswith("/") else place.parent)
        for source in sources:
            what = f"{context}/{source}" + ("." if source.endswith("/") else "")
            self.outside("cp", "-r", what, place)
