"""An SFTP server, by asyncssh: `python -m tests.fakes.sftpd FOLDER FAULTS`.

It says its port, then its host key as a line of known_hosts, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import asyncssh

from tests.fakes.faults import Faults, uncut

USER, WORD = "reader", "s3cr3t-w0rd"
FAULTS = Path(sys.argv[2])


class Users(asyncssh.SSHServer):
    """Who may come in."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        if Faults.read(FAULTS).down:
            conn.abort()

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, WORD)


class Files(asyncssh.SFTPServer):
    """The folder."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        super().__init__(chan, chroot=sys.argv[1])
        self._connection = chan.get_connection()

    async def _now(self) -> Faults:
        faults = Faults.read(FAULTS)
        if faults.down:
            self._connection.abort()
        if faults.hang:
            await asyncio.Event().wait()
        return faults

    async def stat(self, path: bytes) -> Any:  # type: ignore[override]
        await self._now()
        return super().stat(path)

    async def open(self, path: bytes, pflags: int, attrs: Any) -> Any:  # type: ignore[override]
        faults = await self._now()
        if faults.refused and path.decode().endswith(faults.refused):
            raise asyncssh.SFTPPermissionDenied("Not for you.")
        return super().open(path, pflags, attrs)

    async def read(self, file_obj: Any, offset: int, size: int) -> bytes:  # type: ignore[override]
        faults = await self._now()
        if faults.cut is not None and offset + size > faults.cut:
            uncut(FAULTS)
            self._connection.abort()
        if faults.bps:
            await asyncio.sleep(size / faults.bps)
        data: bytes = super().read(file_obj, offset, size)  # type: ignore[assignment]
        return data


async def main() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Users, server_host_keys=[key], sftp_factory=Files)
    port = server.get_port()
    sys.stdout.write(f"{port}\n[127.0.0.1]:{port} {key.export_public_key().decode().strip()}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
