"""Data sets for torch's DataLoader, and torchdata's StatefulDataLoader. Needs torch; nothing else of the client does.

    data = ShardDataset("imagenet", ShardSampler(keys, seed=0), decode)
    loader = DataLoader(data, batch_size=256, num_workers=8, persistent_workers=True)
    for epoch in range(90):
        data.set_epoch(epoch)
        for batch in loader:
            ...

`docs/dataloader.md` says when to take which, and how to resume.
"""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, TypeVar

from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from cachedaemon_client.cache import ShardCache
from cachedaemon_client.plan import Plan
from cachedaemon_client.reading import Decode, Reader, Reading, checked, in_force, joined, resumed
from cachedaemon_client.sampler import ShardSampler
from cachedaemon_client.shard import Shard
from cachedaemon_client.shared import Shared, Turn

__all__ = ["MapDataset", "ShardDataset", "ShardOrder", "raw", "state_of_loader"]

T_co = TypeVar("T_co", covariant=True)
UNTOLD = -1
SPLITS = ("samples", "shards")


def raw(shard: Shard, member: str) -> tuple[str, bytes]:
    """A sample that is not decoded: where it is from, and its bytes."""
    return f"{shard.key}/{member}", shard.read(member)


class ShardDataset(IterableDataset[T_co]):
    """Samples shard by shard, in the order of the sampler; each worker tells the daemon its plan.

    `decode(shard, member)` makes a sample, in the worker. `split` says what workers have of their own: with "samples" they
    all read each shard, each a part of its samples, so that few shards are open at once; with "shards" each reads whole
    shards, and as many are open as there are workers. `mix` shards are open at once in each worker, and their samples come
    mixed. `epochs` is how many there will be: beyond the last nothing is fetched ahead. It pickles and forks as it is.
    """

    def __init__(  # noqa: PLR0913 - what a loader of samples is made of
        self,
        cache: ShardCache | str,
        sampler: ShardSampler,
        decode: Decode[T_co],
        *,
        split: str = "samples",
        mix: int = 1,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        if split not in SPLITS:
            raise ValueError(f"split = {split!r}: allowed are {', '.join(map(repr, SPLITS))}")
        if mix < 1:
            raise ValueError(f"mix = {mix}: at least 1 shard is open at once")
        self.cache = ShardCache(cache) if isinstance(cache, str) else cache
        self.sampler = copy.copy(sampler)
        self.decode = decode
        self.split = split
        self.mix = mix
        self.epochs = epochs
        # Shared with workers: those that outlive an epoch hear of the next one too.
        self._told = Shared([UNTOLD])
        self._loaded: Mapping[str, Any] | None = None
        self._reading: Reading[T_co] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, before the loader is iterated. A place in this very epoch that was loaded stays.

        ValueError for an epoch before that of the loaded state: a later one means that the loaded one has been read.
        """
        if self._loaded is not None and epoch != self._loaded["sampler"]["epoch"]:
            self._leave(self._loaded["sampler"]["epoch"], epoch)
        self.sampler.set_epoch(epoch)
        self._told[0] = epoch

    def _leave(self, loaded: int, epoch: int) -> None:
        if epoch < loaded:
            raise ValueError(f"the loaded state is of epoch {loaded}, and set_epoch said {epoch}: begin with {loaded}")
        self._loaded = None

    def __iter__(self) -> Iterator[T_co]:
        """This worker's samples. What was loaded is gone on from once."""
        self._reading, self._loaded = self._next_reading(), None
        return self._reading.samples(self.cache)

    def _next_reading(self) -> Reading[T_co]:
        told = self._told[0]
        if self._loaded is None:
            return self._fresh(self.sampler.epoch if told == UNTOLD else told)
        reading = self._from(self._loaded)
        if told in {UNTOLD, reading.epoch}:
            return reading
        if reading.left:
            raise ValueError(f"the loaded state is in the middle of epoch {reading.epoch}, and set_epoch said {told}")
        return self._fresh(told)

    def _fresh(self, epoch: int) -> Reading[T_co]:
        self.sampler.set_epoch(epoch)
        return Reading(self.sampler, self.decode, self._reader(epoch))

    def _from(self, state: Mapping[str, Any]) -> Reading[T_co]:
        return resumed(state, self.sampler, self.decode, self._reader(state["sampler"]["epoch"]))

    def _reader(self, epoch: int) -> Reader:
        """Which of the DataLoader's workers this process is; the only one where it has none."""
        info = get_worker_info()
        number, of = (info.id, info.num_workers) if info else (0, 1)
        further = self.epochs is None or epoch + 1 < self.epochs
        return Reader(number, of, self.mix, further=further, together=self.split == "samples")

    def state_dict(self) -> dict[str, Any]:
        """What this worker has given out. StatefulDataLoader asks each; `state_of_loader` joins what it saves."""
        return (self._reading or self._next_reading()).state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state: this worker's own, or one that `state_of_loader` made, for all."""
        self._loaded, self._reading = checked(state), None


def state_of_loader(saved: Mapping[str, Any]) -> dict[str, Any]:
    """From what StatefulDataLoader saved of a ShardDataset, the state for `ShardDataset.load_state_dict`, for any workers."""
    return joined(_states_in(saved))


def _states_in(saved: Any) -> Iterator[Mapping[str, Any]]:
    """The data set's states, wherever they lie: the layout is torchdata's own."""
    if isinstance(saved, Mapping):
        if {"sampler", "begun", "worker"} <= set(saved):
            yield saved
        else:
            for value in saved.values():
                yield from _states_in(value)


class MapDataset(Dataset[T_co]):
    """Sample number i of all: for what wants `len` and an index. Use it with `ShardOrder`.

    `counts` says how many members each shard has; those it does not name are opened, which fetches them. Each worker keeps
    the last `holds` shards open, so the cap must have room for workers x `holds`.
    """

    def __init__(
        self,
        cache: ShardCache | str,
        keys: Iterable[str],
        decode: Decode[T_co],
        *,
        counts: Mapping[str, int] | None = None,
        holds: int = 2,
    ) -> None:
        if holds < 1:
            raise ValueError(f"holds = {holds}: at least 1 shard is open at once")
        self.cache = ShardCache(cache) if isinstance(cache, str) else cache
        self.keys = list(keys)
        self.decode = decode
        self.holds = holds
        known = counts or {}
        self._ends = list(accumulate(known[key] if key in known else self._count(key) for key in self.keys))
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        self._open: OrderedDict[str, Shard] = OrderedDict()
        self._turn: Turn | None = None
        self._plan: Plan | None = None
        """This process's, of the iteration `_planned`."""
        self._planned = 0  # as the turn's number when none was begun
        self._end = 0
        """How many of the plan's keys are that iteration's; the others are the next one's."""

    def _count(self, key: str) -> int:
        with self.cache.open(key) as shard:
            return len(shard.members)

    def __len__(self) -> int:
        """Samples of all shards."""
        return self._ends[-1] if self._ends else 0

    def span(self, key: str) -> range:
        """The indexes of a shard's samples."""
        number = self._numbers[key]
        return range(self._ends[number - 1] if number else 0, self._ends[number])

    def place(self, index: int) -> tuple[str, int]:
        """Shard and member of sample `index`. IndexError beyond the last."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}: allowed are 0 to {len(self) - 1}")
        key = self.keys[bisect_right(self._ends, index)]
        return key, index - self.span(key).start

    def __getitem__(self, index: int) -> T_co:
        """Sample `index`."""
        key, member = self.place(index)
        shard = self._shard(key)
        return self.decode(shard, shard.members[member])

    def _shard(self, key: str) -> Shard:
        """An open shard; a lease that a fork left to the parent is taken anew."""
        shard = self._open.pop(key, None)
        if shard is None or shard.closed:
            while len(self._open) >= self.holds:
                self._open.popitem(last=False)[1].close()
            self._come_to(key)
            shard = self.cache.open(key)
        self._open[key] = shard
        return shard

    # ---- the plan

    def follow(self, room: int = 0) -> Turn:
        """Have whoever reads plan ahead; the order, of so many keys or as many as there are, is what is said there.

        Called before workers are made, by the process that gives them indexes.
        """
        before = self._turn.room if self._turn is not None else len(self.keys)
        if self._turn is None or not self._turn.is_ours or before < room:
            self._turn, self._planned = Turn(max(before, room)), 0
        return self._turn

    def numbers(self, keys: Iterable[str]) -> list[int]:
        """The numbers of shards: their places in `keys`."""
        return [self._numbers[key] for key in keys]

    def _come_to(self, key: str) -> None:
        """This shard is the plan's next one. Others before it were other workers'; one that is opened again moves nothing."""
        if self._turn is not None and self._turn.number and (self._planned != self._turn.number or self._is_other):
            self._plan = self._announced(self._turn)
        if self._plan is not None:
            with contextlib.suppress(ValueError):
                self._plan.position = self._plan.keys.index(key, self._plan.position, self._end)

    @property
    def _is_other(self) -> bool:
        """Whether the plan is the process's that this one was forked from."""
        return self._plan is not None and self._plan.inert

    def _announced(self, turn: Turn) -> Plan:
        """A plan in force, the one of the iteration before with other keys where it is this process's."""
        self._planned = turn.number
        order, self._end = turn.order()
        keys = [self.keys[number] for number in order]
        if self._plan is None or self._is_other:
            return in_force(self.cache, Plan(self.cache, keys, self.holds))
        self._plan.begin(keys)
        return in_force(self.cache, self._plan)

    def end_plan(self) -> None:
        """End this process's plan, where it has one; it makes none until the next iteration."""
        if self._turn is not None:
            self._planned = self._turn.number
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()

    def close(self) -> None:
        """End the plan and the leases of this process."""
        self.end_plan()
        while self._open:
            self._open.popitem()[1].close()

    def __getstate__(self) -> dict[str, object]:
        """Leases and plan stay with the process that took them."""
        return self.__dict__ | {"_open": OrderedDict(), "_plan": None}


class ShardOrder(Sampler[int]):
    """The indexes of a MapDataset in a ShardSampler's order, shard by shard: random enough, and kind to the cache.

    Each worker that reads them has a plan of that order. `epochs` is how many there will be: in all but the last it goes on into the
    next one. StatefulDataLoader resumes it by counting, which opens no shard; say `set_epoch` before.
    """

    def __init__(self, data: MapDataset[Any], sampler: ShardSampler, *, epochs: int | None = None) -> None:
        self._data = data
        self._sampler = copy.copy(sampler)
        self._epochs = epochs
        data.follow(len(self._sampler))

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, before the loader is iterated."""
        self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """The indexes, in the epoch's order."""
        sampler = copy.copy(self._sampler)
        keys = sampler.remaining()
        turn = self._data.follow()
        number = turn.begin(self._data.numbers(keys), self._data.numbers(self._later(sampler.epoch + 1)))
        try:
            for key in keys:
                span = self._data.span(key)
                for member in sampler.samples(key, len(span)):
                    yield span[member]
        finally:
            if turn.number == number:  # not another iteration's, which has begun meanwhile
                self._data.end_plan()  # where there are no workers; a worker's ends with it, or goes on with the next one

    def _later(self, epoch: int) -> list[str]:
        """What is read in this epoch, where there is one."""
        if self._epochs is not None and epoch >= self._epochs:
            return []
        later = copy.copy(self._sampler)
        later.set_epoch(epoch)
        return later.remaining()

    def __len__(self) -> int:
        """How many there are in this epoch."""
        return sum(len(self._sampler.samples(key, len(self._data.span(key)))) for key in self._sampler.remaining())
