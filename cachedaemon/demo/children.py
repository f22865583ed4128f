"""The demo's processes: all end with it, however it ends, and what they say on standard error goes to a file."""

from __future__ import annotations

import contextlib
import ctypes
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from cachedaemon.errors import CacheDaemonError

_PR_SET_PDEATHSIG = 1  # prctl(2)
PATIENCE = 10.0
"""Seconds that a process has to end before it is killed."""


class DemoFailed(CacheDaemonError):
    """Something of the demo did not go as it must."""

    code = "demo_failed"


def end_with_parent() -> None:
    """Have the kernel end this process with its parent, also when it becomes another program (execve(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if select.select([sys.stdin], [], [], 0)[0]:  # its end of our pipe is closed: it went before we could ask
        sys.exit(1)


class Children:
    """Processes that were started here; all gone when the block ends, those started last first."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._errors = folder / "stderr"
        self._environ = environ
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run our Python with these arguments, in a process group of its own: Ctrl-C is the demo's alone."""
        with self._errors.open("a") as errors:
            child = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environ,
                process_group=0,
            )
        self._all.append(child)
        return child

    def failure(self, what: str) -> DemoFailed:
        """An error that ends with the last thing any child said."""
        lines = [line for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        return DemoFailed(f"{what}: {lines[-1] if lines else 'no reason given'}")

    def __enter__(self) -> Self:
        """None so far."""
        return self

    def __exit__(self, *_: object) -> None:
        """End them all, and wait for each."""
        for child in reversed(self._all):
            self.end(child)

    def end(self, child: subprocess.Popen[str]) -> None:
        """End one, by force when it takes too long."""
        child.terminate()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
