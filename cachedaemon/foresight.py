"""What to fetch ahead. Pure: no clock, no disk, no await; the same plans and shards give the same choice.

MIN (Belady 1966) is played forward over the known plans. Each future miss has a victim there, and its fetch may begin as
soon as no use of that victim lies before it. That alone looks hardly ahead, since the best victim is mostly the shard that
was used last; so MIN is played for the cap less a transit window, and the next missing shards of each plan may be fetched
into the window whatever their victim is, as long as few are under way or unread.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cachedaemon.model import Ref
from cachedaemon.plans import Plan
from cachedaemon.shares import Shares

STEPS = 20_000
"""Uses that are looked ahead at the most."""
AHEAD = 1.5
"""Window, in shards that are used while one is fetched."""
OF_CAP, OF_MISSES = 0.5, 0.05
"""The window is at most these parts of the cap, and of the plan's misses that are left."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard to be fetched ahead."""

    ref: Ref
    due: float
    """When it is used next."""
    plan: Plan

    def is_urgent(self, scene: Scene) -> bool:
        """Whether its consumer would stand still if its transfer did not begin about now."""
        return self.due - self.plan.when(self.plan.position) < AHEAD * scene.fetch


@dataclass(slots=True)
class Scene:
    """What there is to decide by. `here` are shards that are resident or on their way."""

    here: Collection[Ref]
    cap: int
    """Shards that there is room for."""
    fetch: float
    """Seconds that a transfer takes."""
    unread: Mapping[Ref, str] = field(default_factory=dict)
    """Of those: what was fetched ahead, or is on its way, and was not used yet; with the tag of the plan that it came for."""
    _keys: dict[str, set[str]] = field(default_factory=dict)

    def keys(self, source: str) -> set[str]:
        """What is here of one source."""
        if not self._keys:
            for ref in self.here:
                self._keys.setdefault(ref.source, set()).add(ref.key)
        return self._keys.get(source, set())


Wanting = Callable[[Ref], Iterable[Plan]]


@dataclass(frozen=True, slots=True)
class _Group:
    """Plans that follow the same order of one source: what one of them fetches, the others need not."""

    plans: list[Plan]

    def window(self, scene: Scene) -> int:
        """The transit window, in shards: what the group uses while a shard is on its way, and half as much again."""
        first = max(self.plans, key=lambda plan: plan.position)
        misses = first.course.wanted - first.course.among(scene.keys(first.source))
        most = min(int(OF_CAP * scene.cap), max(1, int(OF_MISSES * misses)))
        gap = min(plan.clock[2] for plan in self.plans)
        return max(1, min(most, math.ceil(AHEAD * scene.fetch / gap)))

    def next_missing(self, scene: Scene, window: int) -> list[Wanted]:
        """The next uses that would have to wait: as far as the window reaches, or as places are free: those cost nothing.

        What is unread stands in the window until it is used; what was fetched long before its use, behind it. The window
        reaches at least as far as a transfer takes, and half as far again.
        """
        free = max(0, scene.cap - len(scene.here))
        most = max(window, free + len(scene.unread))
        found: dict[Ref, Wanted] = {}
        for plan in self.plans:
            for one in _not_read(plan, scene, most):
                if one.ref not in found or one.due < found[one.ref].due:
                    found[one.ref] = one
        coming = heapq.nsmallest(most, found.values(), key=lambda one: one.due)
        missing = [one for one in coming if one.ref not in scene.here]
        window = max(window, min(int(OF_CAP * scene.cap), sum(one.is_urgent(scene) for one in coming)))
        within = sum(one.ref not in scene.here for one in coming[:window])
        return missing[: max(free, within)]


def _grouped(plans: Sequence[Plan]) -> list[_Group]:
    groups: dict[tuple[str, int], list[Plan]] = {}
    for plan in plans:
        groups.setdefault((plan.source, plan.course.order), []).append(plan)
    return [_Group(group) for group in groups.values()]


def choose(plans: Sequence[Plan], scene: Scene, limit: int, wanting: Wanting | None = None) -> list[Wanted]:
    """What to fetch now, the soonest needed first, `limit`, the window and each user's share at the most.

    `wanting` names the plans that may want a shard; without it all are looked through.
    """
    wanting = wanting or (lambda _: plans)
    windows = [(group, group.window(scene)) for group in _grouped(plans)]
    transit = min(max(1, int(OF_CAP * scene.cap)), sum(size for _, size in windows))
    allowed = _allowed(plans, scene, scene.cap - transit, limit + transit, wanting)
    chosen = {
        one.ref: one for one in allowed if one.ref not in scene.here
    }  # what lies in the window is no part of the game
    for group, size in windows:
        for one in group.next_missing(scene, size):
            chosen.setdefault(one.ref, one)
    shares = Shares(plans, scene.cap, scene.unread.values())
    by_due = sorted(chosen.values(), key=lambda one: one.due)
    return list(islice((one for one in by_due if shares.take(one.plan.user)), limit))


