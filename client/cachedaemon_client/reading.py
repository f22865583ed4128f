"""One reader's way through its part of an epoch: what a loader of any framework gives its workers.

A reader is one of the workers that share a rank's keys. It has a plan of its own, reads its shards in their order, `mix`
of them at a time, and knows at every moment what it has given out. A state of it goes on exactly there; states of all
workers together (`joined`) let any other number of workers go on.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from cachedaemon_client.cache import ShardCache
from cachedaemon_client.errors import DaemonUnavailable
from cachedaemon_client.plan import Plan
from cachedaemon_client.sampler import ShardSampler, stream, worker_slice
from cachedaemon_client.shard import Shard

T = TypeVar("T")

Decode = Callable[[Shard, str], T]
"""Makes a sample of a member, by the shard and the member's name."""

PATIENCE = 5.0
"""Seconds that a plan waits for the daemon before reading begins without it."""
VERSION = 1
_PARTS = {"version", "sampler", "begun", "worker", "workers", "shards", "given"}


@dataclass(frozen=True)
class Reader:
    """Which of a rank's workers reads, and how."""

    number: int = 0
    of: int = 1
    mix: int = 1
    """Shards that it has open at once."""
    further: bool = True
    """Whether another epoch follows, for which the daemon may fetch when this one's shards are here."""


