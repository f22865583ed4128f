"""A folder that is held open, so that what lies in it is found by one name."""

from __future__ import annotations

import contextlib
import os


class OpenFolder:
    """The folder of one source's shards. Not a lease: it keeps nothing from being evicted.

    Without a descriptor (None) shards are found by their whole paths.
    """

    __slots__ = ("_path", "descriptor")

    def __init__(self, descriptor: int | None, path: str = "") -> None:
        self._path = path
        self.descriptor = descriptor

    @classmethod
    def of(cls, path: str) -> OpenFolder:
        """Open it. Where that cannot be, paths are used whole, and the daemon will say why."""
        try:
            return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError:
            return WHOLE

    @property
    def is_stale(self) -> bool:
        """Whether it is to be opened (again): never was, or somebody removed the folder."""
        return self.descriptor is None or os.fstat(self.descriptor).st_nlink == 0

    def serves(self, path: str) -> bool:
        """Whether what lies in the folder `path` can be opened below this one."""
        return self._path == path and not self.is_stale

    def name_of(self, path: str) -> str:
        """How `path` is opened below this folder: the kernel walks one name instead of the whole path."""
        return path if self.descriptor is None else path.rpartition("/")[2]

    def __del__(self) -> None:
        """Close it."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)


WHOLE = OpenFolder(None)
