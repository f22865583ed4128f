"""The Unix socket of the daemon: one daemon a path, the right mode from the first moment, nothing stale in the way.

Or one that the service manager made and passes on (sd_listen_fds(3)): it is served, and otherwise left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cachedaemon import guarded
from cachedaemon.errors import StartError

BACKLOG = 4096
_NEW = "new"
"""Name of a socket that has not its mode yet."""
LOCK_WAIT = 5.0
"""Seconds that a start waits for the daemon before it to end."""


class Listener:
    """A bound socket, and the lock beside it that says whose it is."""

    def __init__(self, path: Path, mode: int, group: int | None) -> None:
        self.path = path
        self._mode = mode
        self._group = group
        self._lock = -1
        self._inode: tuple[int, int] | None = None
        self.doubts: Sequence[str] = ()
        """What is not as it should be with the folders that lead to it."""

    @property
    def _setting(self) -> str:
        return f"server.socket = {str(self.path)!r}"

    def lock(self) -> None:
        """Claim the path. Blocks for 5 s at the most; `StartError` when another daemon has it."""
        try:
            guarded.make_way(self.path, self._setting)
            self.doubts = guarded.doubts(self.path.parent, self._setting)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(f"{self.path}.lock", flags, 0o600)
        except OSError as cause:
            raise StartError(f"{self._setting}: {cause.strerror}") from cause
        try:
            guarded.refuse_others(f"{self.path}.lock", os.fstat(self._lock), self._setting)
        except StartError:
            self._give_up()
            raise
        deadline = time.monotonic() + LOCK_WAIT
        while not _locked(self._lock):
            if time.monotonic() > deadline:
                self._give_up()
                raise StartError(f"another daemon listens at {self.path}")
            time.sleep(0.05)

    def links(self) -> list[socket.socket]:
        """What to accept from: the one socket, made now."""
        return [self.bind()]

    def bind(self) -> socket.socket:
        """The listening socket. It appears at its path complete: bound beside, given mode and group, then renamed."""
        self._refuse_other_files()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # This path's own: whoever holds the lock is alone with it.
            with _private_folder(folder, f".{os.fstat(self._lock).st_ino}") as private:
                beside = f"/proc/self/fd/{private}/{_NEW}"  # short, whatever the folder's path is
                link.bind(beside)
                if self._group is not None:
                    os.chown(beside, -1, self._group)
                os.chmod(beside, self._mode)
                link.listen(BACKLOG)
                os.rename(beside, self.path)
            seen = os.lstat(self.path)
            self._inode = (seen.st_dev, seen.st_ino)
        except OSError as cause:
            link.close()
            raise StartError(f"server.socket = {str(self.path)!r}: {cause.strerror}") from cause
        finally:
            os.close(folder)
        return link

    def _refuse_other_files(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise StartError(f"server.socket = {str(self.path)!r}: a file that is no socket is in its place")

    def is_gone(self) -> bool:
        """Whether somebody has removed the socket's name. What stands there instead, if anything does, is left alone."""
        return not os.path.lexists(self.path)

    def close(self) -> None:
        """Take the socket's name away, if it is still ours, and give up the claim."""
        with contextlib.suppress(OSError):
            seen = os.lstat(self.path)
            if (seen.st_dev, seen.st_ino) == self._inode:
                os.unlink(self.path)
        self._give_up()

    def _give_up(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Passed:
    """Listening sockets that were passed: the service manager keeps them, with their paths, modes and what waits in them."""

    doubts: Sequence[str] = ()
    """None: whoever passes them looks to it."""

    def __init__(self, path: Path, links: Sequence[socket.socket]) -> None:
        self.path = path
        self._links = links

    def lock(self) -> None:
        """One of them is where clients look. `StartError` otherwise; the path itself needs no claim."""
        places = [str(link.getsockname()) for link in self._links]
        if os.path.realpath(self.path) not in map(os.path.realpath, places):
            raise StartError(
                f"server.socket = {str(self.path)!r}: the service manager passes a socket at {', '.join(places)}; "
                "both must be the same"
            )

    def links(self) -> list[socket.socket]:
        """What to accept from: all of them."""
        return list(self._links)

    def is_gone(self) -> bool:
        """Whether somebody has removed the name of the socket that clients look for."""
        return not os.path.lexists(self.path)

    def bind(self) -> socket.socket:
        """`StartError`: only who passes a socket can make it anew."""
        raise StartError(
            f"server.socket = {str(self.path)!r} was removed by somebody, and no client finds the daemon: "
            "restart its socket unit, which makes it anew"
        )

    def close(self) -> None:
        """The daemon's copies end, and nothing else."""
        for link in self._links:
            link.close()


def passed(given: Iterable[tuple[int, str]]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Of the descriptors that were passed, with their names, Unix sockets and TCP sockets. `StartError` for any others."""
    unix: list[socket.socket] = []
    tcp: list[socket.socket] = []
    for descriptor, name in given:
        link = _adopted(descriptor, name)
        (unix if link.family == socket.AF_UNIX else tcp).append(link)
    return unix, tcp


def _adopted(descriptor: int, name: str) -> socket.socket:
    """A socket that listens, for nobody else to inherit."""
    with contextlib.suppress(OSError):
        os.set_inheritable(descriptor, False)
        link = socket.socket(fileno=descriptor)
        is_stream = link.family in {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6} and link.type == socket.SOCK_STREAM
        if is_stream and link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            link.setblocking(False)
            return link
        link.detach()
    raise StartError(
        f"descriptor {descriptor} ({name or 'no name'}), which the service manager passes, is no listening stream socket"
    )


@contextlib.contextmanager
def _private_folder(parent: int, name: str) -> Iterator[int]:
    """A folder for one new socket that no other user can enter: nobody can swap it for a link before it has its mode."""
    _remove_old_socket(parent, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{name} beside it is another user's")
        _remove_new(folder)  # of a daemon that was killed
        yield folder
        _remove_new(folder)
    finally:
        os.close(folder)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=parent)


def _remove_old_socket(parent: int, name: str) -> None:
    """Of an earlier version, which made the socket itself under this name. Anything else, or another user's, is refused."""
    with contextlib.suppress(FileNotFoundError):
        seen = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISSOCK(seen.st_mode) and seen.st_uid == os.geteuid():
            os.unlink(name, dir_fd=parent)


def _remove_new(folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEW, dir_fd=folder)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tcp(host: str, port: int) -> socket.socket:
    """The listening socket for scraping. `StartError` where it cannot be had, as for a taken port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link.bind((host, port))
        link.listen(128)
    except OSError as cause:
        link.close()
        raise StartError(
            f"server.http = '{host}:{port}': {cause.strerror}; allowed are another address and port of this machine, "
            'and "" for none'
        ) from cause
    return link
