"""File systems of a test's own: small, loop-mounted, cut off from power. Where they cannot be had, the test skips."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, the same number as XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32)."""
_NO_LOG_FLUSH = 2
_SMALLEST_XFS = 300 << 20


def why_no_mount() -> str | None:
    """Why this process cannot mount; None when it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return None if _try(["unshare", "--mount", "true"]) else "no mounting in this container"


def why_no_loop(kind: str) -> str | None:
    """Why a file system of this kind cannot be loop-mounted; None when it can."""
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    return why_no_mount() or (None if Path("/dev/loop-control").exists() else "no loop devices")


def _try(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


def is_mounted(path: Path) -> bool:
    """From the kernel's table: a mount whose disk is gone answers no stat."""
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())


def _unmount(path: Path) -> None:
    """Wait for the last user, who is just being killed, then detach."""
    try:
        until(lambda: not is_mounted(path) or _try(["umount", str(path)]), 5, f"umount {path}")
    except AssertionError:
        _run("umount", "--lazy", path)
        raise


class LoopFs:
    """A file system in an image file; `path` is where it is mounted."""

    def __init__(self, image: Path, path: Path) -> None:
        """Made, not yet mounted."""
        self.image, self.path = image, path

    def mount(self, *options: str) -> None:
        """With further mount options."""
        _run("mount", "-o", ",".join(("loop", *options)), self.image, self.path)

    def power_cut(self) -> None:
        """From here on nothing reaches the disk, the journal neither; every use fails with EIO until `remount`."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def remount(self) -> None:
        """Off and on, as after a boot: the journal is replayed. Nobody may have a file open in it."""
        _unmount(self.path)
        self.mount()

    def read_only(self) -> None:
        """Remount read-only; nobody may have a file open for writing. `writable` takes it back."""
        _run("mount", "-o", "remount,ro", self.path)

    def writable(self) -> None:
        """Remount writable."""
        _run("mount", "-o", "remount,rw", self.path)


@contextlib.contextmanager
def loop_fs(kind: str, size: int, folder: Path | None = None) -> Iterator[LoopFs]:
    """An ext4 or xfs of `size` bytes (xfs: 300 MiB at least); skips where it cannot be had.

    Its image lies in `folder`: on a small tmpfs the disk's late errors come as EIO.
    """
    if reason := why_no_loop(kind):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="cd-", dir=folder) as home:
        made = LoopFs(Path(home, "image"), Path(home, "m"))
        made.path.mkdir()
        with made.image.open("wb") as image:
            image.truncate(max(size, _SMALLEST_XFS) if kind == "xfs" else size)
        _run(f"mkfs.{kind}", "-q", *(["-E", "nodiscard"] if kind == "ext4" else ["-K"]), made.image)
        made.mount()
        try:
            yield made
        finally:
            _unmount(made.path)


@contextlib.contextmanager
def small_tmpfs(size: int, inodes: int = 0) -> Iterator[Path]:
    """A tmpfs of `size` bytes and `inodes` inodes (0: no limit); skips where it cannot be had."""
    if reason := why_no_mount():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="cd-") as home:
        path = Path(home, "m")
        path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes},mode=0755", "tmpfs", path)
        try:
            yield path
        finally:
            _unmount(path)
