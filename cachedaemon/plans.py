"""Plans: the orders in which consumers will want shards. Pure: no clock, no disk, no await.

A plan lives as long as its owner holds the plan's file. Once the lock has been seen held, its loss ends the plan; a plan
whose file was never locked ends ten minutes after its last word.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from cachedaemon.course import Course
from cachedaemon.model import Ref

SILENCE = 600.0
"""Seconds after its last word that a plan lives whose file was never locked."""
IDLE_LEAST, IDLE_GAPS = 30.0, 10.0
"""A plan is idle after so many seconds, or so many of its mean gaps between two uses, whichever is more, without one."""
MEASURED = 16
"""Steps over which the rate of use is measured."""
DRIFT = 4.0
"""Mean gaps by which a consumer may be early or late before its uses are reckoned anew."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(slots=True, eq=False)
class Plan:
    """One consumer's order. Times are in seconds of the daemon's own clock."""

    id: str
    source: str
    course: Course
    holds: int
    """Shards that the consumer has open at once."""
    heard: float
    """Time of its last word."""
    user: int = 0
    """Whose it is: a user id."""
    seen_held: bool = False
    idle: bool = False
    """No progress for too long: nothing is fetched or kept for it until it moves again."""
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MEASURED))
    """When it moved, and to which index."""
    anchor: tuple[float, int, float] | None = None
    """A time, the index that was next then, and the seconds from one use to the next: all later uses are reckoned from it."""

    def __post_init__(self) -> None:
        """It begins where it is."""
        self.steps.append((self.heard, self.position))

    @property
    def keys(self) -> int:
        """Uses in all."""
        return len(self.course)

    @property
    def position(self) -> int:
        """Index of the next key to open."""
        return self.course.position

    @property
    def gap(self) -> float | None:
        """Mean seconds from one use to the next, lately; None before there were two."""
        (began, first), (ended, last) = self.steps[0], self.steps[-1]
        return (ended - began) / (last - first) if last > first and ended > began else None

    def is_still(self, now: float) -> bool:
        """Whether it has made no progress for too long."""
        return now - self.steps[-1][0] > max(IDLE_LEAST, IDLE_GAPS * (self.gap or 0.0))

    def when(self, index: int) -> float:
        """The time of a use. What is not measured yet goes by one use a second."""
        time, position, gap = self.anchor or (*self.steps[-1], self.gap or 1.0)
        return time + (index - position) * gap

    def advance(self, position: int, now: float) -> list[str]:
        """Its consumer has moved; the keys whose next use is another one now."""
        before = self.position
        moved = self.course.move(position)
        if self.position < before:
            self.steps.clear()
        if moved:
            self.steps.append((now, self.position))
        return moved

    @property
    def tag(self) -> str:
        """What marks the shards that were fetched for it and not used yet; no job is named so."""
        return f"plan {self.id}"

    def drifts(self) -> bool:
        """Whether uses come so much earlier or later than reckoned that they are to be reckoned anew."""
        gap = self.gap
        if gap is None:
            return False
        if self.anchor is None:
            return True
        late = abs(self.when(self.position) - self.steps[-1][0])
        return late > DRIFT * max(gap, self.anchor[2]) and not math.isclose(gap, 0.0)

    def reckon(self) -> None:
        """Reckon all later uses from now on, at the rate that was measured."""
        self.anchor = (*self.steps[-1], self.gap or 1.0)


class Plans:
    """All plans that run. `reckoned` counts how often times of uses were reckoned anew."""

    def __init__(self) -> None:
        self._all: dict[str, Plan] = {}
        self._of: dict[str, list[Plan]] = {}
        self.reckoned = 0

    def put(self, plan: Plan) -> Plan | None:
        """Take a plan into force, or replace the keys of the one with its id; the one that was replaced."""
        old = self._all.get(plan.id)
        if old is not None:
            plan.seen_held = old.seen_held
        self._all[plan.id] = plan
        self._sort()
        return old

    def _sort(self) -> None:
        self._of = {}
        for plan in self._all.values():
            self._of.setdefault(plan.source, []).append(plan)

    def get(self, name: str) -> Plan | None:
        """A plan that runs."""
        return self._all.get(name)

    def of(self, source: str) -> list[Plan]:
        """All plans of a source."""
        return self._of.get(source, [])

    def next_use(self, ref: Ref) -> float:
        """The time of a shard's next use over all plans; infinite when none of them wants it (any more)."""
        soonest = math.inf
        for plan in self._of.get(ref.source, ()):
            index = None if plan.idle else plan.course.next_use(ref.key)
            if index is not None:
                soonest = min(soonest, plan.when(index))
        return soonest

    def move(self, plan: Plan, position: int | None, now: float) -> list[Ref]:
        """A plan was heard of, and perhaps moved; the shards whose next use is another one now."""
        plan.heard = now
        if position is None:
            return []
        moved = plan.advance(position, now)
        if plan.drifts():
            plan.reckon()
            self.reckoned += 1
        return [Ref(plan.source, key) for key in moved]

    def look(self, now: float) -> list[Plan]:
        """Plans that became idle, or are idle no more."""
        changed = [plan for plan in self._all.values() if plan.idle != plan.is_still(now)]
        for plan in changed:
            plan.idle = not plan.idle
        return changed

    def running(self) -> list[Plan]:
        """Plans for which something is done."""
        return [plan for plan in self._all.values() if not plan.idle]

    def end(self, name: str) -> Plan | None:
        """End a plan; None when there is none."""
        plan = self._all.pop(name, None)
        self._sort()
        return plan

    def ended(self, held: set[str], now: float) -> list[str]:
        """Given the plans whose files are held now: those to be ended."""
        gone = []
        for plan in self._all.values():
            if plan.id in held:
                plan.seen_held = True
            elif plan.seen_held or now - plan.heard > SILENCE:
                gone.append(plan.id)
        return gone

    def held_at_once(self) -> int:
        """Shards that all consumers together have open at once."""
        return sum(min(plan.holds, plan.keys) for plan in self._all.values())

    def __iter__(self) -> Iterator[Plan]:
        """All, in the order of their making."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """How many run."""
        return len(self._all)


def is_plan_id(name: str) -> bool:
    """Whether this may name a plan."""
    return _ID.match(name) is not None
