"""Keeping the account of regret while plans come, move and go; what the least would have been is reckoned in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from cachedaemon import garbage
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.plans import Plan
from cachedaemon.regret import Account, Begin, least

TOGETHER = 10.0
"""Seconds within which plans of one source count from the same moment: what is here then is kept once for all of them."""
MOMENTS = 16
"""Such moments that are kept at the most; plans that begin later count from the latest one."""


class Regrets:
    """See `regret`."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._received = metrics.origin_bytes
        self._account = Account()
        self._latest: dict[str, tuple[float, Begin]] = {}
        """Of each source, the latest moment that a plan counts from."""
        self._sizes: dict[Ref, int] = {}
        """Of all shards that were used while plans ran, and were here then."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """One is reckoned after the other: many threads at once would keep the interpreter from the loop."""

    def ratio(self, source: str | None = None) -> float | None:
        """Of a source, or of all; None as long as no plan has ended."""
        return self._account.ratio(source)

    def begin(self, plan: Plan) -> None:
        """A plan came into force."""
        self._account.begins[plan.id] = self._moment(plan.source)

    @property
    def moments(self) -> int:
        """How many moments the plans that run count from."""
        return len({id(begin) for begin in self._account.begins.values()})

    def _moment(self, source: str) -> Begin:
        now, (at, latest) = time.monotonic(), self._latest.get(source, (0.0, None))
        late = now - at > TOGETHER and self.moments < MOMENTS
        if latest is None or late or not self._account.knows(latest):
            latest = self._account.now(self._bytes(source), self._ledger.refs())
            self._latest[source] = (now, latest)
        return latest

    def _bytes(self, source: str) -> float:
        return float(self._received.labels(source)._value.get())  # noqa: SLF001 - the client library has no reading of its own

    def use(self, refs: Sequence[Ref]) -> None:
        """A plan has moved past these."""
        if not self._account.begins:
            return
        self._account.use(refs)
        for ref in refs:
            if (entry := self._ledger.get(ref)) is not None:
                self._sizes[ref] = entry.size

    def end(self, plan: Plan) -> None:
        """A plan has ended."""
        ended, sizes = self._account.end(plan.id), self._sizes
        if not self._account.begins:
            self._latest, self._sizes = {}, {}
        if ended is None or not ended[1]:
            return
        begin, uses = ended
        received = self._bytes(plan.source) - begin.received
        task = asyncio.create_task(self._reckon(plan.source, begin, uses, sizes, received), name=f"regret {plan.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reckon(
        self, source: str, begin: Begin, uses: list[Ref], sizes: Mapping[Ref, int], received: float
    ) -> None:
        cap = self._ledger.fits()
        async with self._turn:
            with garbage.paused():
                fewest = await asyncio.to_thread(_least_bytes, source, uses, cap, begin.here, sizes)
        self._account.add(source, received, fewest)

    async def reckoned(self) -> None:
        """Until all plans that have ended are in the account."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """What is not reckoned yet is not wanted any more."""
        for task in self._tasks:
            task.cancel()
        await self.reckoned()


def _least_bytes(source: str, uses: Sequence[Ref], cap: int, here: AbstractSet[Ref], sizes: Mapping[Ref, int]) -> float:
    """What MIN brings of a source. A shard that went before its use was told counts as large as the others on average."""
    brought = least([ref for ref in uses if ref.source == source], cap, here)
    known = [sizes[ref] for ref in brought if ref in sizes]
    return len(brought) * sum(known) / len(known) if known else 0.0
