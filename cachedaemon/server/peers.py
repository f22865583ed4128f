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


async def require_admin(request: web.Request, admin_group: int | None) -> None:
    """Let pass root, the daemon's own user and members of the admin group; `Forbidden` for everybody else."""
    uid, gid = _peer(request)
    if uid in (0, os.geteuid()):
        return
    if admin_group is not None and admin_group in await asyncio.to_thread(_groups, uid, gid):
        return
    raise Forbidden(
        f"uid {uid} may not do this: allowed are root, the daemon's user and the group of server.admin_group"
    )


def peer_user(request: web.Request) -> int:
    """The user id of who asks."""
    return _peer(request)[0]


def _peer(request: web.Request) -> tuple[int, int]:
    link = request.transport.get_extra_info("socket") if request.transport is not None else None
    if link is None:
        raise Forbidden("the connection is gone")
    _, uid, gid = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid, gid


def _groups(uid: int, gid: int) -> list[int]:
    """All groups of a user. Blocks: the user data base may be a directory server's."""
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]
