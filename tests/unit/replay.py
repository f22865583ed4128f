"""A node in a replay: trainers, a link, a cap, and what really decides. Time is simulated, and the disk; nothing else is."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from cachedaemon.course import Course
from cachedaemon.entries import Entry, Evict, Flight, Granted
from cachedaemon.foresight import Scene, choose
from cachedaemon.ledger import Ledger
from cachedaemon.model import BLOCK, Caps, Disk, Need, Ref, Stamp
from cachedaemon.plans import Plan, Plans
from cachedaemon.shares import beyond

LOOK_AT_PLANS = 1.0
"""Seconds between two looks for plans that have become idle."""
_ROOMY = Disk(1 << 40, 1 << 40, 0, 0)
_SHARD = Need(BLOCK, 1)


@dataclass(frozen=True)
class _Nothing:
    """No part of the file system is left to others."""

    def of(self, total_bytes: int) -> int:
        return 0

    def of_inodes(self, total_inodes: int, total_bytes: int) -> int:
        return 0


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
class Trainer:
    """A consumer of one plan. It stops for good, with its shard open, before the use of index `stops`."""

    plan: Plan
    step: float
    """Seconds that it works on one shard."""
    stops: int | None = None
    stood: float = 0.0
    since: float | None = None
    done_at: float = 0.0
    uses: int = 0
    open: Ref | None = None
    promised: Ref | None = None


@dataclass
class Node:
    """`fetch` seconds a transfer, `width` at once. `decided` says in order what was fetched and what went for it."""

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
    decided: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is here yet."""
        caps = Caps(self.cap, 0, _Nothing())
        self.ledger = Ledger(caps, self.plans.next_use) if self.policy == "auto" else Ledger(caps)
        self.leases: Counter[Ref] = Counter()
        self.flying: set[Ref] = set()
        self.queue: list[Flight] = []
        self.events: list[tuple[float, int, str, object]] = []
        self.numbers = count()
        self._looked_at_plans = -math.inf

    @property
    def here(self) -> set[Ref]:
        """What is local."""
        return {entry.ref for entry in self.ledger.entries()}

    def unread(self, user: int) -> int:
        """Shards that were fetched ahead for a user's plans, or are under way, not used yet and protected."""
        tags = {plan.tag for plan in self.plans.running() if plan.user == user}
        flights = sum(flight.job in tags and not flight.demand for flight in self.ledger.flights.values())
        return flights + sum(entry.unread_of in tags for entry in self.ledger.entries())

    def add(
        self, keys: Sequence[str], step: float = 1.0, lag: float = 0.0, user: int = 0, stops: int | None = None
    ) -> Trainer:
        """A trainer that begins `lag` seconds from now; its plan is in force at once."""
        plan = Plan(f"p{len(self.trainers)}", "s", Course(keys), 1, self.now, user=user)
        self.plans.put(plan)
        trainer = Trainer(plan, step, stops)
        self.trainers.append(trainer)
        self._protect()
        self._at(self.now + lag, "next", trainer)
        return trainer

    def _protect(self) -> None:
        self.ledger.protected = {plan.tag for plan in self.plans.running()}

    def _at(self, when: float, what: str, whom: object) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what, whom))

    def run(self, until: float = math.inf) -> None:
        """Until every trainer has ended or stopped, or that time has come."""
        self._ahead()
        while self.events and self.events[0][0] <= until:
            self.now, _, _what, whom = heapq.heappop(self.events)
            if isinstance(whom, Trainer):
                self._open(whom)
            elif isinstance(whom, Flight):
                self._arrive(whom)
            if not self.events or self.events[0][0] > self.now:
                self._ahead()  # once what waited for a shard has it open

    def kill(self, trainer: Trainer) -> None:
        """Its leases end, and its plan."""
        self._close(trainer)
        self.plans.end(trainer.plan.id)
        self._no_more(trainer.plan)
        self._protect()
        self.events = [event for event in self.events if event[3] is not trainer]
        heapq.heapify(self.events)
        self.trainers.remove(trainer)

    def _no_more(self, plan: Plan) -> None:
        self.ledger.replanned(ref for ref in self.here if plan.course.next_use(ref.key) is not None)

    # ---- trainers

    def _open(self, trainer: Trainer) -> None:
        plan = trainer.plan
        if plan.position == trainer.stops:
            return
        self._close(trainer)
        if plan.position >= plan.keys:
            trainer.done_at = self.now
            return
        ref = Ref("s", plan.course.keys[plan.position])
        entry = self.ledger.get(ref)
        if entry is None:
            self._ask(trainer, ref)
            return
        self._use(trainer, entry)
        moved = self.plans.move(plan, plan.position + 1, self.now)
        self.ledger.replanned(moved)
        self._at(self.now + trainer.step, "next", trainer)

    def _close(self, trainer: Trainer) -> None:
        if trainer.open is not None:
            self.leases[trainer.open] -= 1
            self.ledger.recheck()
        trainer.open = None

    def _ask(self, trainer: Trainer, ref: Ref) -> None:
        trainer.since = self.now
        flight, is_new = self.ledger.join(ref)
        if is_new:
            self.queue.append(flight)
        self._start()

    def _use(self, trainer: Trainer, entry: Entry) -> None:
        trainer.uses += 1
        if trainer.since is not None:
            trainer.stood += self.now - trainer.since
            trainer.since = None
        if trainer.promised is None:
            self.leases[entry.ref] += 1
        trainer.open, trainer.promised = entry.ref, None
        self.ledger.touch(entry, self.now)

    # ---- the link

    def _start(self) -> None:
        while self.queue and len(self.flying) < self.width and self._make_room(self.queue[0]):
            self._fly(self.queue.pop(0))

    def _fly(self, flight: Flight) -> None:
        self.flying.add(flight.ref)
        self.fetched += 1
        self.decided.append(("fetch", flight.ref.key, "" if flight.demand else str(flight.job)))
        self._at(self.now + self.fetch, "here", flight)

    def _make_room(self, flight: Flight) -> bool:
        while isinstance(verdict := self.ledger.reserve(flight, _SHARD, _ROOMY), Evict):
            for victim in verdict.victims:
                if self.leases[victim.ref]:
                    self.ledger.put_back(victim, busy=True)
                else:
                    self._evict(victim, flight)
        assert len(self.ledger) + len(self.flying) <= self.cap
        return isinstance(verdict, Granted)

    def _evict(self, victim: Entry, flight: Flight) -> None:
        self.decided.append(("evict", victim.ref.key, flight.ref.key))
        self.ledger.trashed(victim)
        self.ledger.deleted(Need(victim.blocks, victim.inodes))

    def _arrive(self, flight: Flight) -> None:
        ref = flight.ref
        self.flying.discard(ref)
        stamp = Stamp(0, self.fetched, BLOCK, 0)
        self.ledger.commit(flight, Entry(ref, ref.key, stamp, BLOCK, _SHARD.bytes, _SHARD.inodes, self.now))
        for trainer in self.trainers:
            waits = trainer.since is not None and trainer.promised is None
            if waits and trainer.plan.course.keys[trainer.plan.position] == ref.key:
                trainer.promised = ref
                self.leases[ref] += 1
                self._at(self.now, "next", trainer)
        self._start()

    # ---- ahead

    def _look_at_plans(self) -> None:
        if self.now < self._looked_at_plans + LOOK_AT_PLANS:
            return
        self._looked_at_plans = self.now
        for plan in self.plans.look(self.now):
            self._no_more(plan)
        self._protect()

    def _ahead(self) -> None:
        self._look_at_plans()
        if self.queue or self.now < self.looked + self.every or self.policy == "lru":
            return
        self.looked = self.now
        running = [plan for plan in self.plans.running() if plan.position < plan.keys]
        for entry in beyond(running, self.ledger.entries(), self.cap, self.plans.next_use):
            self.ledger.expose(entry)
        for one in choose(running, self._scene(), self.width):
            if len(self.flying) >= self.width:
                return
            flight, is_new = self.ledger.join(one.ref, job=one.plan.tag, ahead=True)
            assert is_new
            if self._make_room(flight):
                self._fly(flight)
            else:
                self.ledger.leave(flight)
                self.ledger.land(flight)

    def _scene(self) -> Scene:
        protected, flights = self.ledger.protected, self.ledger.flights
        unread = {entry.ref: str(entry.unread_of) for entry in self.ledger.entries() if entry.unread_of in protected}
        unread |= {ref: flight.job for ref, flight in flights.items() if flight.job is not None}
        return Scene(self.here | flights.keys(), self.cap, self.fetch, unread)
