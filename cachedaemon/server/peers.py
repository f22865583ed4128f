"""Who asks: the peer's credentials on the Unix socket (unix(7), SO_PEERCRED). A peer's pid is never relied upon."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct

from aiohttp import web

from cachedaemon.errors import Forbidden

_CREDENTIALS = struct.Struct("=iII")
_SO_PEERGROUPS = 59
"""include/uapi/asm-generic/socket.h, since Linux 4.13."""
_GROUPS_MOST = 256
"""Python's getsockopt takes 1024 bytes at the most."""
NOBODY = 0xFFFF_FFFF
"""What the kernel says where a peer has no user: of a connection over TCP."""


async def require_admin(request: web.Request, admin_group: int | None) -> None:
    """Let pass root, the daemon's own user and members of the admin group; `Forbidden` for everybody else."""
    link = _link(request.transport)
    uid, gid = _peer(link)
    if is_own(uid) or (admin_group is not None and await _is_in(admin_group, link, uid, gid)):
        return
    raise Forbidden(
        f"uid {uid} may not do this: allowed are root, the daemon's user and the group of server.admin_group"
    )


def is_own(user: int) -> bool:
    """Whether it is root or the daemon's own user, who could stop the daemon, too."""
    return user in (0, os.geteuid())


def peer_user(request: web.Request) -> int:
    """The user id of who asks."""
    return user_of(request.transport)


def user_of(transport: asyncio.BaseTransport | None) -> int:
    """The user id at the other end of a connection; `NOBODY` over TCP, `Forbidden` when the connection is gone."""
    return _peer(_link(transport))[0]


def _link(transport: asyncio.BaseTransport | None) -> socket.socket:
    link: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
    if link is None:
        raise Forbidden("the connection is gone")
    return link


def _peer(link: socket.socket) -> tuple[int, int]:
    _, uid, gid = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid, gid


async def _is_in(group: int, link: socket.socket, uid: int, gid: int) -> bool:
    """Whether the peer is in a group: by its process's own groups, or, where it has not logged in anew since, by its name."""
    return group in (gid, *_own_groups(link)) or group in await asyncio.to_thread(_groups, uid, gid)


def _own_groups(link: socket.socket) -> tuple[int, ...]:
    """Supplementary groups of the process that connected. In a container they may stand in no user data base here."""
    try:
        said = link.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_MOST * 4)
    except OSError:  # a kernel, or a sandbox, that does not know it; or very many groups
        return ()
    return struct.unpack(f"={len(said) // 4}I", said)


def _groups(uid: int, gid: int) -> list[int]:
    """All groups of a user. Blocks: the user data base may be a directory server's."""
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]
