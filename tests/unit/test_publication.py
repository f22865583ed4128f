"""The last step of a flight, as far as it needs no disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachedaemon.background import Background
from cachedaemon.entries import Entry
from cachedaemon.errors import Changed
from cachedaemon.metrics import Metrics
from cachedaemon.model import Need
from cachedaemon.publication import Publication
from tests.unit.test_ledger import MB, ROOMY, ask, caps, filled, keys


@pytest.mark.asyncio
async def test_a_version_that_is_chosen_to_go_while_we_lock_it_is_not_kept_by_our_own_lock() -> None:
    ledger, background = filled(1, caps(1)), Background()
    flight, let_go = ask(ledger, "old0"), []
    flight.replaces = True

    async def hold(_: object, entry: Entry) -> str:
        assert keys(ledger.reserve(ask(ledger, "new"), Need(MB), ROOMY)) == [entry.ref.key]
        return "our lock"

    async def lets_go(held: str) -> None:
        let_go.append(held)

    others: Any = SimpleNamespace(hold=hold, let_go=lets_go)
    publication = Publication(
        ledger=ledger,
        store=others,
        shelf=others,
        grace=others,
        trash=others,
        eviction=others,
        metrics=Metrics("test"),
        events=others,
        background=background,
    )
    with pytest.raises(Changed):
        await publication.still(flight, cast("Any", None))
    await background.ended()
    assert let_go == ["our lock"]
