"""What to fetch ahead. Pure: no clock, no disk, no await; the same plans and shards give the same choice.

MIN (Belady 1966) is played forward over the known plans. It drops some of what is here before its next use: so many places
cost nothing, and the next misses may be fetched into them now, the soonest first. Where there are none, a miss waits until
its transfer would come too late otherwise, and is fetched then whatever its victim is: a consumer does not stand still, and
the place of what was used meanwhile is mostly free for the next one. To fetch earlier would cost hits.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cachedaemon.model import Ref
from cachedaemon.plans import Plan
from cachedaemon.shares import Shares

STEPS = 20_000
"""Uses that are looked ahead at the most."""
MISSES = 32
"""Misses that the game is played for at the least, to see what it drops."""
AHEAD = 1.5
"""Transfers begin so many times the seconds of one before their shard is used, at the latest."""
OF_CAP = 0.5
"""Part of the cap that what is fetched at the latest may take up, until it is used."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard to be fetched ahead."""

    ref: Ref
    due: float
    """When it is used next."""
    plan: Plan


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


Wanting = Callable[[Ref], Iterable[Plan]]


def choose(plans: Sequence[Plan], scene: Scene, limit: int, wanting: Wanting | None = None) -> list[Wanted]:
    """What to fetch now, the soonest needed first, `limit` and each user's share at the most.

    `wanting` names the plans that may want a shard; without it all are looked through.
    """
    at_no_cost = _at_no_cost(plans, scene, max(limit, MISSES), wanting or (lambda _: plans))
    chosen = {one.ref: one for one in (*_urgent(plans, scene), *at_no_cost)}
    shares = Shares(plans, scene.cap, scene.unread.values())
    by_due = sorted(chosen.values(), key=lambda one: one.due)
    return list(islice((one for one in by_due if shares.take(one.plan.user)), limit))


def _at_no_cost(plans: Sequence[Plan], scene: Scene, most: int, wanting: Wanting) -> list[Wanted]:
    """As many of the first `most` misses of MIN as there are places for: free, or of what MIN drops before it is used.

    Any of those places will do for any of these misses: it is empty until then, or as good as empty.
    """
    game = _Game(plans, scene, wanting)
    missing: list[Wanted] = []
    places = 0
    for wanted, is_miss, finds_place in islice(iter(game.step, None), STEPS):
        if is_miss and wanted.ref not in scene.here:
            missing.append(wanted)
            places += finds_place
        if len(missing) >= most:
            break
    return missing[:places]


def _urgent(plans: Sequence[Plan], scene: Scene) -> list[Wanted]:
    """What is missing of the uses that come before a transfer would have ended, and half as much time again.

    Of what may be fetched so, each user has an equal part, and then what others leave, or one that is quick would take all.
    """
    most = max(1, int(OF_CAP * scene.cap))
    coming: dict[Ref, Wanted] = {}
    for one in sorted((one for plan in plans for one in _soon(plan, scene, most)), key=lambda one: one.due):
        coming.setdefault(one.ref, one)
    part = max(1, most // max(1, len({plan.user for plan in plans})))
    had: Counter[int] = Counter()
    first: list[Wanted] = []
    then: list[Wanted] = []
    for one in coming.values():
        had[one.plan.user] += 1
        (first if had[one.plan.user] <= part else then).append(one)
    return [one for one in islice((*first, *then), most) if one.ref not in scene.here]


def _soon(plan: Plan, scene: Scene, most: int) -> Iterator[Wanted]:
    """Uses within that time of shards that are missing, or were fetched ahead and not used yet."""
    until = plan.when(plan.position) + AHEAD * scene.fetch
    for index, key in islice(plan.course.ahead(), STEPS):
        due, ref = plan.when(index), Ref(plan.source, key)
        if most <= 0 or due >= until:
            return
        if ref in scene.unread or ref not in scene.here:
            most -= 1
            yield Wanted(ref, due, plan)


def _opened(plan: Plan) -> Iterator[Ref]:
    """What its consumer has open, as far as it said."""
    first = max(0, plan.position - plan.holds) if plan.begun else plan.position
    return (Ref(plan.source, key) for key in plan.course.keys[first : plan.position])


class _Game:
    """MIN, played from here over the merged order of all plans."""

    def __init__(self, plans: Sequence[Plan], scene: Scene, wanting: Wanting) -> None:
        """What is open cannot go: the game has so many places and shards less, those that are used last."""
        opened = sum(ref in scene.here for ref in {ref for plan in plans for ref in _opened(plan)})
        self._cap = scene.cap - opened
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
        """What goes first. Of those that nobody uses again, the ones that are free now: they are places for the next misses."""
        self._used: set[Ref] = set()
        """What was used in the game; the others of its content are residents of now."""
        for ref in scene.here:
            due = self._content[ref] = self._next_use(ref)
            heapq.heappush(self._heap, (-due, False, ref))  # at once, it would keep the interpreter from the loop
        self._drop(min(scene.cap, len(scene.here)) - opened)

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
        """The next use; whether it is a miss, and if so whether its place is there now. None: that was all."""
        if not self._coming:
            return None
        due, number, index = heapq.heappop(self._coming)
        plan = self._plans[number]
        ref = Ref(plan.source, plan.course.keys[index])
        self._push(number, index + 1)
        self._later[number][ref.key] = plan.course.again(index)
        is_miss = ref not in self._content
        finds_place = is_miss and self._make_room()
        self._used.add(ref)
        self._keep(ref)
        return Wanted(ref, due, plan), is_miss, finds_place

    def _make_room(self) -> bool:
        """Whether a miss goes where there is a place now: free, or of a victim that is here and is not used before."""
        if len(self._content) < self._cap:
            return True
        return any(ref not in self._used for ref in self._drop(self._cap - 1))

    def _drop(self, most: int) -> list[Ref]:
        """Drop what is used last until so many shards are left at the most."""
        dropped = []
        while len(self._content) > most and self._heap:
            due, _, ref = heapq.heappop(self._heap)
            if self._content.get(ref) == -due:
                del self._content[ref]
                dropped.append(ref)
        return dropped
