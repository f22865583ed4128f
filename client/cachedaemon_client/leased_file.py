"""A shard as an ordinary binary file, whose lease ends when the file is closed."""

from __future__ import annotations

import io
import os

from cachedaemon_client.shard import Shard

BUFFER = 128 << 10
"""Bytes that are read at once."""


class LeasedFile(io.BufferedReader):
    """A shard's bytes, leased until the file is closed or collected, or the process ends. `size` in bytes.

    It reads by a descriptor of its own, which a forked child keeps as it keeps any open file: there the lease is the
    parent's, and the bytes are the same.
    """

    def __init__(self, raw: io.FileIO, shard: Shard) -> None:
        super().__init__(raw, BUFFER)
        self._shard = shard
        self.size = shard.size

    def close(self) -> None:
        """Close the file, then end the lease."""
        try:
            super().close()
        finally:
            self._shard.close()

    def __del__(self) -> None:
        """End the lease without a warning: libraries such as pyarrow leave it to the collector to close what they read."""
        self.close()


def as_file(shard: Shard) -> LeasedFile:
    """The shard as a file, which takes over its lease; IsADirectoryError for a shard that is unpacked."""
    try:
        return LeasedFile(io.FileIO(str(shard.path), "rb", opener=lambda *_: _reopened(shard)), shard)
    except BaseException:
        shard.close()
        raise


def _reopened(shard: Shard) -> int:
    """A second descriptor of what is leased: copies and mappings of it hold no lock."""
    held = shard._descriptor  # noqa: SLF001 - the two belong together
    try:
        return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # no /proc
        own = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
        if os.path.sameopenfile(own, held):
            return own
        os.close(own)
        raise
