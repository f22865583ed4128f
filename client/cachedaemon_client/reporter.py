"""Tells the daemon which shards were used: in batches, on a connection of its own, and never in a reader's way."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachedaemon_client import process
from cachedaemon_client.wire import GENERATION, Answer, request, touch

if TYPE_CHECKING:
    from cachedaemon_client.plan import Order

BATCH = 256
"""Uses that are told at once, and that are kept for a silent daemon."""
KEPT = 1 << 20
"""Uses that are kept while the daemon is busy."""
REPORT = 4096
"""Uses of one report."""
DELAY = 5.0
"""Seconds after which fewer are told, and between tries at a silent daemon."""
SOON = 0.01
"""Seconds until the answer to a report is looked for again."""
PLACES = 1 / 20
"""Seconds between two words on a plan's place."""


@dataclass
class _Place:
    """What the daemon knows of a plan's place."""

    plan: Order
    told: int
    turn: float = 0.0
    """When it was told last (monotonic seconds): the others have their turn first."""


class Reporter:
    """Uses of one source by one process, and the places of its plans. Every hit appends to `uses`.

    Plans come and go in any thread, and by the garbage collector at any line, a hit's included. So nothing is locked
    against them: each change of the plans is one operation of the dict, and what is read of them is a copy.

    One report is under way at a time: sent as far as the socket takes it, then its answer is looked for, and nothing of
    this ever waits. What a lost connection took along is told again, the last 256 uses of it.
    """

    def __init__(self, source: str, path: str) -> None:
        self._source = source
        self._path = path
        self.uses: deque[tuple[str, float]] = deque(maxlen=KEPT)
        """Keys and times (monotonic seconds) of uses that are still to be told."""
        self.due: list[float] = [0.0, BATCH]
        """A time, and a number of uses: from either on `flush` is worth a call."""
        self._begin()
        process.forkables.add(self)

    def _begin(self) -> None:
        self.uses.clear()
        self.due[:] = time.monotonic() + DELAY, BATCH
        self.generation: str | None = None
        """What the last answer said."""
        self._plans: dict[Order, _Place] = {}
        self._sent: list[tuple[str, float]] = []
        self._sent_place: tuple[_Place, int] | None = None
        self._unsent = memoryview(b"")
        self._told = 0.0
        self._again = 0.0
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._answer: Answer | None = None

    def follow(self, plan: Order) -> None:
        """A plan is in force: from now on its place is told whenever it has moved."""
        self._plans[plan] = _Place(plan, plan.position)
        self._look_soon()

    def forget(self, plan: Order) -> None:
        """The plan has ended."""
        self._plans.pop(plan, None)

    def _look_soon(self) -> None:
        """Under plans a report is due 20 times a second; one that has nothing to say is none."""
        now = time.monotonic()
        self.due[:] = now + (PLACES if self._plans else DELAY), BATCH

    def _moved(self) -> _Place | None:
        """A place that the daemon does not know yet, the one that has waited longest."""
        moved = [one for one in list(self._plans.values()) if one.plan.position != one.told]
        return min(moved, key=lambda one: one.turn, default=None)

    def flush(self) -> None:
        """Send what has gathered, unless the daemon still owes an answer."""
        process.settle()
        now = time.monotonic()
        if now < self._again or not self._lock.acquire(blocking=False):
            return  # too soon, or another thread is at it
        try:
            self._exchange(now)
        finally:
            self._lock.release()

    def _exchange(self, now: float) -> None:
        if not self._settled():
            self._wait_for_answer(now)
        else:
            self._look_soon()
            if self.uses or self._moved() is not None:
                self._send(now)

    def _wait_for_answer(self, now: float) -> None:
        """A daemon that is busy answers a little later; one that is silent is left alone, and only the last uses kept."""
        silent = now >= self._told + DELAY
        while silent and len(self.uses) > BATCH:
            self.uses.popleft()
        self._look_again(now + (DELAY if silent else SOON))

    def _look_again(self, at: float) -> None:
        self._again = at
        self.due[:] = at, KEPT

    def _settled(self) -> bool:
        """Whether the last report was answered, or is lost so that it goes out again."""
        link, answer = self._link, self._answer
        if link is None or answer is None:
            return True
        try:
            while self._unsent:
                self._unsent = self._unsent[link.send(self._unsent) :]
            while not answer.done:
                piece = link.recv(answer.wanted)
                if not piece:
                    raise ConnectionResetError(errno.ECONNRESET, "closed")
                answer.feed(piece)
        except (BlockingIOError, TimeoutError):
            return False
        except (OSError, ValueError):
            self._lost()
        else:
            self.generation = answer.headers.get(GENERATION, self.generation)
            self._answer, self._sent, self._sent_place = None, [], None
        return True

    def _lost(self) -> None:
        """The connection has gone, and with it a report that nobody answered."""
        self.uses.extendleft(reversed(self._sent[-BATCH:]))
        if self._sent_place is not None:
            place, before = self._sent_place
            place.told = before
        self._drop()

    def _drop(self) -> None:
        link, self._link, self._answer = self._link, None, None
        self._sent, self._sent_place, self._unsent = [], None, memoryview(b"")
        if link is not None:
            link.close()

    def _send(self, now: float) -> None:
        """One report: the oldest uses, and one plan's place; the others go with the next."""
        used = self._sent = [self.uses.popleft() for _ in range(min(REPORT, len(self.uses)))]
        told = None
        if (place := self._moved()) is not None:
            self._sent_place = place, place.told
            place.told, place.turn = place.plan.position, now
            told = place.plan.id, place.told
        self._unsent = memoryview(request("POST", "/v1/touch", touch(self._source, used, now, told)))
        self._told, self._answer = now, Answer()
        try:
            self._open()
        except OSError:
            self._lost()
        settled = self._settled()
        if self._link is None:
            self._look_again(now + DELAY)
        elif not settled and self.uses:
            self._look_again(now + SOON)  # there is more to tell, as soon as this is answered

    def _open(self) -> None:
        if self._link is None:
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            self._link.connect(self._path)

    def close(self) -> None:
        """Tell the rest, for a second at the most."""
        self.farewell(time.monotonic() + process.FAREWELL)

    def farewell(self, deadline: float) -> None:
        """Tell the rest, until the deadline (monotonic seconds) at the most."""
        process.settle()
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            self._tell_rest(deadline)
        finally:
            self._drop()
            self._lock.release()

    def _tell_rest(self, deadline: float) -> None:
        """What is on its way, then what has gathered since; a connection that is lost is made again once."""
        losses = 0
        while (now := time.monotonic()) < deadline and losses < 2:
            if self._link is not None:
                self._link.settimeout(deadline - now)
            if not self._settled():
                return
            if not self.uses and self._moved() is None:
                return
            self._send(now)
            losses += self._link is None

    def forked(self) -> None:
        """In a forked child: uses and connection are the parent's."""
        if self._link is not None:
            self._link.close()
        self._begin()

    def __del__(self) -> None:
        """A client that was dropped without `close` leaves no warning of its socket."""
        self._drop()
