"""One blocking connection to the daemon, and the patience to wait for a daemon that restarts."""

from __future__ import annotations

import errno
import random
import socket
import time
from typing import Any

from cachedaemon_client import process
from cachedaemon_client.errors import CacheError, DaemonUnavailable, from_answer
from cachedaemon_client.wire import GENERATION, Answer, request

_AGAIN = frozenset(
    {errno.EAGAIN, errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ENOTDIR}
)
SLACK = 10.0
"""Seconds beyond a call's own time after which a silent daemon counts as unavailable."""


class Silent(ConnectionError):
    """The daemon took the request and did not answer in time."""


class Connection:
    """A connection of one thread; made again whenever it is lost. `generation` is what the last answer said."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.generation: str | None = None
        self._socket: socket.socket | None = None
        self._owed = 0
        process.forkables.add(self)

    def ask(self, method: str, target: str, body: Any = None, *, seconds: float) -> tuple[int, Any]:
        """One call, once; status and JSON body. OSError when the connection fails, ValueError for a strange answer."""
        try:
            self._send(method, target, body, seconds)
            answer = self._receive()
        except BaseException:
            self.close()
            raise
        return answer.status, answer.json()

    def tell(self, method: str, target: str, body: Any) -> None:
        """Send a request whose answer is read before the next one; a loss is not reported."""
        try:
            self._send(method, target, body, 0.0, slack=1.0)
            self._owed += 1
        except OSError:
            self.close()

    def _send(self, method: str, target: str, body: Any, seconds: float, *, slack: float = SLACK) -> None:
        data = request(method, target, body)
        fresh = self._socket is None
        link = self._socket or self._open(seconds + slack)
        link.settimeout(seconds + slack)
        try:
            while self._owed:
                self._receive()
                self._owed -= 1
            link.sendall(data)
        except (BrokenPipeError, ConnectionResetError, Silent):
            if fresh:
                raise
            self.close()  # the daemon has gone since the last call; every call can be repeated
            link = self._open(seconds + slack)
            link.settimeout(seconds + slack)
            link.sendall(data)

    def _open(self, seconds: float) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            link.settimeout(seconds)
            link.connect(self.path)
        except BaseException:
            link.close()
            raise
        self._socket = link
        return link

    def _receive(self) -> Answer:
        if self._socket is None:
            raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
        answer = Answer()
        while not answer.done:
            try:
                piece = self._socket.recv(answer.wanted)
            except TimeoutError:
                raise Silent(f"the daemon at {self.path} does not answer") from None
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, "the daemon closed the connection")
            answer.feed(piece)
        self.generation = answer.headers.get(GENERATION, self.generation)
        return answer

    def close(self) -> None:
        """Close it; the next call opens another."""
        link, self._socket, self._owed = self._socket, None, 0
        if link is not None:
            link.close()

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self.close()


class Pause:
    """The waits between tries: random, growing from 10 ms to half a second, never past the deadline."""

    clock = staticmethod(time.monotonic)

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._span = 0.02

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    def next(self) -> float:
        """Seconds to wait now."""
        span, self._span = self._span, min(0.5, self._span * 1.6)
        return min(self.left, random.uniform(span / 2, span))  # noqa: S311 - spreads the load, keeps no secret


def is_passing(cause: Exception) -> bool:
    """Whether a daemon that restarts looks like this."""
    return isinstance(cause, OSError) and (cause.errno in _AGAIN or isinstance(cause, ConnectionError))


def unavailable(path: str, cause: BaseException, source: str | None = None, key: str | None = None) -> CacheError:
    """What a reader is told when the daemon could not be asked."""
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    if isinstance(cause, PermissionError):
        return DaemonUnavailable(
            f"no permission to use the socket {path}: {reason}", code="unavailable", source=source, key=key
        )
    message = f"no daemon at {path}: {reason}"
    return DaemonUnavailable(message, code="unavailable", source=source, key=key, retryable=True)


def call(  # noqa: PLR0913 - a call is what it is
    link: Connection,
    method: str,
    target: str,
    body: Any = None,
    *,
    wait: float,
    source: str | None = None,
    key: str | None = None,
) -> Any:
    """One call, repeated while the daemon restarts, for `wait` seconds at the most; the JSON body or a `CacheError`.

    A body with a member `wait` is sent with the seconds that are left.
    """
    pause = Pause(time.monotonic() + wait)
    while True:
        if body is not None and "wait" in body:
            body = body | {"wait": pause.left}
        cause: CacheError
        try:
            status, said = link.ask(method, target, body, seconds=pause.left)
        except (OSError, ValueError) as failed:
            cause = unavailable(link.path, failed, source, key)
            passing = is_passing(failed) if isinstance(failed, OSError) else False
        else:
            if status < 400:
                return said
            cause = from_answer(status, said, source, key)
            passing = cause.code == "stopping"
        if not passing or pause.left <= 0:
            raise cause
        time.sleep(pause.next())
