"""Shards as the source of an SPDL pipeline. Needs spdl (`spdl-core`); nothing else of the client does.

    source = ShardSource("imagenet", ShardSampler(keys, seed=0), decode, batch_size=256, mix=4, epochs=90)
    builder = PipelineBuilder().add_source(source)
    builder.pipe(source.read, concurrency=8, output_order="input").aggregate(Batches()).add_sink(4)
    for epoch in range(90):
        source.set_epoch(epoch)
        pipeline = builder.build(num_threads=8)
        with pipeline.auto_stop():
            for batch in pipeline:
                train(batch.samples)

What goes from stage to stage are parts of batches, with their shards leased, not single samples: each hand-over costs far
more than reading a sample in place. `docs/spdl.md` says how to resume.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spdl.pipeline.defs import Aggregator

from cachedaemon_client.aio import Plan
from cachedaemon_client.aio import ShardCache as AsyncCache
from cachedaemon_client.cache import ShardCache
from cachedaemon_client.errors import DaemonUnavailable, TooMany
from cachedaemon_client.reading import PATIENCE, Decode, Pick, Reader, Reading, checked, joined, resumed
from cachedaemon_client.sampler import ShardSampler
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Batch", "Batches", "Part", "Read", "ShardSource"]

T = TypeVar("T")


class ShardSource(Generic[T]):
    """One epoch's parts of batches, each time that it is iterated; then comes the next epoch. `read` is the stage for them.

    `decode(shard, member)` makes a sample, in a thread of the pipeline's. `mix` shards are open together, and their samples come mixed, as with the client's other loaders. At most `holds` are
    open at once, those of parts that are not read yet among them: 2 x `mix` else. `epochs` is how many there will be:
    beyond the last nothing is fetched ahead.
    """

    def __init__(  # noqa: PLR0913 - what a run is made of
        self,
        cache: ShardCache | str,
        sampler: ShardSampler,
        decode: Decode[T],
        *,
        batch_size: int,
        mix: int = 1,
        holds: int | None = None,
        epochs: int | None = None,
    ) -> None:
        if batch_size < 1 or mix < 1:
            raise ValueError(f"batch_size = {batch_size}, mix = {mix}: at least 1 each")
        self.holds = 2 * mix if holds is None else holds
        if self.holds < mix:
            raise ValueError(f"holds = {holds}: at least mix = {mix} shards are open at once")
        self.cache = ShardCache(cache) if isinstance(cache, str) else cache
        self.sampler = copy.copy(sampler)
        self.decode = decode
        self.batch_size = batch_size
        self.mix = mix
        self.epochs = epochs
        self._loaded: Mapping[str, Any] | None = None

    # ---- which epoch, and where in it

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. A place in this very epoch that was loaded stays; ValueError for an earlier one."""
        if self._loaded is not None:
            loaded: int = self._loaded["sampler"]["epoch"]
            if epoch < loaded:
                raise ValueError(
                    f"the loaded state is of epoch {loaded}, and set_epoch said {epoch}: begin with {loaded}"
                )
            self._loaded = self._loaded if epoch == loaded else None
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the next iteration begins. What was trained on is what a `Batch` says, since the source is ahead of it."""
        return self._reading().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state: a batch's, or what `state_of_loader` made of a DataLoader's."""
        self._loaded = checked(state)

    def _reading(self) -> Reading[T]:
        state, sampler = self._loaded, self.sampler
        epoch = sampler.epoch if state is None else state["sampler"]["epoch"]
        reader = Reader(mix=self.mix, further=self.epochs is None or epoch + 1 < self.epochs)
        if state is None:
            return Reading(sampler, self.decode, reader)
        return resumed(state, sampler, self.decode, reader)

    # ---- the parts

    async def __aiter__(self) -> AsyncIterator[Part[T]]:
        """The parts, in order. It ends when all have been read, and with the error of the first that could not be."""
        reading, room = self._reading(), _Room()
        async with (
            AsyncCache(self.cache.source, **self.cache.settings) as cache,
            _announced(cache, reading, self.holds),
        ):
            async with contextlib.aclosing(self._parts(cache, reading, room)) as parts:
                async for part in parts:
                    yield part
            await room.until_open(0)
        self._loaded = None
        self.sampler.set_epoch(reading.epoch + 1)

    async def _parts(self, cache: AsyncCache, reading: Reading[T], room: _Room) -> AsyncGenerator[Part[T], None]:
        number, missing = 0, self.batch_size
        while keys := reading.next_keys:
            await room.until_open(self.holds - len(keys))
            with await _opened(cache, keys, room) as group:
                picks = iter(await asyncio.to_thread(reading.picks, group.shards))
                while taken := list(islice(picks, missing)):
                    for pick in taken:
                        reading.give(pick)
                    missing = missing - len(taken) or self.batch_size
                    yield Part(group, taken, number, reading.state(), ends_batch=missing == self.batch_size)
                    room.refuse_failure()
                    number += 1

    async def read(self, part: Part[T]) -> Read[T]:
        """The stage that reads parts, each in a thread of the pipeline's.

        An error of `decode` ends the epoch: SPDL by itself would drop what failed and go on.
        """
        try:
            return Read(part, await asyncio.to_thread(part.decoded, self.decode))
        except Exception as cause:
            part.fail(cause)
            raise
        finally:
            part.close()


