"""The file system process behind `fusefs`: passes every call on to a folder, after the faults that were asked for.

`python -m tests.fakes.passthrough FOLDER MOUNT CONTROL`: CONTROL is the path of a Unix socket on which each
connection sends one JSON line of faults and is answered the calls counted so far.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import mfusepy  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F = TypeVar("F", bound="Callable[..., Any]")

_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_STATUS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")
_SPACE = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_namemax")


@dataclass(frozen=True, slots=True)
class Knobs:
    """Faults in force; they replace those before, and their count begins anew."""

    ops: tuple[str, ...] = ()
    """Which calls (read, write, getattr, ...); none named: all."""
    delay: float = 0.0
    """Seconds before each."""
    hang: bool = False
    """Wait until other knobs are set."""
    errno: str = ""
    """Name of the error, such as EIO or ESTALE. The kernel repeats a call on a path once after ESTALE, not a read."""
    nth: int = 0
    """Only the so-manieth call fails (1: the next)."""
    every: int = 1
    """Each so-manieth call fails."""


class Faults:
    """Applies the knobs to calls; counts all calls by name."""

    def __init__(self) -> None:
        """Nothing fails."""
        self.knobs = Knobs()
        self.calls: dict[str, int] = {}
        self._since = 0
        self._changed = threading.Condition()

    def turn(self, knobs: Knobs) -> dict[str, int]:
        """Put other knobs in force; the calls counted so far."""
        with self._changed:
            self.knobs, self._since = knobs, 0
            self._changed.notify_all()
            return dict(self.calls)

    def before(self, op: str) -> None:
        """Wait or raise, as the knobs say."""
        with self._changed:
            self.calls[op] = self.calls.get(op, 0) + 1
            knobs = self.knobs
            if knobs.ops and op not in knobs.ops:
                return
            self._since += 1
            number = self._since
            self._changed.wait_for(lambda: not self.knobs.hang)
        if knobs.delay:
            time.sleep(knobs.delay)
        if knobs.errno and (number == knobs.nth if knobs.nth else number % knobs.every == 0):
            raise OSError(getattr(errno, knobs.errno), f"{op} as asked")


def faulty(method: F) -> F:
    """A call that the faults apply to."""

    @functools.wraps(method)
    def wrapped(self: Passthrough, *args: Any) -> Any:
        self.faults.before(method.__name__)
        return method(self, *args)

    return cast("F", wrapped)


class Passthrough(mfusepy.Operations):  # type: ignore[misc]  # untyped
    """Every call goes to the same place below `root`."""

    use_ns = True

    def __init__(self, root: str, faults: Faults) -> None:
        """`root` is the folder shown."""
        self.root, self.faults = root, faults

    def _at(self, path: str) -> str:
        return self.root + path

    def _own(self, path: str) -> None:
        """What a user makes belongs to that user."""
        if os.geteuid() == 0:
            uid, gid, _ = mfusepy.fuse_get_context()
            os.chown(self._at(path), uid, gid, follow_symlinks=False)

    @faulty
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.fstat(fh) if fh else os.lstat(self._at(path))
        times = {"st_atime": status.st_atime_ns, "st_mtime": status.st_mtime_ns, "st_ctime": status.st_ctime_ns}
        return {**{name: getattr(status, name) for name in _STATUS}, **times}

    @faulty
    def readdir(self, path: str, _fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        """With inode numbers: the C library leaves out entries whose number is 0."""
        here = os.stat(self._at(path)).st_ino
        with os.scandir(self._at(path)) as entries:
            found = [(entry.name, entry.inode()) for entry in entries]
        return iter([(name, {"st_ino": inode}, 0) for name, inode in [(".", here), ("..", here), *found]])

    @faulty
    def access(self, path: str, mode: int) -> int:
        if not os.access(self._at(path), mode):
            raise OSError(errno.EACCES, path)
        return 0

    @faulty
    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_DIRECT)

    @faulty
    def create(self, path: str, mode: int, flags: int = os.O_WRONLY) -> int:
        made = os.open(self._at(path), (flags & ~os.O_DIRECT) | os.O_CREAT, mode)
        self._own(path)
        return made

    @faulty
    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    @faulty
    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    @faulty
    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(fh or self._at(path), length)

    @faulty
    def flush(self, _path: str, fh: int) -> None:
        os.close(os.dup(fh))

    @faulty
    def fsync(self, _path: str, datasync: int, fh: int) -> None:
        (os.fdatasync if datasync else os.fsync)(fh)

    @faulty
    def fsyncdir(self, path: str, _datasync: int, _fh: int) -> None:
        folder = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def release(self, _path: str, fh: int) -> None:
        os.close(fh)

    @faulty
    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)
        self._own(path)

    @faulty
    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    @faulty
    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    @faulty
    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    @faulty
    def link(self, target: str, source: str) -> None:
        os.link(self._at(source), self._at(target))

    @faulty
    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._at(target))
        self._own(target)

    @faulty
    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    @faulty
    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)

    @faulty
    def chown(self, path: str, uid: int, gid: int) -> None:
        # (uid_t)-1 means "leave": it comes as an unsigned number.
        unsigned = (1 << 32) - 1
        os.chown(self._at(path), *(-1 if n == unsigned else n for n in (uid, gid)), follow_symlinks=False)

    @faulty
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        status = os.lstat(self._at(path))
        asked = times or (_UTIME_NOW, _UTIME_NOW)
        kept = (status.st_atime_ns, status.st_mtime_ns)
        atime, mtime = (_instant(want, old) for want, old in zip(asked, kept, strict=True))
        os.utime(self._at(path), ns=(atime, mtime), follow_symlinks=False)

    @faulty
    def statfs(self, path: str) -> dict[str, int]:
        space = os.statvfs(self._at(path))
        return {name: getattr(space, name) for name in _SPACE if hasattr(space, name)}


def _instant(asked: int, old: int) -> int:
    """utimensat(2): two values of tv_nsec have a meaning of their own."""
    return {_UTIME_NOW: time.time_ns(), _UTIME_OMIT: old}.get(asked, asked)


def control(faults: Faults, listener: socket.socket) -> None:
    """Turn the knobs as told, for ever."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            said = json.loads(lines.readline())
            calls = faults.turn(Knobs(**{**said, "ops": tuple(said.get("ops", ()))}))
            lines.write(json.dumps(calls) + "\n")


def main() -> None:
    """Serve until unmounted or killed."""
    folder, mount, path = sys.argv[1:]
    faults = Faults()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=control, args=(faults, listener), daemon=True).start()
    fresh = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 0)
    root = {"allow_other": True, "default_permissions": True} if os.geteuid() == 0 else {}
    # Inodes must be the folder's own, or a lease's comparison of fstat with stat means nothing; hung calls hold a thread.
    options = {
        "use_ino": True,
        "hard_remove": True,
        "direct_io": True,
        "max_threads": 200,
        "max_idle_threads": 10,
        **fresh,
        **root,
    }
    mfusepy.FUSE(Passthrough(folder, faults), mount, foreground=True, fsname="passthrough", **options)


if __name__ == "__main__":
    main()
