"""Deleting what lies in trash, and how much room that gives back. All of it blocks."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable

from cachedaemon.model import Need


def reap(trash: str) -> bool:
    """Delete what was moved to trash; False while somebody reads in the folder (it was moved away from a reader)."""
    try:
        descriptor = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, FileNotFoundError, PermissionError):
        descriptor = -1  # no folder, or one that nobody can be in
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        delete(trash)
    except BlockingIOError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def delete(path: str) -> None:
    """Remove a file or a whole folder, whatever its modes are, and however deep or large it is.

    Every folder below is moved to the top before it is emptied: so no path becomes too long, and no level holds a
    descriptor.
    """
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(seen.st_mode):
        os.unlink(path)
        return
    while folders := _emptied(path):
        for folder in folders:
            _emptied(folder, path)
            os.rmdir(folder)
    os.rmdir(path)


def _emptied(folder: str, top: str | None = None) -> list[str]:
    """Unlink what is no folder, move folders to `top`; the folders that are left."""
    os.chmod(folder, 0o700)
    left = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif top is None:
                left.append(entry.path)
            else:
                os.chmod(entry.path, 0o700)  # a folder that its owner cannot write cannot be moved
                os.rename(entry.path, f"{top}/.{entry.inode()}")
    return left


def allocated(path: str) -> Need:
    """Allocated bytes of the regular files of a tree, every inode once, and all its inodes."""
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode):
        return Need(seen.st_blocks * 512 if stat.S_ISREG(seen.st_mode) else 0, 1)
    known: dict[int, int] = {}
    count = 1
    for _, folders, files, here in os.fwalk(path, follow_symlinks=False):
        count += len(folders) + len(files)
        for name in files:
            inner = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISREG(inner.st_mode):
                known[inner.st_ino] = inner.st_blocks * 512
    return Need(sum(known.values()), count)


def rooms(paths: Iterable[str]) -> list[tuple[str, Need]]:
    """What lies in trash and how much each is; nothing for what somebody else deletes meanwhile."""
    return [(path, _room(path)) for path in paths]


def _room(path: str) -> Need:
    try:
        return allocated(path)
    except OSError:
        return Need(0, 0)
