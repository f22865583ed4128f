"""Where the daemon is found: the only module of the client that reads the environment."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOCKET_LIMIT = 107
"""Bytes of a Unix socket's path (unix(7): sun_path has 108 with the final NUL)."""
SYSTEM_SOCKET = "/run/cachedaemon/cachedaemon.sock"


def socket_path(given: str | os.PathLike[str] | None = None) -> str:
    """The socket: as given, `$CACHEDAEMON_SOCKET`, the user's default where it exists, or the system's. Absolute.

    ValueError when the path is longer than a socket's path can be.
    """
    path = _whole(os.fspath(given) if given is not None else os.environ.get("CACHEDAEMON_SOCKET") or _default())
    if (length := len(os.fsencode(path))) > SOCKET_LIMIT:
        raise ValueError(f"the socket's path has {length} bytes, {SOCKET_LIMIT} are possible: {path}")
    return path


def _default() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = f"{runtime}/cachedaemon/cachedaemon.sock" if runtime else None
    return own if own and Path(own).exists() else SYSTEM_SOCKET


def cache_folder(given: str | os.PathLike[str] | None = None) -> str | None:
    """Where this process sees the cache directory, if that was said: as given, or `$CACHEDAEMON_DIR`. Absolute."""
    folder = os.fspath(given) if given is not None else os.environ.get("CACHEDAEMON_DIR")
    return _whole(folder).rstrip("/") or "/" if folder else None


def _whole(path: str) -> str:
    """The same path from the root on: a program may change its working directory. `..` stays, which links may lead to."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def boot_id() -> str:
    """What the kernel says of this boot; another one means that locks are not shared with what was before."""
    # Bytes, since a text file's codec is a module that its first use imports: a child that is forked meanwhile would wait
    # for the import's lock, which no thread of its own holds, for ever.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except OSError:  # a sandbox that hides /proc: the host's name is the next best thing
        return f"unknown-{socket.gethostname()}"
