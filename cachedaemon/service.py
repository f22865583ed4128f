"""What the daemon says to the service manager that started it: sd_notify(3).

Datagrams to one Unix socket, and nothing depends on them: where nobody listens that is logged once, and the daemon serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator

log = logging.getLogger(__name__)

EXTEND = 30
"""Seconds by which a start is extended each time."""
SAY_AGAIN = 5.0
"""Seconds between two words about a start that goes on."""
FULL = 0.05
"""Seconds until the next try when the service manager has not read what others told it yet."""
TRIES = 100


class Notices:
    """Notices to one service manager; to nobody where there is none (`address` None)."""

    def __init__(self, address: str | None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._link = _link() if address else None
        self._is_told = False
        self._late: set[asyncio.Task[None]] = set()

    def ready(self, status: str) -> None:
        """The socket accepts; also: the new configuration is in force."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it. The time is what systemd 253 tells reloads apart by."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading the configuration")

    def stopping(self) -> None:
        """The daemon ends."""
        self._say("STOPPING=1", "STATUS=ending")

    @contextlib.asynccontextmanager
    async def extending(self, status: str) -> AsyncIterator[None]:
        """While the block runs the start may take longer than the unit allows."""
        telling = asyncio.create_task(self._extend(status), name="extend")
        try:
            yield
        finally:
            telling.cancel()

    async def _extend(self, status: str) -> None:
        while True:
            self._say(f"EXTEND_TIMEOUT_USEC={EXTEND * 1_000_000}", f"STATUS={status}")
            await asyncio.sleep(SAY_AGAIN)

    async def live(self, limit: float) -> None:
        """Say twice in `limit` seconds that the loop turns, for ever; at once if there is no limit.

        From the loop itself, so that silence means that it is stuck, and not that some thread or process is.
        """
        while limit:
            self._send(b"WATCHDOG=1")
            await asyncio.sleep(limit / 2)

    def _say(self, *lines: str) -> None:
        """Never waits; what finds the service manager's queue full is said a moment later."""
        if not self._send(data := "\n".join(lines).encode()):
            late = asyncio.create_task(self._later(data), name="notify")
            self._late.add(late)
            late.add_done_callback(self._late.discard)

    async def _later(self, data: bytes) -> None:
        for _ in range(TRIES):
            await asyncio.sleep(FULL)
            if self._send(data):
                return

    def _send(self, data: bytes) -> bool:
        """Whether it is done with, one way or the other."""
        if self._link is None or self._address is None:
            return True
        try:
            self._link.sendto(data, self._address)
        except BlockingIOError:
            return False
        except OSError as cause:
            self._tell(cause)
        return True

    def _tell(self, cause: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning(
                "the service manager is not told how the daemon is ($NOTIFY_SOCKET: %s)", cause.strerror or cause
            )

    def close(self) -> None:
        """Nothing more is said."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _link() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
