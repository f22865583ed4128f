"""Tells the daemon which shards were used: in batches, on a connection of its own, and never in a reader's way."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections import deque
from typing import Any

from cachedaemon_client import process
from cachedaemon_client.wire import GENERATION, Answer, request

BATCH = 256
"""Uses that are told at once, and that are kept for a silent daemon."""
KEPT = 1 << 20
"""Uses that are kept while the daemon is busy."""
DELAY = 5.0
"""Seconds after which fewer are told, and between tries at a silent daemon."""
SOON = 0.01
"""Seconds until the answer to a report is looked for again."""
FAREWELL = 1.0
"""Seconds that the last report may take."""
PLACES = 1 / 20
"""Seconds between two words on a plan's place."""


class Reporter:
    """Uses of one source by one process, and the places of its plans. Every hit appends to `uses`."""

    def __init__(self, source: str, path: str) -> None:
        self._source = source
        self._path = path
        self.uses: deque[tuple[str, float]] = deque(maxlen=KEPT)
        """Keys and times (monotonic seconds) of uses that are still to be told."""
        self.due: list[float] = [0.0, BATCH]
        """A time, and a number of uses: from either on `flush` is worth a call."""
        self.generation: str | None = None
        """What the last answer said."""
        self._begin()
        process.forkables.add(self)

    def _begin(self) -> None:
        self.uses.clear()
        self.due[:] = time.monotonic() + DELAY, BATCH
        self._places: dict[str, int] = {}
        self._sent: list[tuple[str, float]] = []
        self._again = 0.0
        self._asked = 0.0
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._answer: Answer | None = None

    def place(self, plan: str, position: int) -> None:
        """A plan's next key is at `position`."""
        self._places[plan] = position
        self.flush(at_least=PLACES)

    def forget(self, plan: str) -> None:
        """The plan has ended."""
        self._places.pop(plan, None)

    def flush(self, *, at_least: float = 0.0) -> None:
        """Send what has gathered, unless the daemon still owes an answer or was told less than `at_least` seconds ago."""
        now = time.monotonic()
        told = self.due[0] - DELAY
        if now < max(self._again, told + at_least if at_least else 0.0) or not self._lock.acquire(blocking=False):
            return  # too soon, or another thread is at it
        try:
            self._exchange(now)
        finally:
            self._lock.release()

    def _exchange(self, now: float) -> None:
        if not self._settled():
            self._wait_for_answer(now)
        elif self.uses or self._places:
            self.due[:] = now + DELAY, BATCH
            self._send(now)

    def _wait_for_answer(self, now: float) -> None:
        """A daemon that is busy answers a little later; one that is silent is left alone, and only the last uses kept."""
        silent = now >= self._asked + DELAY
        while silent and len(self.uses) > BATCH:
            self.uses.popleft()
        self._again = now + (DELAY if silent else SOON)
        self.due[:] = self._again, KEPT

    def _settled(self) -> bool:
        """Whether the last report was answered, or is lost so that it goes out again."""
        try:
            while self._answer is not None and self._link is not None:
                piece = self._link.recv(self._answer.wanted)
                if not piece:
                    raise ConnectionResetError(errno.ECONNRESET, "closed")
                self._answer.feed(piece)
                if self._answer.done:
                    self.generation = self._answer.headers.get(GENERATION)
                    self._answer, self._sent = None, []
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            self._lost()
        return True

    def _lost(self) -> None:
        self.uses.extendleft(reversed(self._sent[-BATCH:]))
        self._drop()

    def _drop(self) -> None:
        link, self._link, self._answer, self._sent = self._link, None, None, []
        if link is not None:
            link.close()

    def _send(self, now: float) -> None:
        used = self._sent = [self.uses.popleft() for _ in range(len(self.uses))]
        body: dict[str, Any] = {"source": self._source, "used": [(key, round(now - at, 3)) for key, at in used]}
        plan = next(iter(self._places), None)  # one plan's place a report: the others go with the next
        if plan is not None:
            body |= {"plan": plan, "position": self._places.pop(plan)}
        data = request("POST", "/v1/touch", body)
        try:
            link = self._link or self._open()
            self._answer, self._asked = Answer(), now
            if link.send(data) < len(data):
                raise BlockingIOError(errno.EAGAIN, "only a part went out")
        except OSError:
            if plan is not None:
                self._places.setdefault(plan, body["position"])
            self._again = now + DELAY
            self._lost()

    def _open(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            link.connect(self._path)
        except BaseException:
            link.close()
            raise
        self._link = link
        return link

    def close(self) -> None:
        """Tell the rest, for a second at the most."""
        deadline = time.monotonic() + FAREWELL
        if not self._lock.acquire(timeout=FAREWELL):
            return
        try:
            self._farewell(deadline)
        finally:
            self._drop()
            self._lock.release()

    def _farewell(self, deadline: float) -> None:
        for _ in range(2):  # what is on its way, then what has gathered since
            while not self._settled() and (left := deadline - time.monotonic()) > 0 and self._link is not None:
                self._link.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    self._settled()
                if self._link is not None:
                    self._link.setblocking(False)
            if self._answer is None and (self.uses or self._places):
                self._send(time.monotonic())

    def forked(self) -> None:
        """In a forked child: uses and connection are the parent's."""
        if self._link is not None:
            self._link.close()
        self._begin()
