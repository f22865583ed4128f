"""What stands in for a service manager: it hears what a daemon says (sd_notify(3)) and passes sockets (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_PASS = """
n=3
for given in $PASSED; do eval "exec $n<&$given"; n=$((n + 1)); done
[ -z "$PASSED" ] || export LISTEN_FDS=$((n - 3)) LISTEN_PID=${LISTEN_PID:-$$}
[ -z "$WATCHDOG_USEC" ] || export WATCHDOG_PID=${WATCHDOG_PID:-$$}
unset PASSED
exec "$@"
"""


class Manager:
    """One notify socket; `env`, `wrap` and `popen` are what `tests.fakes.daemon.Daemon` takes."""

    def __init__(
        self, address: str, passed: Sequence[socket.socket] = (), more: Mapping[str, str] | None = None
    ) -> None:
        """`address` as in $NOTIFY_SOCKET; `more`: further variables."""
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._link.bind("\0" + address[1:] if address.startswith("@") else address)
        # High numbers, which are in nobody's way when they become 3, 4, ...
        self._passed = [os.dup(one.fileno()) for one in passed]
        self.env = {"NOTIFY_SOCKET": address, "PASSED": " ".join(map(str, self._passed)), **(more or {})}
        self.wrap = ["bash", "-c", _PASS, "bash"]
        self.popen = {"pass_fds": self._passed}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        for descriptor in self._passed:
            os.close(descriptor)

    @property
    def address(self) -> str | bytes:
        return self._link.getsockname()

    def hear(self, seconds: float = 20.0) -> str:
        """The next notice; TimeoutError when none comes."""
        self._link.settimeout(seconds)
        return self._link.recv(4096).decode()

    def until(self, wanted: str, seconds: float = 20.0) -> list[str]:
        """Notices up to the first that begins like this."""
        heard: list[str] = []
        end = time.monotonic() + seconds
        while not heard or not heard[-1].startswith(wanted):
            heard.append(self.hear(max(0.01, end - time.monotonic())))
        return heard

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long, once what is there was heard."""
        self._link.setblocking(False)
        try:
            while True:
                self._link.recv(4096)
        except BlockingIOError:
            pass
        try:
            self.hear(seconds)
        except TimeoutError:
            return True
        return False


def listening(path: Path, mode: int = 0o600) -> socket.socket:
    """A Unix socket as a .socket unit makes it."""
    link = socket.socket(socket.AF_UNIX)
    link.bind(str(path))
    path.chmod(mode)
    link.listen(100)
    return link
