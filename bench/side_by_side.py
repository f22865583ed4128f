"""What the programs of this folder share: sides that take turns, what they cost, a table, and an honest exit status.

A program runs all sides in one go and prints ratios. Its exit status is 0 whatever the ratios are, and 1 only when it
could not measure: a timed test of a shared machine would say nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the harness of the tests starts daemons and origins here too

from tests.fakes.daemon import Daemon, free_port  # noqa: E402 - needs the path
from tests.fakes.waiting import family, until  # noqa: E402

__all__ = ["ROOT", "Daemon", "Nginx", "children_cpu", "cpu", "main", "rss", "table", "until", "verdict"]

TICKS = os.sysconf("SC_CLK_TCK")
GB = 1e9


class NotMeasured(Exception):
    """A side could not run, or did something else than what is measured."""


def main(run: Callable[[], None]) -> None:
    """Run a program; exit with 1 when it could not measure."""
    try:
        run()
    except (NotMeasured, AssertionError, OSError, subprocess.SubprocessError) as cause:
        print(f"could not measure: {cause}", file=sys.stderr)
        sys.exit(1)


# --- tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: the first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, *rows):
        first, *rest = (
            cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in _cells(line, widths)
        )
        print("  ".join(["", first, *rest]).rstrip())


def _cells(line: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))


def verdict(
    figure: int, what: str, value: float, *, at_most: float | None = None, at_least: float | None = None
) -> None:
    """Print what came out against what is to be reached."""
    reached = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    wanted = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
    print(f"  figure {figure}: {what}: {value:.2f} ({wanted}): {'reached' if reached else 'MISSED'}")


def middle(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


# --- costs


def cpu(pid: int) -> float:
    """Seconds of CPU that a process and its children, living and ended, have used so far (proc(5), stat)."""
    return sum(_seconds(one) for one in (pid, *family(pid)))


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def children_cpu() -> float:
    """Seconds of CPU of this program's ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rss(pid: int) -> float:
    """Bytes in memory of a process and its children."""
    return sum(_resident(one) for one in (pid, *family(pid)))


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


# --- places


@contextlib.contextmanager
def folder(where: str | Path) -> Iterator[Path]:
    """A folder of this run's own; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="cd-bench-", dir=where, ignore_cleanup_errors=True) as name:
        yield Path(name)


def filled(path: Path, size: int) -> Path:
    """A file of random bytes, which no file system keeps short."""
    left = size
    with path.open("wb") as file:
        while left:
            left -= file.write(os.urandom(min(left, 1 << 24)))
    return path


class Nginx:
    """A web server for the files of one folder: `with Nginx(folder) as server: server.url`."""

    CONFIG = """\
daemon off; master_process off; worker_processes 1; pid {home}/pid; error_log {home}/error.log warn;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  client_body_temp_path {home}/1; proxy_temp_path {home}/2; fastcgi_temp_path {home}/3;
  uwsgi_temp_path {home}/4; scgi_temp_path {home}/5;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {root}; }}
}}
"""

    def __init__(self, root: Path) -> None:
        """Serves `root`."""
        self.root, self.port = root, free_port()
        self._stack = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Prefix of all files, with the last slash."""
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        """Listening."""
        if (program := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")) is None:
            raise NotMeasured("nginx is not installed")
        home = self._stack.enter_context(folder("/tmp"))
        (home / "nginx.conf").write_text(self.CONFIG.format(home=home, port=self.port, root=self.root))
        process = subprocess.Popen([program, "-e", str(home / "error.log"), "-c", str(home / "nginx.conf")])
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.terminate)
        until((home / "pid").exists, 10, "nginx")
        return self

    def __exit__(self, *_: object) -> None:
        """Ended."""
        self._stack.close()
