"""The process that reads archives: `python -m cachedaemon.archives.worker PARENT MEMORY`.

Jobs come as JSON lines on standard input, answers leave as JSON lines on standard output, one job at a time. It trusts
nothing in an archive, holds no descriptor of the daemon's but its two pipes, dies with the daemon, and is killed when it
takes too long. It ends by itself after 30 s without a job, or when its input ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import sys
from typing import Any

from cachedaemon.archives import jobs
from cachedaemon.archives.catalog import Bounds
from cachedaemon.archives.names import bad
from cachedaemon.archives.tree import Modes
from cachedaemon.errors import BadArchive

IDLE = 30.0  # seconds
_PR_SET_PDEATHSIG = 1  # prctl(2)
_ADDRESSES_MORE = 512 << 20  # address space that is never touched: libraries, and what allocators set aside

_BY_ERRNO = {
    errno.ENAMETOOLONG: "bad-name",
    errno.EILSEQ: "bad-name",
    errno.EINVAL: "bad-name",
    errno.EEXIST: "name-conflict",  # names that differ for us, and not for a disk that folds case
    errno.ENOTDIR: "name-conflict",
    errno.EISDIR: "name-conflict",
    errno.EMLINK: "limit",
}

Answer = dict[str, object]


class _Ended(Exception):
    """The daemon has closed our input."""


class Lines:
    """JSON objects on a pipe of descriptors; reads wait for `IDLE` seconds at the most when idle."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in, self._out = fd_in, fd_out
        self._kept = b""

    def read(self, timeout: float | None) -> dict[str, Any]:
        """The next object; raises _Ended at the end of the input, or when none comes in time."""
        while b"\n" not in self._kept:
            if not select.select([self._in], [], [], timeout)[0]:
                raise _Ended
            data = os.read(self._in, 1 << 16)
            if not data:
                raise _Ended
            self._kept += data
        line, self._kept = self._kept.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def write(self, answer: Answer) -> None:
        """Send one object."""
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]

    def ask(self, size: int, inodes: int) -> None:
        """Ask for room in all, and wait until it is granted, however long that takes."""
        self.write({"need": [size, inodes]})
        self.read(None)


def _bind_to(parent: int) -> None:
    """Die when the daemon does; it may have gone before we asked for that."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def _close_others() -> None:
    """Close what came along besides the pipes: uvloop passes on what is inheritable, such as sockets from systemd."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own has gone
                os.close(int(name))


def _limit(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_AS, (most + _ADDRESSES_MORE, most + _ADDRESSES_MORE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # it starts nothing, whatever it has read


def _run(job: dict[str, Any], lines: Lines) -> Answer:
    arguments = {key: value for key, value in job.items() if key != "job"}
    arguments["bounds"] = Bounds(*job["bounds"])
    if job["job"] == "index":
        return jobs.index(jobs.Index(**arguments))
    arguments["modes"] = Modes(*job["modes"])
    return jobs.unpack(jobs.Unpack(**arguments), lines.ask)


def _answered(job: dict[str, Any], lines: Lines) -> tuple[Answer, bool]:
    """The answer, and whether this process is good for another job."""
    try:
        return {"done": _run(job, lines)}, True
    except BadArchive as error:
        return _refusal(error), True
    except OSError as error:
        return _disk(error), False
    except (MemoryError, OverflowError):
        return _refusal(bad("limit", None, "the archive needs more memory than is allowed")), False
    except _Ended:
        raise
    except Exception as error:  # noqa: BLE001 - nothing that an archive provokes may leave as anything else
        return _refusal(bad("corrupt", None, f"the archive cannot be read ({type(error).__name__}: {error})")), False


def _refusal(error: BadArchive) -> Answer:
    return {"bad": {"message": str(error)[:8192], "reason": error.reason, "member": error.member}}


def _disk(error: OSError) -> Answer:
    cause = os.strerror(error.errno or 0)
    if error.errno in _BY_ERRNO:
        name = os.fsencode(error.filename) if isinstance(error.filename, str | bytes) else None
        return _refusal(bad(_BY_ERRNO[error.errno], name, f"the disk refuses it: {cause}"))
    if error.errno == errno.ENOMEM:
        return _refusal(bad("limit", None, "the archive needs more memory than is allowed"))
    return {"disk": cause}


def main() -> None:
    """Serve jobs until there are no more."""
    parent, memory = map(int, sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the daemon says when we end
    _bind_to(parent)
    _close_others()
    _limit(memory)
    gc.disable()  # a million entries, no cycles: collecting would only cost
    lines = Lines(0, 1)
    try:
        good = True
        while good:
            answer, good = _answered(lines.read(IDLE), lines)
            lines.write(answer)
    except (_Ended, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
