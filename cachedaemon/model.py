"""Values that cross the boundaries between layers; all frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

BLOCK = 4096
"""Bytes of a file system block, the unit of reservations."""


class Ref(NamedTuple):
    """Which shard: the source's name, and the key within it."""

    source: str
    key: str

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.source}/{self.key}"


class Stamp(NamedTuple):
    """Identity of one published file or folder: what `stat` says of it. A path never changes its stamp."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Need(NamedTuple):
    """Room on the disk: bytes in whole blocks, and inodes."""

    bytes: int
    inodes: int = 1


class Share(Protocol):
    """A part of the file system that is left to others."""

    def of(self, total_bytes: int) -> int:
        """Bytes of a file system of `total_bytes`."""

    def of_inodes(self, total_inodes: int, total_bytes: int) -> int:
        """Inodes likewise."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of the cache; 0: none."""

    max_shards: int
    max_bytes: int
    min_free: Share


class Disk(NamedTuple):
    """What `statvfs` says, in bytes and inodes. A file system without a count of inodes says 0."""

    total: int
    free: int
    inodes: int
    free_inodes: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Validators:
    """What the origin says of the version that was read."""

    etag: str | None = None
    version: str | None = None
    modified: str | None = None


class Digest(NamedTuple):
    """What somebody says that all bytes of an object come to."""

    kind: str
    """One of `digests.KINDS`."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Meta:
    """Content of `meta/<source>/<name>.json`; the file's own mtime is the last use."""

    key: str
    size: int
    digest: str
    blocks: int
    """Allocated bytes of the shard, as `du` counts them."""
    inodes: int
    """Inodes of the shard, its meta file and member table."""
    fetched: float
    """Unix seconds."""
    validators: Validators = field(default_factory=Validators)
    synced: bool = False


Taken = Callable[[int], object]
"""Hears, in the thread that reads something long, how many bytes were read. It may wait, and end the reading by raising."""


def unheeded(_: int) -> None:
    """For a reading that nobody follows."""


def blocks(size: int) -> int:
    """Bytes that a file of `size` bytes takes on the disk, in whole blocks, with those of its extent tree."""
    return -(-size // BLOCK) * BLOCK + extent_tree(size)


def extent_tree(size: int) -> int:
    """Bytes of the blocks in which ext4 and xfs list the extents of a file, when there are more than four.

    A file of 64 MiB can get there, and one that is written in several places at once from 32 MiB on. A block lists 340
    extents, and they have seldom less than a MiB.
    """
    return BLOCK * (1 + size // (256 << 20)) if size >= 32 << 20 else 0
