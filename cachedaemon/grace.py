"""The daemon's own leases, between an answer and the reader's lock.

One descriptor a shard, counted by promises: each answer to `acquire` is one. A promise ends when the reader says that it
has its lock (a touch on the same connection), when its time is up, or when its answer could not be written. The last one
gives the lease back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from cachedaemon.model import Ref
from cachedaemon.store import Held

UNANSWERED = 5.0
"""Seconds that a promise lasts at least whose answer has not gone out yet, however short the grace is."""


@dataclass(eq=False, slots=True)
class _Hold:
    ref: Ref
    held: Held
    promises: set[Promise] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Promise:
    """One answer's hold on a shard."""

    hold: _Hold
    timer: asyncio.TimerHandle | None = None


class Grace:
    """All promises; none outlives its time, whatever becomes of its asker.

    `seconds` can change at run time; `let_go` gives a lease back, in the background.
    """

    def __init__(self, seconds: float, let_go: Callable[[Held], None]) -> None:
        self.seconds = seconds
        self._let_go = let_go
        self._holds: dict[Ref, _Hold] = {}
        self._all: set[_Hold] = set()
        """With those of earlier versions."""

    def held(self, ref: Ref) -> Held | None:
        """The daemon's own lease on a shard, while it has one."""
        hold = self._holds.get(ref)
        return hold.held if hold else None

    def promise(self, ref: Ref, held: Held) -> Promise:
        """Keep `held` for one answer."""
        return self._promise(self._hold(ref, held))

    def promises(self, ref: Ref, held: Held, answers: int) -> list[Promise]:
        """Keep `held` for so many answers; for none it is given back at once."""
        if not answers:
            self._let_go(held)
            return []
        hold = self._hold(ref, held)
        return [self._promise(hold) for _ in range(answers)]

    def _hold(self, ref: Ref, held: Held) -> _Hold:
        """A shard has one lease, the first: another one is given back here, so it must come here once only.

        What was promised of an earlier version stays promised.
        """
        hold = self._holds.get(ref)
        if hold is None or hold.held.stamp[:2] != held.stamp[:2]:
            hold = self._holds[ref] = _Hold(ref, held)
            self._all.add(hold)
        elif hold.held is not held:
            self._let_go(held)
        return hold

    def _promise(self, hold: _Hold) -> Promise:
        promise = Promise(hold)
        hold.promises.add(promise)
        self._run(promise, max(self.seconds, UNANSWERED))
        return promise

    def start(self, promise: Promise) -> None:
        """The answer goes out: its time runs from now."""
        self._run(promise, self.seconds)

    def _run(self, promise: Promise, seconds: float) -> None:
        if promise.timer is not None:
            promise.timer.cancel()
        promise.timer = asyncio.get_running_loop().call_later(seconds, self.end, promise)

    def end(self, promise: Promise) -> None:
        """The reader has its own lease, or never will."""
        if promise.timer is not None:
            promise.timer.cancel()
            promise.timer = None
        hold = promise.hold
        if promise in hold.promises:
            hold.promises.discard(promise)
            if not hold.promises:
                if self._holds.get(hold.ref) is hold:
                    del self._holds[hold.ref]
                self._all.discard(hold)
                self._let_go(hold.held)

    def end_all(self) -> None:
        """End all promises: the daemon stops, and no time must run out after that."""
        for hold in list(self._all):
            for promise in list(hold.promises):
                self.end(promise)

    def release(self, ref: Ref) -> None:
        """End all promises of a shard."""
        if (held := self.drop(ref)) is not None:
            self._let_go(held)

    def drop(self, ref: Ref) -> Held | None:
        """Take the lease away from all promises of a shard; the caller gives it back."""
        hold = self._holds.pop(ref, None)
        if hold is None:
            return None
        for promise in hold.promises:
            if promise.timer is not None:
                promise.timer.cancel()
        hold.promises.clear()
        self._all.discard(hold)
        return hold.held
