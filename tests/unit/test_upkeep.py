"""What goes on beside the walk, as far as it needs no disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachedaemon.entries import Evict, Granted
from cachedaemon.model import Need
from cachedaemon.plans import Plans
from cachedaemon.policy import PATIENCE
from cachedaemon.upkeep import Upkeep
from tests.unit.test_ledger import MB, ROOMY, ask, caps, filled


class Notes:
    """A disk that last uses are written to."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    async def note_uses(self, uses: list[tuple[Any, str, float]]) -> None:
        self.noted += [name for _, name, _ in uses]


@pytest.mark.asyncio
async def test_the_order_hears_of_uses_however_many_they_are() -> None:
    """Many that were used since they came stand before the few that were not; these go, and none of those."""
    count, few = 4 * PATIENCE, 10
    ledger = filled(count, caps(count))
    hot = list(ledger.entries())[:-few]
    for one in hot:
        ledger.touch(one, float(2 * count))
    cache, notes = SimpleNamespace(ledger=ledger, shelf=SimpleNamespace(used={one.ref: one for one in hot})), Notes()
    upkeep = Upkeep(cast("Any", cache), cast("Any", notes), Plans(), cast("Any", None), lambda: 60.0)
    await upkeep.note_uses()
    assert len(notes.noted) == len(hot)
    assert not cache.shelf.used
    for number in range(few):
        verdict = ledger.reserve(flight := ask(ledger, f"new{number}"), Need(MB), ROOMY)
        assert isinstance(verdict, Evict)
        assert not set(verdict.victims) & set(hot)
        for victim in verdict.victims:
            ledger.trashed(victim)
        assert ledger.reserve(flight, Need(MB), ROOMY) == Granted()
