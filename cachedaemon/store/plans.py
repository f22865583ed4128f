"""The files of plans, each held by its plan's owner. All calls block; none runs on the loop."""

from __future__ import annotations

import errno
import fcntl
import os

from cachedaemon.store.layout import Modes


def make(path: str, modes: Modes) -> str:
    """Make a plan's file, or leave it as it is; its path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if modes.group is not None:
            os.fchown(descriptor, -1, modes.group)
        os.fchmod(descriptor, modes.file)
    finally:
        os.close(descriptor)
    return path


def is_held(path: str) -> bool:
    """Whether somebody holds a plan's file; OSError when that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as cause:
        if cause.errno in {errno.ENOENT, errno.ELOOP}:  # a link in its place is nobody's hold
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
