"""One blocking connection to the daemon, and the patience to wait for a daemon that restarts."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

from cachedaemon_client import process, trust
from cachedaemon_client.errors import CacheError, DaemonUnavailable, Refused, from_answer
from cachedaemon_client.wire import GENERATION, Answer, request

_AGAIN = frozenset(
    {errno.EAGAIN, errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ENOTDIR}
)
SLACK = 2.0
"""Seconds beyond a call's own time, at least, after which a silent daemon counts as unavailable."""
SLACK_MOST = 10.0
TELL = 1.0
"""Seconds that a call may take whose answer nobody waits for."""
ENDED = (BrokenPipeError, ConnectionResetError)
"""How a connection looks whose daemon has gone since the last call."""


class Silent(ConnectionError):
    """The daemon took the request and did not answer in time."""


class Connection:
    """A connection of one thread; made again whenever it is lost. `generation` is what the last answer said.

    While it is `busy`, a signal handler or a finalizer that runs in the middle of a call needs another one.
    """

    _socket: socket.socket | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        self.generation: str | None = None
        self.busy = False
        self._owed = 0
        self._until = 0.0
        process.forkables.add(self)

    def ask(self, method: str, target: str, body: Any = None, *, seconds: float) -> Answer:
        """One call; its answer. OSError when the connection fails or `seconds` are over, ValueError for no HTTP.

        Over a connection whose daemon has gone meanwhile it is made once more: every call can be repeated.
        """
        process.settle()
        data = request(method, target, body)
        with self._within(seconds):
            if self._socket is not None:
                with contextlib.suppress(*ENDED):
                    return self._exchange(data)
            return self._exchange(data)

    def _exchange(self, data: bytes) -> Answer:
        with self._kept():
            self._send(data)
            return self._receive()

    def tell(self, method: str, target: str, body: Any, *, seconds: float = TELL) -> bool:
        """Send a request whose answer is read before the next one; False when it could not be sent, or was lost."""
        process.settle()
        data = request(method, target, body)
        try:
            with self._within(seconds), self._kept():
                self._send(data)
                self._owed += 1
        except (OSError, ValueError):
            return False
        return True

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """One call is under way, for so many seconds at the most."""
        self._until = time.monotonic() + seconds
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Whatever breaks off a call, be it an interrupt: the next one must not get its answer."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _send(self, data: bytes) -> None:
        link = self._socket or self._open()
        while self._owed:
            self._receive()
            self._owed -= 1
        link.settimeout(self._left())
        link.sendall(data)

    def _open(self) -> socket.socket:
        link = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        link.settimeout(self._left())
        trust.check(self.path)
        link.connect(self.path)
        return link

    def _receive(self) -> Answer:
        answer = Answer()
        while not answer.done:
            if self._socket is None:
                raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
            self._socket.settimeout(self._left())
            try:
                piece = self._socket.recv(answer.wanted)
            except TimeoutError:
                raise silent(self.path) from None
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, "the daemon closed the connection")
            answer.feed(piece)
        self.generation = answer.headers.get(GENERATION, self.generation)
        return answer

    def _left(self) -> float:
        return max(0.001, self._until - time.monotonic())  # 0 would mean: do not block

    def close(self) -> None:
        """Close it; the next call opens another."""
        link, self._socket, self._owed = self._socket, None, 0
        if link is not None:
            link.close()

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self.close()

    def __del__(self) -> None:
        """A client that was dropped without `close`, or a thread that ended, leaves no warning of its socket."""
        self.close()


class Pause:
    """The waits between tries: random, growing from 10 ms to half a second, never past the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._span = 0.02

    @classmethod
    def of(cls, seconds: float | None) -> Pause:
        """For so many seconds from now; None: without an end."""
        return cls(float("inf") if seconds is None else time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def patience(self) -> float:
        """Seconds after which a daemon that was asked now counts as silent: until the deadline, and some more."""
        return self.left + min(SLACK_MOST, SLACK + self.left)

    def next(self) -> float:
        """Seconds to wait now."""
        span, self._span = self._span, min(0.5, self._span * 1.6)
        return min(self.left, random.uniform(span / 2, span))  # noqa: S311 - spreads the load, keeps no secret


class Tries:
    """The tries of one call: what goes out each time, and whether a failure is waited out. Both clients decide here.

    A body with a member `wait` goes out with the seconds that are left.
    """

    def __init__(self, path: str, body: Any, wait: float, source: str | None, key: str | None) -> None:
        self._path = path
        self._body = body
        self._source = source
        self._key = key
        self._pause = Pause.of(wait)

    @property
    def body(self) -> Any:
        """The body of the next try."""
        if self._body is not None and "wait" in self._body:
            return self._body | {"wait": self._pause.left}
        return self._body

    @property
    def seconds(self) -> float:
        """How long the next try may take."""
        return self._pause.patience

    def failed(self, cause: Exception) -> float:
        """The daemon could not be asked: seconds until the next try. Raises `CacheError` when there is none."""
        return self._again(unavailable(self._path, cause, self._source, self._key), is_passing(cause))

    def refused(self, status: int, said: Any) -> float:
        """The daemon answered an error: seconds until the next try. Raises it when there is none.

        Who waits for a shard waits for a place among those of its user who do, too.
        """
        error = from_answer(status, said, self._source, self._key)
        waits = self._body is not None and "wait" in self._body
        return self._again(error, error.code == "stopping" or (error.code == "too_many" and waits))

    def _again(self, error: CacheError, passing: bool) -> float:  # noqa: FBT001 - one of two cases, one line away
        if not passing or self._pause.left <= 0:
            raise error from None
        return self._pause.next()


def silent(path: str) -> Silent:
    """What a daemon looks like that does not answer."""
    return Silent(f"the daemon at {path} does not answer")


def is_passing(cause: Exception) -> bool:
    """Whether a daemon that restarts looks like this."""
    return isinstance(cause, OSError) and (cause.errno in _AGAIN or isinstance(cause, ConnectionError))


def unavailable(path: str, cause: BaseException, source: str | None = None, key: str | None = None) -> CacheError:
    """What a reader is told when the daemon could not be asked."""
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    if isinstance(cause, PermissionError):
        return Refused(f"no permission to use the socket {path}: {reason}", code="unreachable", source=source, key=key)
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
    """One call, repeated while the daemon restarts, for `wait` seconds at the most; the JSON body or a `CacheError`."""
    tries = Tries(link.path, body, wait, source, key)
    while True:
        try:
            answer = link.ask(method, target, tries.body, seconds=tries.seconds)
            said = answer.json()
        except (OSError, ValueError) as cause:
            pause = tries.failed(cause)
        else:
            if answer.status < 400:
                return said
            pause = tries.refused(answer.status, said)
        time.sleep(pause)
