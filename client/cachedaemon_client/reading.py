"""One reader's way through its part of an epoch: what a loader of any framework gives its workers.

A reader is one of the workers that share a rank's keys, whole or by portions. It has a plan of its own, reads its shards in
their order, `mix` of them at a time, and knows at every moment what it has given out. A state of it goes on exactly there;
states of all workers together (`joined`) let any other number of workers go on.

What is dealt to workers are portions: the samples of a shard whose places in its order differ by a multiple of the number
of portions. Place number p is portion `p % portions` of key `p // portions`; a whole shard is the only portion of its own.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby, islice
from typing import Any, Generic, NamedTuple, TypeVar

from cachedaemon_client.cache import ShardCache
from cachedaemon_client.errors import DaemonUnavailable, TooMany
from cachedaemon_client.plan import Plan
from cachedaemon_client.sampler import ShardSampler, stream
from cachedaemon_client.shard import Shard

T = TypeVar("T")

Decode = Callable[[Shard, str], T]
"""Makes a sample of a member, by the shard and the member's name."""

PATIENCE = 5.0
"""Seconds that a plan waits for the daemon before reading begins without it."""
VERSION = 2
ALL = -1
"""Said for the number of samples given of a portion that is done, though earlier ones are not."""
_FIELDS = {"version", "sampler", "portions", "begun", "worker", "workers", "done", "given"}


@dataclass(frozen=True)
class Reader:
    """Which of a rank's workers reads, and how."""

    number: int = 0
    of: int = 1
    mix: int = 1
    """Shards that it has open at once."""
    further: bool = True
    """Whether another epoch follows, for which the daemon may fetch when this one's shards are here."""
    together: bool = False
    """Whether all workers read each shard, each a portion of its samples, instead of whole shards each."""

    @property
    def portions(self) -> int:
        """Into how many a shard is cut."""
        return max(self.of, 1) if self.together else 1


class Pick(NamedTuple):
    """The next sample: of the shards that are open at once, which one, and its member's name."""

    which: int
    member: str
    last: bool
    """Whether it is the last that is left of these shards."""


