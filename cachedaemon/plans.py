"""Plans: the orders in which consumers will want shards. Pure: no clock, no disk, no await.

A plan lives as long as its owner holds the plan's file. Once the lock has been seen held, its loss ends the plan; a plan
whose file was never locked ends ten minutes after its last word.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cachedaemon.course import Course
from cachedaemon.model import Ref

SILENCE = 600.0
"""Seconds after its last word that a plan lives whose file was never locked."""
IDLE_LEAST, IDLE_GAPS = 30.0, 10.0
"""A plan is idle after so many seconds, or so many of its mean gaps between two uses, whichever is more, without one."""
MEASURED = 16
"""Steps over which the rate of use is measured."""
FEW = 16
"""Plans of one source that are looked through for each shard; with more there is an index by key."""
AT_ONCE = 500
"""Keys that the index takes in between two turns of others."""
DRIFT = 4.0
"""Mean gaps by which a consumer may be early or late before its uses are reckoned anew."""
K = TypeVar("K")
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
    clock: tuple[float, int, float] = (0.0, 0, 1.0)
    """A time, the index that was next then, and the seconds from one use to the next: all later uses are reckoned from it.

    What is not measured yet goes by one use a second.
    """
    measured: bool = False
    begun: bool = False
    """Whether it has moved at all."""
    ended: bool = False
    """It is not in force any more."""

    def __post_init__(self) -> None:
        """It begins where it is."""
        self.steps.append((self.heard, self.position))
        self.clock = (self.heard, self.position, 1.0)

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
        """The time of a use."""
        time, position, gap = self.clock
        return time + (index - position) * gap

    def advance(self, position: int, now: float) -> list[str]:
        """Its consumer has moved; the keys whose next use is another one now."""
        before = self.position
        moved = self.course.move(position)
        if moved:
            if self.position < before or self.idle or not self.begun:
                self.steps.clear()  # time before the first use, or of a pause, is no gap between two uses
            self.steps.append((now, self.position))
            self.begun = True
        return moved

    @property
    def tag(self) -> str:
        """What marks the shards that were fetched for it and not used yet; no job is named so."""
        return f"plan {self.id}"

    def drifts(self) -> bool:
        """Whether uses come so much earlier or later than reckoned that they are to be reckoned anew."""
        gap = self.gap
        late = abs(self.when(self.position) - self.steps[-1][0])
        return (gap is not None and not self.measured) or late > DRIFT * max(gap or 0.0, self.clock[2])

    def reckon(self, gap: float | None) -> None:
        """Reckon all later uses from its last step on, at this rate; None: at the one before."""
        self.clock, self.measured = (*self.steps[-1], gap or self.clock[2]), self.measured or gap is not None


class Plans:
    """All plans that run. `reckoned` counts how often times of uses were reckoned anew."""

    def __init__(self) -> None:
        self._all: dict[str, Plan] = {}
        self._of: dict[str, list[Plan]] = {}
        self._teams: dict[tuple[str, int], list[Plan]] = {}
        self._by_key: dict[str, dict[str, list[Plan]]] = {}
        """Who may want a shard, by source and key, of sources with many plans."""
        self._indexed: set[str] = set()
        self._fresh: dict[str, list[Plan]] = {}
        """Plans of those sources that are not in the index yet: any of them may want any shard."""
        self._to_index: deque[Iterator[None]] = deque()
        self.reckoned = 0

    def put(self, plan: Plan) -> Plan | None:
        """Take a plan into force, or replace the keys of the one with its id; the one that was replaced."""
        old = self._all.get(plan.id)
        if old is not None:
            plan.seen_held = old.seen_held
            self._take_out(old)
        self._all[plan.id], plan.ended = plan, False
        of = self._of.setdefault(plan.source, [])
        of.append(plan)
        self._teams.setdefault((plan.source, plan.course.order), []).append(plan)
        plan.clock = (plan.heard, plan.position, self.team(plan)[0].clock[2])
        if plan.source in self._indexed:
            self._note([plan])
        elif len(of) > FEW:
            self._indexed.add(plan.source)
            self._note(of)
        return old

    def _note(self, plans: Sequence[Plan]) -> None:
        self._fresh.setdefault(plans[0].source, []).extend(plans)
        self._to_index.extend(self._index(plan) for plan in plans)

    def _take_out(self, plan: Plan) -> None:
        plan.ended = True
        _remove(self._of, plan.source, plan)
        _remove(self._teams, (plan.source, plan.course.order), plan)
        if plan.source in self._indexed:
            _remove(self._fresh, plan.source, plan)
            self._to_index.append(self._unindex(plan))
        if plan.source not in self._of:
            self._indexed.discard(plan.source)

    def index(self) -> Iterator[None]:
        """Bring the index up to date, a part at each step: a plan may have a million keys, and others want their turn."""
        while self._to_index:
            yield from self._to_index[0]
            self._to_index.popleft()

    def _index(self, plan: Plan) -> Iterator[None]:
        by_key = self._by_key.setdefault(plan.source, {})
        for number, key in enumerate(plan.course.keys):
            of = by_key.setdefault(key, [])
            if not of or of[-1] is not plan:
                of.append(plan)
            if number % AT_ONCE == AT_ONCE - 1:
                yield
        _remove(self._fresh, plan.source, plan)

    def _unindex(self, plan: Plan) -> Iterator[None]:
        by_key = self._by_key.get(plan.source, {})
        for number, key in enumerate(plan.course.keys):
            _remove(by_key, key, plan)
            if number % AT_ONCE == AT_ONCE - 1:
                yield

    def wanting(self, ref: Ref) -> Sequence[Plan]:
        """All plans that want a shard, and perhaps others, also ended ones: who has many of them looks at few."""
        if ref.source not in self._indexed:
            return self._of.get(ref.source, ())
        known, fresh = self._by_key.get(ref.source, {}).get(ref.key, ()), self._fresh.get(ref.source)
        return [*known, *fresh] if fresh else known

    def team(self, plan: Plan) -> list[Plan]:
        """It, and all others that follow the same order: workers of a rank, or ranks in step.

        They go at one rate. Each by its own, of the few uses that it made lately, what one that ran on a little wants far
        ahead would come before what another wants next.
        """
        return self._teams.get((plan.source, plan.course.order), [])

    def get(self, name: str) -> Plan | None:
        """A plan that runs."""
        return self._all.get(name)

    def next_use(self, ref: Ref) -> float:
        """The time of a shard's next use over all plans; infinite when none of them wants it (any more)."""
        soonest = math.inf
        for plan in self.wanting(ref):
            index = None if plan.idle or plan.ended else plan.course.next_use(ref.key)
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
            self._reckon(self.team(plan))
        return [Ref(plan.source, key) for key in moved]

    def _reckon(self, team: Sequence[Plan]) -> None:
        gaps = [plan.gap for plan in team if plan.gap is not None]
        for plan in team:
            plan.reckon(sum(gaps) / len(gaps) if gaps else None)
        self.reckoned += 1

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
        if plan is not None:
            self._take_out(plan)
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
        """Shards that all consumers together have open at once.

        Those of one user that follow the same order walk together, as the workers of a rank do, or ranks in step: they
        count as two of them, since some are at the next shards already while others have the ones before.
        """
        teams: dict[tuple[int, str, int], list[int]] = {}
        for plan in self._all.values():
            teams.setdefault((plan.user, plan.source, plan.course.order), []).append(min(plan.holds, plan.keys))
        return sum(min(sum(holds), 2 * max(holds)) for holds in teams.values())

    def __iter__(self) -> Iterator[Plan]:
        """All, in the order of their making."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """How many run."""
        return len(self._all)


def _remove(of: dict[K, list[Plan]], key: K, plan: Plan) -> None:
    """Take a plan out of one of the lists, where it is in it; no list stays empty."""
    if plan in (plans := of.get(key, [])):
        plans.remove(plan)
        if not plans:
            del of[key]


def is_plan_id(name: str) -> bool:
    """Whether this may name a plan."""
    return _ID.match(name) is not None
