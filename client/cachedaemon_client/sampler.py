"""Which shards a rank reads in an epoch, and in which order: known beforehand, and the same everywhere.

    sampler = ShardSampler(keys, seed=0, rank=rank, world_size=world_size)
    for epoch in range(sampler.epoch, 90):
        sampler.set_epoch(epoch)
        with cache.plan(sampler.upcoming(1000)):
            for key in sampler:
                ...

`docs/samplers.md` has an example of everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from cachedaemon_client.sampler_deal import PARTITIONS, Epoch, Layout, left_of
from cachedaemon_client.sampler_keys import ByKey, Shards
from cachedaemon_client.sampler_state import (
    VERSION,
    State,
    checked,
    in_step,
    joined,
    refuse_other_place,
    refuse_other_run,
)
from cachedaemon_client.sampler_streams import Stream, sample_order, stream

__all__ = ["ShardSampler", "Stream", "in_step", "joined", "sample_order", "stream", "worker_slice"]


def worker_slice(keys: Sequence[str], worker: int, workers: int) -> list[str]:
    """What worker number `worker` of `workers` reads of a rank's keys; all of them where `workers` is 0 or 1.

    Together the workers read each key once. Where there are fewer keys than workers, the last workers get none.
    """
    if not 0 <= worker < max(workers, 1):
        raise ValueError(f"worker = {worker}: allowed are 0 to {max(workers, 1) - 1}, with {workers} workers")
    return list(keys[worker :: max(workers, 1)])


@dataclass(frozen=True)
class _Part:
    """What is dealt to one rank."""

    keys: list[str]
    dropped: list[str]
    repeated: list[str]


class ShardSampler:
    """The keys of one rank, epoch after epoch. Iterating it goes on from its place; at an epoch's end, the next begins.

    `partition`: with "uneven" each shard comes once an epoch, and some ranks have one more than others; "drop" leaves
    out, and "pad" repeats, as few as make all ranks alike, others each epoch (`dropped`, `repeated`). `shared`: the ranks
    of a node all read every shard of the node, and share its samples (`samples`). `locality="node"`: each node has the
    same shards in every epoch. `strata` gives each key's class, which then come in proportion; `weights` how often each
    comes an epoch, on average. ValueError for what cannot be.
    """

    def __init__(  # noqa: PLR0913 - what an order depends on
        self,
        keys: Iterable[str],
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        local_world_size: int = 1,
        shuffle: bool = True,
        partition: str = "uneven",
        shared: bool = False,
        locality: str | None = None,
        strata: ByKey[Hashable] | None = None,
        weights: ByKey[float] | None = None,
    ) -> None:
        _refuse_other_than("partition", partition, PARTITIONS)
        _refuse_other_than("locality", locality, (None, "node"))
        self.seed = index(seed)
        self.rank, self.world_size, self.local_world_size = index(rank), index(world_size), index(local_world_size)
        _refuse_world(self.rank, self.world_size, self.local_world_size)
        self._partition = partition
        self._shared = shared
        self._locality = locality
        self._shards = Shards(keys, seed=self.seed, shuffle=shuffle, strata=strata, weights=weights)
        self._refuse_too_few()
        self._known: dict[int, _Part] = {}
        self._begin(0)

    # ---- the epoch, and the place in it

    @property
    def epoch(self) -> int:
        """The number of the epoch that is being read, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. For the one that is being read already, this changes nothing: a resumed place stays."""
        if index(epoch) < 0:
            raise ValueError(f"epoch = {epoch}: epochs are numbered from 0")
        if index(epoch) != self._epoch:
            self._begin(index(epoch))

    def _begin(self, epoch: int, before: Iterable[State] = (), done: Iterable[Sequence[int]] = ()) -> None:
        self._epoch = epoch
        self._before = list(before)
        self._done = [list(run) for run in done]
        self._place = 0
        self._known = {number: part for number, part in self._known.items() if number >= epoch}
        self._rejoined: _Part | None = None
        self._left: list[str] | None = None

    def remaining(self) -> list[str]:
        """This rank's keys from its place to the end of the epoch."""
        return self._rest[self._place :]

    @property
    def _rest(self) -> list[str]:
        """This rank's keys from where this run began in the epoch."""
        if self._left is None:
            keys = self._part.keys
            self._left = [keys[place] for place in left_of(range(len(keys)), self._done)]
        return self._left

    def __iter__(self) -> Iterator[str]:
        """The keys from the place on. A key counts as done when it has been given out; after the last, the next epoch begins."""
        epoch = self._epoch
        while self._epoch == epoch and self._place < len(self._rest):
            self._place += 1
            yield self._rest[self._place - 1]
        if self._epoch == epoch:
            self._begin(epoch + 1)

    def __len__(self) -> int:
        """Keys of this rank in this epoch; after its state was joined in mid-epoch, those dealt to it since."""
        return len(self._part.keys)

    def upcoming(self, count: int) -> list[str]:
        """The next `count` keys of this rank from its place on, over the end of the epoch: what a plan is made of.

        They are fewer only where a coming epoch has none for this rank.
        """
        if count < 0:
            raise ValueError(f"count = {count}: at least 0")
        keys = self._rest[self._place : self._place + count]
        epoch = self._epoch
        while len(keys) < count:
            epoch += 1
            more = self._part_of(epoch).keys
            if not more:
                break
            keys += more[: count - len(keys)]
        return keys

    # ---- what was dealt

    @property
    def dropped(self) -> list[str]:
        """Keys that no rank reads in this epoch, with `partition="drop"`."""
        return list(self._part.dropped)

    @property
    def repeated(self) -> list[str]:
        """Keys that come once more than they should in this epoch, on one rank or another, with `partition="pad"`."""
        return list(self._part.repeated)

    @property
    def _part(self) -> _Part:
        if not self._before:
            return self._part_of(self._epoch)
        if self._rejoined is None:
            self._rejoined = self._dealt(self._epoch, self._before)
        return self._rejoined

    def _part_of(self, number: int) -> _Part:
        """This rank's part of an epoch that is read in this world from its beginning."""
        if number not in self._known:
            self._known[number] = self._dealt(number)
        return self._known[number]

    def _dealt(self, number: int, before: Iterable[State] = ()) -> _Part:
        epoch = Epoch(self._shards, number, self._partition)
        for earlier in before:
            epoch.strike(self._layout(earlier["world_size"], earlier["local_world_size"]), earlier["done"])
        deal = epoch.deal(self._layout(self.world_size, self.local_world_size))
        mine = epoch.arranged(deal, self.rank // self.local_world_size if self._shared else self.rank)
        return _Part(*map(epoch.keys_of, (mine, deal.dropped, deal.repeated)))

    def _layout(self, world_size: int, local_world_size: int) -> Layout:
        readers = 1 if self._shared else local_world_size
        return Layout(world_size // local_world_size, readers, self._locality == "node")

    def _refuse_too_few(self) -> None:
        parts = self._layout(self.world_size, self.local_world_size).parts
        if self._partition == "drop" and self._shards.least < parts:
            raise ValueError(
                f"partition = 'drop' with {self._shards.least} shards for {parts} readers would leave out all of them: "
                f"allowed are 'pad' and 'uneven', or fewer ranks"
            )

    # ---- samples

    def samples(self, key: str, count: int, epoch: int | None = None) -> list[int]:
        """Indexes of this rank's samples of a shard that has `count`, in the order of `epoch`, which is else that being read.

        All of them; with `shared`, those that no other rank of the node has. Their numbers then differ by one at most, and
        who has one more changes from shard to shard.
        """
        number = self._epoch if epoch is None else epoch
        order = sample_order(self.seed, number, key, count) if self._shards.shuffle else list(range(count))
        if not self._shared:
            return order
        turn = stream(self.seed, number, "shares", key).below(self.local_world_size)
        return order[(self.rank + turn) % self.local_world_size :: self.local_world_size]

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands, as plain data: the keys that it was given count as done."""
        return self.state_of([])

    def state_of(self, done: Sequence[int]) -> dict[str, Any]:
        """The state when the workers that share `remaining` by `worker_slice` have done so many keys each, from the first on.

        For whoever gives keys out long before they are read. Any number of workers may go on from it.
        """
        for worker, one in enumerate(done):
            have = len(worker_slice(self.remaining(), worker, len(done)))
            if not 0 <= one <= have:
                raise ValueError(f"done: {one} keys of worker {worker} of {len(done)}, which has {have}")
        runs = [*self._done, [self._place], list(map(index, done))]
        return {
            "version": VERSION,
            "run": self._run,
            "epoch": self._epoch,
            "before": list(self._before),
            "world_size": self.world_size,
            "local_world_size": self.local_world_size,
            "rank": self.rank,
            "done": _merged([run for run in runs if any(run)]),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a state. ValueError where it is another run's, and says in what, or does not say enough for this rank.

        A rank may load its own, and any rank one at the beginning of an epoch, or one made by `joined` or `in_step`.
        """
        saved = checked(state)
        refuse_other_run(saved["run"], self._run)
        here = {"world_size": self.world_size, "local_world_size": self.local_world_size, "rank": self.rank}
        refuse_other_place(saved, here)
        self._begin(saved["epoch"], saved["before"], saved["done"])

    @property
    def _run(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self._shards.shuffle,
            "partition": self._partition,
            "shared": self._shared,
            "locality": self._locality,
            **self._shards.described,
        }

    def __repr__(self) -> str:
        """For people."""
        return f"<ShardSampler rank {self.rank} of {self.world_size}, epoch {self._epoch}, {self._place} of {len(self._rest)}>"


def _merged(runs: list[list[int]]) -> list[list[int]]:
    """Runs of one worker each, one after the other, are one run."""
    merged: list[list[int]] = []
    for run in runs:
        if merged and len(merged[-1]) == len(run) == 1:
            merged[-1] = [merged[-1][0] + run[0]]
        else:
            merged.append(run)
    return merged


def _refuse_other_than(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}: allowed are {', '.join(map(repr, allowed))}")


def _refuse_world(rank: int, world_size: int, local_world_size: int) -> None:
    if world_size < 1:
        raise ValueError(f"world_size = {world_size}: at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank = {rank}: allowed are 0 to {world_size - 1}, with world_size = {world_size}")
    if local_world_size < 1 or world_size % local_world_size:
        raise ValueError(f"local_world_size = {local_world_size}: it has to divide world_size = {world_size}")
