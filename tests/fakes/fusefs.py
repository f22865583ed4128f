"""A mount that fails on request: FUSE passthrough over a folder, as a process of its own.

In a test::

    with fuse_fs(folder) as mount:
        mount.turn(errno="ESTALE", ops=["read"])
        ...
        mount.turn()
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from ctypes.util import find_library
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.mounts import is_mounted
from tests.fakes.waiting import freeze, thaw, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def why_no_fuse() -> str | None:
    """Why there is no FUSE here; None when there is."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    if find_library("fuse3") is None and "FUSE_LIBRARY_PATH" not in os.environ:
        return "libfuse3 is not installed"
    return None if shutil.which("fusermount3") else "fusermount3 is not installed"


class FuseFs:
    """A mounted passthrough; `path` is the mount, `folder` what lies below it."""

    def __init__(self, folder: Path, path: Path, control: Path, process: subprocess.Popen[bytes]) -> None:
        """Of a process that was started."""
        self.folder, self.path, self.control, self.process = folder, path, control, process

    def turn(self, **knobs: Any) -> dict[str, int]:
        """Put faults in force (see `passthrough.Knobs`), none without words; the calls counted so far, by name."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.control))
            with connection.makefile("rw") as lines:
                lines.write(json.dumps(knobs) + "\n")
                lines.flush()
                return dict(json.loads(lines.readline()))

    def freeze(self) -> None:
        """SIGSTOP: every call hangs, in a way that only SIGKILL ends."""
        freeze(self.process.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        thaw(self.process.pid)

    def kill9(self) -> None:
        """The server dies: every call fails with ENOTCONN."""
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """Let go whoever hangs, unmount, end the process."""
        if self.process.poll() is None:
            self.thaw()
            with contextlib.suppress(OSError):
                self.turn()
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], capture_output=True, check=False)
        self.kill9()


@contextlib.contextmanager
def fuse_fs(folder: Path) -> Iterator[FuseFs]:
    """`folder`, mounted at another path; skips where there is no FUSE."""
    if reason := why_no_fuse():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="cd-") as home:
        Path(home).chmod(0o755)
        path, control = Path(home, "m"), Path(home, "control")
        path.mkdir()
        command = [sys.executable, "-m", "tests.fakes.passthrough", str(folder), str(path), str(control)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
        made = FuseFs(folder, path, control, process)
        try:
            until(lambda: is_mounted(path) or process.poll() is not None, 20, f"mount of {folder}")
            yield made
        finally:
            made.close()