class Reading(Generic[T]):
    """The samples of one worker in one epoch, once; `state` says how far it has come.

    `begun` says which portions of the sampler's remaining keys, by place, were begun earlier, and how many of their samples
    were given then. `portions` is how many a shard has, where that is not the reader's to say.
    """

    def __init__(
        self,
        sampler: ShardSampler,
        decode: Decode[T],
        reader: Reader,
        begun: Iterable[tuple[int, int]] = (),
        portions: int | None = None,
    ) -> None:
        self._sampler = copy.copy(sampler)
        self.decode = decode
        self._reader = reader
        self._begun = dict(begun)
        self._portions = portions or reader.portions
        self._keys = sampler.remaining()
        dealt = range(reader.number, len(self._keys) * self._portions, max(reader.of, 1))
        self._places = [place for place in dealt if self._begun.get(place) != ALL]
        self._done = 0
        self._given = self._given_before()

    # ---- how far it is

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._sampler.epoch

    @property
    def left(self) -> list[str]:
        """Keys of which something is still to be given, or looked for."""
        return _in_turn(self._keys, self._places[self._done :], self._portions)

    @property
    def planned(self) -> list[str]:
        """What its plan is made of: the keys that are left, and those of the next epoch where there is one."""
        return self.left + self._later()

    @property
    def next_keys(self) -> list[str]:
        """The keys whose shards are open at once next, one for each portion; none at the end."""
        return [self._keys[place // self._portions] for place in self._next_places]

    @property
    def _next_places(self) -> list[int]:
        return self._places[self._done : self._done + len(self._given)]

    def state(self) -> dict[str, Any]:
        """What it has given out, as plain data."""
        return {
            "version": VERSION,
            "sampler": self._sampler.state_dict(),
            "portions": self._portions,
            "begun": [list(one) for one in self._begun.items()],
            "worker": self._reader.number,
            "workers": self._reader.of,
            "done": self._done,
            "given": list(self._given),
        }

    def go_on(self, done: int, given: Sequence[int]) -> None:
        """Go on where so many portions were done, and so many samples of each of those that were open then were given."""
        self._done = done
        self._given = list(given) or self._given_before()

    def _given_before(self) -> list[int]:
        """Samples of the next portions that were given before this reading began."""
        return [self._begun.get(place, 0) for place in self._places[self._done : self._done + self._reader.mix]]

    # ---- reading

    def samples(self, cache: ShardCache) -> Iterator[T]:
        """The samples from its place on. While they are read a plan is in force, and `mix` shards are open."""
        if self._given:
            with announced(cache, self.planned, self._reader.mix):
                while self._given:
                    yield from self._mixed(cache)

    def _later(self) -> list[str]:
        """What this worker reads in the next epoch."""
        if not self._reader.further:
            return []
        later = copy.copy(self._sampler)
        later.set_epoch(self.epoch + 1)
        return Reading(later, self.decode, self._reader).left

    def _mixed(self, cache: ShardCache) -> Iterator[T]:
        """What is left of the shards that are open at once next."""
        with contextlib.ExitStack() as leases:
            shards = [leases.enter_context(cache.open(key)) for key in self.next_keys]
            for pick in self.picks(shards):
                sample = self.decode(shards[pick.which], pick.member)
                self.give(pick)
                yield sample

    # ---- for whoever opens the shards itself

    def picks(self, shards: Sequence[Shard]) -> list[Pick]:
        """What is left of the shards of `next_keys`, in an order that only depends on the run, the epoch and the portions.

        Whoever takes them says so of each (`give`). Where nothing is left, these shards are done with this call.
        """
        places, given = self._next_places, list(self._given)
        orders = [self._order(shard, place % self._portions) for shard, place in zip(shards, places, strict=True)]
        turns = self._turns([shard.key for shard in shards], [len(order) for order in orders])
        found = []
        for left, which in zip(range(len(turns) - 1, -1, -1), turns, strict=True):
            found.append(Pick(which, shards[which].members[orders[which][given[which]]], not left))
            given[which] += 1
        if not turns:
            self._pass(len(places))
        return found

    def give(self, pick: Pick) -> None:
        """This pick, the next one, is given out."""
        if pick.last:
            self._pass(len(self._given))
        else:
            self._given[pick.which] += 1

    def _order(self, shard: Shard, portion: int) -> list[int]:
        """Which members a portion is, in its order. Who has one more than others changes from shard to shard."""
        order = self._sampler.samples(shard.key, len(shard.members))
        turn = stream(self._sampler.seed, self.epoch, "portions", shard.key).below(self._portions)
        return order[(portion + turn) % self._portions :: self._portions]

    def _turns(self, keys: list[str], counts: list[int]) -> list[int]:
        """Which shard each next sample is from; the first turns of each are those that were given."""
        turns = list(chain.from_iterable([which] * count for which, count in enumerate(counts)))
        if len(keys) > 1:
            turns = stream(self._sampler.seed, self.epoch, "mix", "\n".join(keys)).shuffled(turns)
        given = list(self._given)
        return [which for which in turns if not _taken(given, which)]

    def _pass(self, portions: int) -> None:
        self._done += portions
        self._given = self._given_before()


def announced(cache: ShardCache, keys: list[str], holds: int) -> Plan:
    """A plan in force, or to be: what is local is read without one."""
    return in_force(cache, Plan(cache, keys, holds))


def in_force(cache: ShardCache, plan: Plan) -> Plan:
    """The plan itself, in force; or to be, when a daemon is there again. One too many for its user is none: a `PlanWarning`."""
    try:
        with contextlib.suppress(DaemonUnavailable):
            plan.renew(min(cache.wait, PATIENCE))
        cache.start(plan)
    except TooMany as cause:
        plan.close()  # it may have been in force, with other keys
        plan.go_without(cause)
    return plan


def _in_turn(keys: Sequence[str], places: Iterable[int], portions: int) -> list[str]:
    """The keys of places; once where several portions of a shard follow each other."""
    return [keys[number] for number, _ in groupby(place // portions for place in places)]


def _taken(given: list[int], which: int) -> bool:
    """Whether this turn was had already; counted down."""
    given[which] -= 1
    return given[which] >= 0


def resumed(state: Mapping[str, Any], sampler: ShardSampler, decode: Decode[T], reader: Reader) -> Reading[T]:
    """The reading that goes on from a state: this worker's own, or one of all workers (`joined`). ValueError for another.

    Where shards were begun, the rest of the epoch stays cut into as many portions as they were.
    """
    saved = checked(state)
    _refuse_other_reader(saved, reader)
    sampler = copy.copy(sampler)
    sampler.load_state_dict(saved["sampler"])
    stays = saved["worker"] is not None or saved["begun"]
    reading = Reading(sampler, decode, reader, saved["begun"], saved["portions"] if stays else None)
    if saved["worker"] is not None:
        reading.go_on(saved["done"], saved["given"])
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
    if any(state[name] != first[name] for state in listed for name in ("sampler", "portions", "begun", "workers")):
        raise ValueError("states that began in different places are not of one moment of one run")
    return {**first, **_left_of(first, listed), "worker": None, "workers": None, "done": 0, "given": []}


def _left_of(first: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the sampler goes on, and what was begun after that.

    Of whole shards the sampler knows exactly which each worker has done. Of shards that workers read together it passes
    those that all have done; a portion that is done of a later one counts as begun, and given to the end.
    """
    portions, begun = first["portions"], dict(first["begun"])
    for state in states:
        places = (place for place in count(state["worker"], len(states)) if begun.get(place) != ALL)
        had = list(islice(places, state["done"] + len(state["given"])))
        begun.update(zip(had, [ALL] * state["done"] + list(state["given"]), strict=True))
    if portions == 1:
        shards = passed = [state["done"] for state in states]
    else:
        shards = [next(key for key in count() if not _is_done(begun, key, portions))]
        passed = [shards[0] * portions]
    left = {
        place: given for place, given in begun.items() if given and place // len(passed) >= passed[place % len(passed)]
    }
    sampler = {**first["sampler"], "done": [*first["sampler"]["done"], shards]} if any(shards) else first["sampler"]
    return {"sampler": sampler, "begun": [[_place_among_left(place, passed), left[place]] for place in sorted(left)]}


def _is_done(begun: Mapping[int, int], key: int, portions: int) -> bool:
    return all(begun.get(place) == ALL for place in range(key * portions, (key + 1) * portions))


def _place_among_left(place: int, done: list[int]) -> int:
    """The place of a portion that is left, when those that were done have gone."""
    workers = len(done)
    before = (-(-(place - worker) // workers) for worker in range(workers))
    return place - sum(min(of_worker, max(had, 0)) for of_worker, had in zip(done, before, strict=True))


def checked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state itself; ValueError when it is none, or of another version."""
    if state.get("version") != VERSION or _FIELDS.difference(state):
        raise ValueError(f"no state of a worker that is known here: allowed is version {VERSION}, whole")
    return state