@contextlib.asynccontextmanager
async def _announced(cache: AsyncCache, reading: Reading[Any], holds: int) -> AsyncIterator[None]:
    """Have a plan in force; or to be, when a daemon is there again: what is local is read without one. So is all, where it is refused."""
    if not reading.next_keys:
        yield
        return
    plan = Plan(cache, reading.planned, holds)
    try:
        with contextlib.suppress(DaemonUnavailable):
            await plan.renew(min(cache.wait, PATIENCE))
        cache.start(plan)
    except TooMany as cause:
        plan.go_without(cause)
    try:
        yield
    finally:
        await plan.close()


async def _opened(cache: AsyncCache, keys: Sequence[str], room: _Room) -> _Group:
    shards: list[Shard] = []
    try:
        for key in keys:
            shards.append(await cache.open(key))  # noqa: PERF401 - those before one that fails are closed
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return _Group(shards, room)


class _Room:
    """How many shards one iteration has open, which may end in any thread; and what went wrong with one of its parts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._open = 0
        self._failure: Exception | None = None

    async def until_open(self, count: int) -> None:
        """Wait until no more than so many are open; raises what a part failed with."""
        self.refuse_failure()
        while self._open > count:
            self._changed.clear()
            await self._changed.wait()
            self.refuse_failure()

    def refuse_failure(self) -> None:
        """Raise what a part failed with. SPDL goes on without what failed, unless it is told otherwise."""
        if self._failure is not None:
            raise self._failure

    def take(self, count: int) -> None:
        """So many more are open."""
        self._open += count

    def give_back(self, count: int) -> None:
        """So many have been closed, in whatever thread."""
        with contextlib.suppress(RuntimeError):  # the pipeline has ended, and its loop with it
            self._loop.call_soon_threadsafe(self._note, -count)

    def fail(self, cause: Exception) -> Exception:
        """A part could not be read: without it the epoch is not whole. What went wrong first; called in the pipeline's loop."""
        self._failure = self._failure or cause
        self._changed.set()
        return self._failure

    def _note(self, count: int) -> None:
        self._open += count
        self._changed.set()


class _Group:
    """Shards that are open together, until the source and all parts of them have left."""

    def __init__(self, shards: list[Shard], room: _Room) -> None:
        self.shards = shards
        self.room = room
        self._users = 1
        self._lock = threading.RLock()  # the collector may drop a part anywhere
        room.take(len(shards))

    def join(self) -> None:
        """One more needs them."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """One needs them no more."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        for shard in self.shards:
            shard.close()
        self.room.give_back(len(self.shards))

    def __enter__(self) -> Self:
        """The group itself; the source leaves it with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """The source has no more parts of it."""
        self.leave()


class Part(Generic[T]):
    """A batch's samples of some shards, or as many as there are left in these: which ones, with the shards leased.

    The lease ends with `close`, or when nobody has the part any more.
    """

    def __init__(
        self, group: _Group, picks: Sequence[Pick], number: int, state: dict[str, Any], *, ends_batch: bool
    ) -> None:
        group.join()
        self._group: _Group | None = group
        self._room = group.room
        self._shards = group.shards
        self._picks = picks
        self.number = number
        """Number of the part in its iteration, from 0."""
        self.state = state
        """Where the epoch stands after it."""
        self.ends_batch = ends_batch

    def __len__(self) -> int:
        """How many samples it has."""
        return len(self._picks)

    def __iter__(self) -> Iterator[tuple[Shard, str]]:
        """Shard and member of each sample, in order."""
        for pick in self._picks:
            yield self._shards[pick.which], pick.member

    def decoded(self, decode: Decode[T]) -> list[T]:
        """What `decode(shard, member)` makes of each sample, in order."""
        return [decode(shard, member) for shard, member in self]

    def fail(self, cause: Exception) -> Exception:
        """It is lost to the epoch, which ends with this error, or with an earlier one, which comes back."""
        return self._room.fail(cause)

    def close(self) -> None:
        """Its shards are not needed any more."""
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    def __del__(self) -> None:
        """End the lease of a part that a pipeline which was stopped did not come to."""
        self.close()


@dataclass(frozen=True)
class Read(Generic[T]):
    """A part that was read: its samples, and what of the epoch it is."""

    part: Part[T]
    samples: list[T]


@dataclass(frozen=True)
class Batch(Generic[T]):
    """Samples, and `state`: where the epoch stands after them, as plain data, for `ShardSource.load_state_dict`."""

    samples: list[T]
    state: dict[str, Any]


class Batches(Aggregator, Generic[T]):
    """Puts read parts together to batches of the source's `batch_size`; an epoch's last one may be smaller.

    `aggregate(Batches(), drop_last=True)` leaves that out. Parts must come in order: another one ends the pipeline,
    with what went wrong before, or with a ValueError.
    """

    def __init__(self) -> None:
        self._samples: list[T] = []
        self._last: Part[T] | None = None

    def accumulate(self, item: Read[T]) -> Batch[T] | None:
        """The batch that this part ends; None when it ends none."""
        self._refuse_disorder(item.part)
        self._samples += item.samples
        self._last = item.part
        return self.flush() if item.part.ends_batch else None

    def _refuse_disorder(self, part: Part[T]) -> None:
        if part.number == 0:
            self._samples, self._last = [], None
        expected = 0 if self._last is None else self._last.number + 1
        if part.number != expected:
            cause = f'part {part.number} of the epoch came instead of {expected}: `read` needs output_order="input"'
            raise part.fail(ValueError(cause))

    def flush(self) -> Batch[T] | None:
        """The batch so far, at the end of an epoch; None when there is nothing in it."""
        samples, self._samples = self._samples, []
        return Batch(samples, joined([self._last.state])) if samples and self._last is not None else None
