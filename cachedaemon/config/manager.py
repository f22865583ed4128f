"""What the service manager tells a service through the environment: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3).

Each variable is removed once it was read, so that no process that the daemon starts takes it for its own.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

FIRST = 3
"""The first descriptor that is passed (SD_LISTEN_FDS_START)."""
MOST = 1 << 20
"""Descriptors that can be passed: no process has more (fs.nr_open of proc_sys_fs(5), unless it was raised)."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What was handed over; nothing where no service manager started the daemon."""

    notify: str | None = None
    """Where to report to: a path, or with a leading `@` a name in the abstract namespace."""
    watchdog: float = 0.0
    """Seconds after which a silent daemon is killed; 0: never."""
    sockets: tuple[tuple[int, str], ...] = ()
    """Descriptors that were passed, with their names."""


def take_handed(environ: MutableMapping[str, str], pid: int | None = None) -> Handed:
    """Read the variables and remove them. What is meant for another process (`pid`: this one), or makes no sense, counts as not there."""
    pid = os.getpid() if pid is None else pid
    wanted = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
    said = {name: environ.pop(name, "") for name in wanted}
    address = said["NOTIFY_SOCKET"]
    is_watched = said["WATCHDOG_PID"] in ("", str(pid))
    return Handed(
        notify=address if address.startswith(("/", "@")) else None,
        watchdog=_number(said["WATCHDOG_USEC"]) / 1e6 if is_watched else 0.0,
        sockets=_sockets(said["LISTEN_FDS"], said["LISTEN_FDNAMES"]) if said["LISTEN_PID"] == str(pid) else (),
    )


def _sockets(count: str, names: str) -> tuple[tuple[int, str], ...]:
    """Names are as many as descriptors, or they do not count."""
    descriptors = range(FIRST, FIRST + number) if (number := _number(count)) <= MOST else range(0)
    given = names.split(":")
    if len(given) != len(descriptors):
        given = [""] * len(descriptors)
    return tuple(zip(descriptors, given, strict=True))


def _number(text: str) -> int:
    """0 for what is no number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
