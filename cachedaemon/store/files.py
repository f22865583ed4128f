"""Small files beside the shards: there as a whole or not at all, and read without stopping whoever reads. All calls block."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from dataclasses import asdict

from cachedaemon.model import Meta, Validators
from cachedaemon.store.disk import DIGEST, seal, sync_folder, unlink
from cachedaemon.store.layout import Modes

PASSING = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says nothing of the file: the disk failed, or the daemon was short of something."""


def write_meta(meta: Meta, beside: str, modes: Modes, used: float | None = None, *, durable: bool = False) -> None:
    """Write a meta file, to be renamed into place; its mtime is the last use (Unix seconds; None: now)."""
    stamp = time.time_ns() if used is None else int(used * 1e9)
    _write_file(beside, json.dumps(asdict(meta)), modes, stamp, durable=durable)


def replace_file(place: str, text: str, beside: str, modes: Modes) -> None:
    """Exchange a small file as a whole, durably: with an empty one after a power cut all would be in doubt."""
    _write_file(beside, text, modes, time.time_ns(), durable=True)
    try:
        os.rename(beside, place)
    except BaseException:
        unlink(beside)
        raise
    sync_folder(os.path.dirname(place))


def _write_file(path: str, text: str, modes: Modes, mtime_ns: int, *, durable: bool = False) -> None:
    """A new file, whole or not there at all."""
    unlink(path)  # what a killed daemon left there has a mode that its owner cannot write with
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        seal(descriptor, modes.file, modes.group, mtime_ns)
        if durable:
            os.fsync(descriptor)
    except BaseException:
        unlink(path)
        raise
    finally:
        os.close(descriptor)


def read_meta(place: str) -> Meta | None:
    """The meta file; None where there is none that can be read as one: after a power cut it may be empty or lost.

    OSError when it could not be looked at: a disk that fails for a moment must not cost a shard.
    """
    try:
        said = json.loads(read_regular(place))
        meta = Meta(**{**said, "validators": Validators(**said["validators"])})
    except OSError as cause:
        if cause.errno in PASSING:
            raise
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    kinds = ((meta.key, str), (meta.digest, str), (meta.size, int), (meta.blocks, int), (meta.inodes, int))
    return meta if all(isinstance(value, kind) for value, kind in kinds) else None


def read_regular(place: str) -> bytes:
    """A small file's bytes; OSError, also for anything but a regular file: a FIFO would stop whoever reads it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", place)
        return file.read()


def fits(said: Meta, seen: os.stat_result) -> bool:
    """Whether what `stat` saw can be the shard of a meta file: a folder where a tree was unpacked, a file of its size."""
    if said.digest.startswith(DIGEST):
        return stat.S_ISREG(seen.st_mode) and said.size == seen.st_size
    return stat.S_ISDIR(seen.st_mode)
