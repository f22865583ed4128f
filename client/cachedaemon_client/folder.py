"""A folder that is held open, so that what lies in it is found by one name."""

from __future__ import annotations

import contextlib
import os


class OpenFolder:
    """The folder of one source's shards. Not a lease: it keeps nothing from being evicted."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of(cls, path: str) -> OpenFolder | None:
        """Open it; None where that cannot be (the daemon will say why)."""
        try:
            return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def is_stale(self) -> bool:
        """Whether somebody removed the folder."""
        return os.fstat(self.descriptor).st_nlink == 0

    def __del__(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
