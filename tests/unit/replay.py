"""A node in a replay: trainers, a link, a cap, and the policy that decides. Time is simulated; nothing else is."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from cachedaemon.course import Course
from cachedaemon.foresight import Scene, choose
from cachedaemon.model import Ref
from cachedaemon.plans import Plan, Plans
from cachedaemon.policy import Order


def shuffled(shards: int, epochs: int, seed: int = 1) -> list[str]:
    """The keys of so many epochs, each shuffled by itself."""
    keys: list[str] = []
    for epoch in range(epochs):
        order = [str(number) for number in range(shards)]
        random.Random(f"{seed} {epoch}").shuffle(order)
        keys += order
    return keys


def fewest(keys: Sequence[str], cap: int, start: Sequence[str] = ()) -> int:
    """Transfers of MIN (Belady 1966), which brings a shard when it is used."""
    coming: dict[str, list[int]] = {}
    for index in range(len(keys) - 1, -1, -1):
        coming.setdefault(keys[index], []).append(index)
    content: dict[str, float] = {key: coming[key][-1] if key in coming else math.inf for key in start}
    misses = 0
    for key in keys:
        coming[key].pop()
        if key not in content:
            misses += 1
            if len(content) >= cap:
                del content[max(content, key=content.__getitem__)]
        content[key] = coming[key][-1] if coming[key] else math.inf
    return misses


@dataclass(eq=False)
class Shard:
    ref: Ref
    used: float
    ticket: int = -1
    unread_of: str | None = None
    leases: int = 0


@dataclass(eq=False)
class Trainer:
    plan: Plan
    step: float
    """Seconds that it works on one shard."""
    lag: float = 0.0
    stood: float = 0.0
    since: float | None = None
    done_at: float = 0.0
    uses: int = 0
    hits: int = 0
    open: Shard | None = None
    promised: Shard | None = None


@dataclass
class Node:
    """`fetch` seconds a transfer, `width` at once."""

    cap: int
    fetch: float
    width: int = 8
    policy: str = "auto"
    every: float = 0.1
    """Seconds between two looks ahead."""
    now: float = 0.0
    looked: float = -1.0
    fetched: int = 0
    plans: Plans = field(default_factory=Plans)
    trainers: list[Trainer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order: Order[Shard] = Order(self._next_use) if self.policy == "auto" else Order()
        self.here: dict[Ref, Shard] = {}
        self.flying: dict[Ref, str | None] = {}
        self.queue: list[Ref] = []
        self.events: list[tuple[float, int, str, object]] = []
        self.numbers = count()

    def _next_use(self, shard: Shard) -> float:
        return self.plans.next_use(shard.ref)

    def add(self, keys: Sequence[str], step: float = 1.0, lag: float = 0.0, user: int = 0) -> Trainer:
        plan = Plan(f"p{len(self.trainers)}", "s", Course(keys), 1, self.now, user=user)
        self.plans.put(plan)
        trainer = Trainer(plan, step, lag)
        self.trainers.append(trainer)
        self._at(self.now + lag, "next", trainer)
        return trainer

    def _at(self, when: float, what: str, whom: object) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what, whom))

    def run(self) -> None:
        self._ahead()
        while self.events:
            self.now, _, what, whom = heapq.heappop(self.events)
            if what == "next":
                assert isinstance(whom, Trainer)
                self._open(whom)
            else:
                assert isinstance(whom, Ref)
                self._arrive(whom)
            self._ahead()

    # ---- trainers

    def _open(self, trainer: Trainer) -> None:
        plan = trainer.plan
        if trainer.open is not None:
            trainer.open.leases -= 1
            trainer.open = None
        if plan.position >= plan.keys:
            trainer.done_at = self.now
            return
        ref = Ref("s", plan.course.keys[plan.position])
        if ref not in self.here:
            if trainer.since is None:
                trainer.since = self.now
            if ref not in self.flying and ref not in self.queue:
                self.queue.append(ref)
            self._start()
            return
        trainer.uses += 1
        trainer.hits += trainer.since is None
        if trainer.since is not None:
            trainer.stood += self.now - trainer.since
            trainer.since = None
        shard = trainer.open = self.here[ref]
        if trainer.promised is None:
            shard.leases += 1
        trainer.promised = None
        shard.used, shard.unread_of = self.now, None
        for moved in self.plans.move(plan, plan.position + 1, self.now):
            if moved in self.here:
                self.order.moved(self.here[moved])
        self._at(self.now + trainer.step, "next", trainer)

    # ---- the link

    def _start(self) -> None:
        while self.queue and len(self.flying) < self.width:
            if not self._make_room(self.queue[0], None):
                return
            self._fly(self.queue.pop(0), None)

    def _fly(self, ref: Ref, plan: str | None) -> None:
        self.flying[ref] = plan
        self.fetched += 1
        self._at(self.now + self.fetch, "here", ref)

    def _make_room(self, ref: Ref, due: float | None) -> bool:
        assert len(self.here) + len(self.flying) <= self.cap
        if len(self.here) + len(self.flying) < self.cap:
            return True
        last = None
        for shard in self.order.first_to_go():
            if shard.leases:
                continue
            if due is not None and self.plans.next_use(shard.ref) <= due:
                break
            if shard.unread_of is None:
                self._evict(shard)
                return True
            last = last or shard
        if last is not None and due is None:
            self._evict(last)
            return True
        return False

    def _evict(self, shard: Shard) -> None:
        del self.here[shard.ref]
        self.order.discard(shard)

    def _arrive(self, ref: Ref) -> None:
        plan = self.flying.pop(ref)
        shard = self.here[ref] = Shard(ref, self.now, unread_of=plan)
        self.order.add(shard)
        for trainer in self.trainers:
            waits = trainer.since is not None and trainer.promised is None
            if waits and trainer.plan.course.keys[trainer.plan.position] == ref.key:
                trainer.promised = shard
                shard.leases += 1
                self._at(self.now, "next", trainer)
        self._start()

    def _ahead(self) -> None:
        if self.queue or self.now < self.looked + self.every or self.policy == "lru":
            return
        self.looked = self.now
        running = [plan for plan in self.plans.running() if plan.position < plan.keys]
        unread: dict[str, int] = {}
        for name in [*self.flying.values(), *(shard.unread_of for shard in self.here.values())]:
            if name is not None:
                unread[name] = unread.get(name, 0) + 1
        here = {*self.here, *self.flying, *self.queue}
        for one in choose(running, Scene(here, self.cap, self.fetch, unread), self.width):
            if len(self.flying) >= self.width:
                return
            if self._make_room(one.ref, one.due):
                self._fly(one.ref, one.plan.tag)