def _not_read(plan: Plan, scene: Scene, most: int) -> Iterator[Wanted]:
    """The next uses of what is missing, or was fetched ahead and not used yet."""
    seen: set[Ref] = set()
    for index, key in plan.course.ahead():
        if len(seen) >= most or index - plan.position >= STEPS:
            return
        ref = Ref(plan.source, key)
        if ref not in seen and (ref in scene.unread or ref not in scene.here):
            seen.add(ref)
            yield Wanted(ref, plan.when(index), plan)


def _allowed(plans: Sequence[Plan], scene: Scene, cap: int, most: int, wanting: Wanting) -> list[Wanted]:
    """Fetches that MIN lets begin now, of the first `most` misses."""
    game = _Game(plans, scene.here, cap, wanting)
    found: list[Wanted] = []
    misses = 0
    for _ in range(STEPS):
        step = game.step()
        if step is None or misses >= most:
            break
        wanted, is_miss, may_begin = step
        misses += is_miss
        if may_begin:
            found.append(wanted)
    return found


class _Game:
    """MIN, played from here over the merged order of all plans."""

    def __init__(self, plans: Sequence[Plan], here: Collection[Ref], cap: int, wanting: Wanting) -> None:
        self._cap = cap
        self._wanting = wanting
        self._numbers = {plan.id: number for number, plan in enumerate(plans)}
        self._plans = plans
        self._coming: list[tuple[float, int, int]] = []
        """The next use of each plan: its time, which plan, its index."""
        self._later: list[dict[str, int | None]] = [{} for _ in plans]
        """Next uses as far as they differ from those of now, since the game is ahead of it."""
        for number, plan in enumerate(plans):
            self._push(number, plan.position)
        self._content: dict[Ref, float] = {}
        self._heap: list[tuple[float, bool, Ref]] = []
        """What goes first. Of those that nobody uses again, the ones that are free now: then the next misses may begin now."""
        self._untouched = set(here)
        """Residents of now which were not used in the game."""
        for ref in here:
            due = self._content[ref] = self._next_use(ref)
            heapq.heappush(self._heap, (-due, False, ref))  # at once, it would keep the interpreter from the loop
        self._drop(cap)  # what lies in the window goes beside the game: its going is no room for a miss

    def _push(self, number: int, index: int) -> None:
        plan = self._plans[number]
        if index < len(plan.course):
            heapq.heappush(self._coming, (plan.when(index), number, index))

    def _next_use(self, ref: Ref) -> float:
        soonest = math.inf
        for plan in self._wanting(ref):
            number = self._numbers.get(plan.id)
            if number is not None and self._plans[number] is plan:
                later = self._later[number]
                index = later[ref.key] if ref.key in later else plan.course.next_use(ref.key)
                if index is not None:
                    soonest = min(soonest, plan.when(index))
        return soonest

    def _keep(self, ref: Ref) -> None:
        due = self._content[ref] = self._next_use(ref)
        heapq.heappush(self._heap, (-due, True, ref))

    def step(self) -> tuple[Wanted, bool, bool] | None:
        """The next use; whether it is a miss, and if so whether its fetch may begin now. None: that was all."""
        if not self._coming:
            return None
        due, number, index = heapq.heappop(self._coming)
        plan = self._plans[number]
        ref = Ref(plan.source, plan.course.keys[index])
        self._push(number, index + 1)
        self._later[number][ref.key] = plan.course.again(index)
        is_miss = ref not in self._content
        may_begin = is_miss and self._make_room()
        self._untouched.discard(ref)
        self._keep(ref)
        return Wanted(ref, due, plan), is_miss, may_begin

    def _make_room(self) -> bool:
        """Whether there is room for a miss now: free, or of a victim that nobody uses before it."""
        if len(self._content) < self._cap:
            return True
        return any(ref in self._untouched for ref in self._drop(self._cap - 1))

    def _drop(self, most: int) -> list[Ref]:
        """Drop what is used last until so many shards are left at the most."""
        dropped = []
        while len(self._content) > most and self._heap:
            due, _, ref = heapq.heappop(self._heap)
            if self._content.get(ref) == -due:
                del self._content[ref]
                dropped.append(ref)
        return dropped
