"""Keeping the account of regret while plans come, move and go; what the least would have been is reckoned in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.plans import Plan
from cachedaemon.regret import Account, least

MOST = 2_000_000
"""Uses of one plan's time that are reckoned with at the most: beyond that it ends uncounted."""


class Regrets:
    """See `regret`."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._received = metrics.origin_bytes
        self._account = Account()
        self._tasks: set[asyncio.Task[None]] = set()

    def ratio(self, source: str | None = None) -> float | None:
        """Of a source, or of all; None as long as no plan has ended."""
        return self._account.ratio(source)

    def begin(self, plan: Plan) -> None:
        """A plan came into force."""
        here = [entry.ref for entry in self._ledger.entries()]
        self._account.begin(plan.id, self._bytes(plan.source), here)

    def _bytes(self, source: str) -> float:
        return float(self._received.labels(source)._value.get())  # noqa: SLF001 - the client library has no reading of its own

    def use(self, refs: Sequence[Ref]) -> None:
        """A plan has moved past these."""
        if self._account.begins:
            self._account.use(refs)

    def end(self, plan: Plan) -> None:
        """A plan has ended."""
        ended = self._account.end(plan.id, plan.source)
        if ended is None or not ended[1] or len(ended[1]) > MOST:
            return
        begin, uses = ended
        here = [ref for ref in begin.here if ref.source == plan.source]
        sizes = {entry.ref: entry.size for entry in self._ledger.entries()}
        received = self._bytes(plan.source) - begin.received
        task = asyncio.create_task(self._reckon(plan.source, uses, here, sizes, received), name=f"regret {plan.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reckon(
        self, source: str, uses: list[Ref], here: list[Ref], sizes: dict[Ref, int], received: float
    ) -> None:
        """A shard that is not here any more counts as large as the others are on average."""
        brought = await asyncio.to_thread(least, uses, self._ledger.fits(), here)
        usual = sum(sizes.values()) / len(sizes) if sizes else 0.0
        self._account.add(source, received, sum(sizes.get(ref, usual) for ref in brought))

    async def close(self) -> None:
        """What is not reckoned yet is not wanted any more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
