"""Which processes hold a shard, from /proc/locks (proc_locks(5)): best effort, since other namespaces show as pid 0."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

from cachedaemon import locks


def name_holders(rows: list[dict[str, Any]], path: str) -> None:
    """Add `holders` to each row: pid, user id and command of its readers, without the daemon at the socket `path`."""
    shared = locks.shared()
    own = _listener(path)
    for row in rows:
        pids = sorted(set(shared.get(_inode(row["path"]), [])) - {own})
        row["holders"] = [{"pid": pid, "user": _user(pid), "command": _command(pid)} for pid in pids]


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def _listener(path: str) -> int:
    """Pid of the process that listens at a socket (SO_PEERCRED of unix(7)); 0 when it is in another namespace."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        pid: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid


def _user(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "?"
