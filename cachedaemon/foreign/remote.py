"""File systems that are read better than by fsspec's common calls: one request for a whole transfer, told by bytes."""

from __future__ import annotations

import contextlib
import ftplib
import os
import socket
from collections.abc import Mapping
from typing import Any

from cachedaemon.foreign.process import Failure
from cachedaemon.foreign.trees import STEP_LEAST, Tree, Write

KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
"""Where the keys of SSH servers are looked up (sshd(8))."""
_REQUESTS = 64
"""Requests of SFTP that are under way at once, of 32 KiB each."""
_NOT_KNOWN = frozenset({"500", "501", "502", "504"})
"""Replies to a command that a server does not know (RFC 959, 4.2)."""


class Sftp(Tree):
    """SFTP, by paramiko. A server whose key is not known is refused, unless the options say otherwise."""

    def made_for(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """`known_hosts` is an option of our own: a file to look in, before the usual ones."""
        rest = {name: value for name, value in options.items() if name != "known_hosts"}
        return {"host_key_policy": _known(options.get("known_hosts"))} | rest

    def pour(self, key: str, start: int, stop: int, write: Write) -> None:
        """Ask for what comes next before it is needed: a request takes a round trip, and has 32 KiB at the most."""
        if start >= stop:
            return
        with self.fs.open(self.path(key), "rb") as file:
            file.seek(start)
            file.prefetch(stop, max_concurrent_requests=_REQUESTS)
            while start < stop and (piece := file.read(min(STEP_LEAST, stop - start))):
                write(piece)
                start += len(piece)

    def close(self) -> None:
        """With its thread."""
        self.fs.client.close()


def _known(file: str | None) -> Any:
    """What paramiko asks about a server's key."""
    from paramiko import HostKeys, MissingHostKeyPolicy, SSHException  # type: ignore[import-untyped]  # noqa: PLC0415 - only SFTP needs it

    class UnknownHostKey(SSHException):  # type: ignore[misc]
        """The server's key is in none of the files."""

    class Known(MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            del client
            keys = HostKeys()
            for place in map(os.path.expanduser, (*([file] if file else []), *KNOWN_HOSTS)):
                if os.path.exists(place):
                    keys.load(place)
            if not keys.check(hostname, key):
                raise UnknownHostKey

    return Known()


class Ftp(Tree):
    """FTP, by ftplib, whose own connection is asked: fsspec lists a whole folder to tell of one file."""

    def info(self, path: str) -> Mapping[str, Any]:
        """Size and time (RFC 3659); of a server that does not know these commands, what a listing says."""
        try:
            self.fs.ftp.voidcmd("TYPE I")
            return {"size": self.fs.ftp.size(path), "modify": self.fs.ftp.sendcmd(f"MDTM {path}")[4:]}
        except ftplib.error_perm as cause:
            found: Mapping[str, Any] = self.fs.info(path)
            if str(cause)[:3] not in _NOT_KNOWN and found["type"] != "directory":
                raise
            return found

    def pour(self, key: str, start: int, stop: int, write: Write) -> None:
        """One retrieval, from `start` on; who closes its connection early is told so with a 426 (RFC 959, 5.4)."""
        ftp, left = self.fs.ftp, stop - start
        with ftp.transfercmd(f"RETR {self.path(key)}", rest=start or None) as link:
            while left and (piece := link.recv(min(STEP_LEAST, left))):
                write(piece)
                left -= len(piece)
            is_early = not left and link.recv(1)
        if left:
            raise Failure("Cut", "the FTP server ended the transfer early")
        with contextlib.suppress(ftplib.error_temp) if is_early else contextlib.nullcontext():
            ftp.voidresp()

    def close(self) -> None:
        """Both connections."""
        with contextlib.suppress(OSError, EOFError):
            self.fs.ftp.sock.shutdown(socket.SHUT_RDWR)
        self.fs.ftp.close()


KINDS: Mapping[str, type[Tree]] = {"sftp": Sftp, "ssh": Sftp, "ftp": Ftp}
"""By protocol; the others are read by fsspec's common calls."""