class Reading(Generic[T]):
    """The samples of one worker in one epoch, once; `state` says how far it has come.

    `begun` says which of the sampler's remaining keys, by place, were begun earlier, and how many of their samples were
    given then.
    """

    def __init__(
        self, sampler: ShardSampler, decode: Decode[T], reader: Reader, begun: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._sampler = copy.copy(sampler)
        self._decode = decode
        self._reader = reader
        self._begun = dict(begun)
        self._keys = worker_slice(sampler.remaining(), reader.number, reader.of)
        self._shards = 0
        self._given = self._given_before()

    # ---- how far it is

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._sampler.epoch

    @property
    def left(self) -> list[str]:
        """Keys of which something is still to be given, or looked for."""
        return self._keys[self._shards :]

    def state(self) -> dict[str, Any]:
        """What it has given out, as plain data."""
        return {
            "version": VERSION,
            "sampler": self._sampler.state_dict(),
            "begun": [list(one) for one in self._begun.items()],
            "worker": self._reader.number,
            "workers": self._reader.of,
            "shards": self._shards,
            "given": list(self._given),
        }

    def go_on(self, shards: int, given: Sequence[int]) -> None:
        """Go on where `shards` were done, and so many samples of each of those that were open then were given."""
        self._shards = shards
        self._given = list(given) or self._given_before()

    def _given_before(self) -> list[int]:
        """Samples of the next shards that were given before this reading began."""
        turns = range(self._shards, min(self._shards + self._reader.mix, len(self._keys)))
        return [self._begun.get(self._reader.number + turn * self._reader.of, 0) for turn in turns]

    # ---- reading

    def samples(self, cache: ShardCache) -> Iterator[T]:
        """The samples from its place on. While they are read a plan is in force, and `mix` shards are open."""
        if not self.left:
            return
        with self._announced(cache):
            while self.left:
                yield from self._mixed(cache, self.left[: len(self._given)])

    def _announced(self, cache: ShardCache) -> Plan:
        """The plan in force; or to be, when a daemon is there again: what is local is read without one."""
        plan = Plan(cache, self.left + self._later(), self._reader.mix)
        with contextlib.suppress(DaemonUnavailable):
            plan.renew(min(cache.wait, PATIENCE))
        cache.start(plan)
        return plan

    def _later(self) -> list[str]:
        """What this worker reads in the next epoch."""
        if not self._reader.further:
            return []
        later = copy.copy(self._sampler)
        later.set_epoch(self.epoch + 1)
        return worker_slice(later.remaining(), self._reader.number, self._reader.of)

    def _mixed(self, cache: ShardCache, keys: list[str]) -> Iterator[T]:
        """What is left of some shards, in an order that only depends on the run, the epoch and the shards."""
        with contextlib.ExitStack() as leases:
            shards = [leases.enter_context(cache.open(key)) for key in keys]
            orders = [self._sampler.samples(shard.key, len(shard.members)) for shard in shards]
            turns = self._turns(keys, [len(order) for order in orders])
            for left, which in zip(range(len(turns) - 1, -1, -1), turns, strict=True):
                member = shards[which].members[orders[which][self._given[which]]]
                sample = self._decode(shards[which], member)
                if left:
                    self._given[which] += 1
                else:
                    self._pass(len(keys))
                yield sample
            if not turns:
                self._pass(len(keys))

    def _turns(self, keys: list[str], counts: list[int]) -> list[int]:
        """Which shard each next sample is from; the first turns of each are those that were given."""
        turns = list(chain.from_iterable([which] * count for which, count in enumerate(counts)))
        if len(keys) > 1:
            turns = stream(self._sampler.seed, self.epoch, "mix", "\n".join(keys)).shuffled(turns)
        given = list(self._given)
        return [which for which in turns if not _taken(given, which)]

    def _pass(self, shards: int) -> None:
        self._shards += shards
        self._given = self._given_before()


def _taken(given: list[int], which: int) -> bool:
    """Whether this turn was had already; counted down."""
    given[which] -= 1
    return given[which] >= 0


def resumed(state: Mapping[str, Any], sampler: ShardSampler, decode: Decode[T], reader: Reader) -> Reading[T]:
    """The reading that goes on from a state: this worker's own, or one of all workers (`joined`). ValueError for another."""
    saved = checked(state)
    _refuse_other_reader(saved, reader)
    sampler = copy.copy(sampler)
    sampler.load_state_dict(saved["sampler"])
    reading = Reading(sampler, decode, reader, saved["begun"])
    if saved["worker"] is not None:
        reading.go_on(saved["shards"], saved["given"])
    return reading


def _refuse_other_reader(saved: Mapping[str, Any], reader: Reader) -> None:
    if saved["worker"] is None:
        return
    if (saved["worker"], saved["workers"]) != (reader.number, reader.of):
        raise ValueError(
            f"the state of worker {saved['worker']} of {saved['workers']} says nothing to worker {reader.number} of "
            f"{reader.of}: join the states of all workers, then any number of workers may go on"
        )
    if len(saved["given"]) > reader.mix:
        raise ValueError(
            f"mix = {reader.mix}, and in the state {len(saved['given'])} shards are open: join the states of all workers, "
            f"then any mix may go on"
        )


def joined(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state from those of all workers of a rank, from which any number of workers may go on. ValueError otherwise."""
    by_worker = {state["worker"]: state for state in map(checked, states)}
    if list(by_worker) == [None]:
        return dict(by_worker[None])
    listed = [by_worker[worker] for worker in sorted(worker for worker in by_worker if worker is not None)]
    if not listed or len(listed) != len(by_worker) or len(listed) != listed[0]["workers"]:
        raise ValueError(f"states of the workers {list(by_worker)}: joined are one of each worker of a rank")
    first = listed[0]
    if any(state[name] != first[name] for state in listed for name in ("sampler", "begun", "workers")):
        raise ValueError("states that began in different places are not of one moment of one run")
    done = [state["shards"] for state in listed]
    begun = {place: given for place, given in first["begun"] if place // len(done) >= done[place % len(done)]}
    for worker, state in enumerate(listed):
        for turn, given in enumerate(state["given"], state["shards"]):
            begun[worker + turn * len(done)] = given
    sampler = first["sampler"]
    if any(done):
        sampler = {**sampler, "done": [*sampler["done"], done]}
    left = [[_place_among_left(place, done), given] for place, given in sorted(begun.items()) if given]
    return {**first, "sampler": sampler, "begun": left, "worker": None, "workers": None, "shards": 0, "given": []}


def _place_among_left(place: int, done: list[int]) -> int:
    """The place of a key that is left, when those that were done have gone."""
    workers = len(done)
    before = (-(-(place - worker) // workers) for worker in range(workers))
    return place - sum(min(of_worker, max(had, 0)) for of_worker, had in zip(done, before, strict=True))


def checked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state itself; ValueError when it is none, or of another version."""
    if state.get("version") != VERSION or _PARTS.difference(state):
        raise ValueError(f"no state of a worker that is known here: allowed is version {VERSION}, whole")
    return state
