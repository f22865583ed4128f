"""The least that could have been fetched, against a search through everything, and the account that is kept of it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon import regret
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.regret import Account, least
from cachedaemon.regrets import MOMENTS, Regrets
from tests.unit.test_ledger import caps, entry
from tests.unit.test_plans import plan


def refs(keys: str) -> list[Ref]:
    return [Ref("s", key) for key in keys]


def fewest(uses: str, cap: int, here: frozenset[str]) -> int:
    """By trying every victim."""

    @cache
    def from_(index: int, content: frozenset[str]) -> int:
        if index == len(uses):
            return 0
        key = uses[index]
        if key in content:
            return from_(index + 1, content)
        if len(content) < cap:
            return 1 + from_(index + 1, content | {key})
        return 1 + min(from_(index + 1, content - {victim} | {key}) for victim in content)

    return from_(0, here)


@settings(max_examples=200, deadline=None)
@given(st.text("abcde", max_size=12), st.integers(1, 4), st.sets(st.sampled_from("abcde")))
def test_no_other_choice_of_victims_brings_less(uses: str, cap: int, here: set[str]) -> None:
    start = frozenset(sorted(here)[:cap])
    assert len(least(refs(uses), cap, set(refs("".join(start))))) == fewest(uses, cap, start)


def test_each_plan_is_held_against_all_uses_of_its_time() -> None:
    account = Account()
    account.begins["p"] = account.now(100.0, {*refs("a")})
    account.use(refs("ab"))
    account.begins["q"] = account.now(150.0, {*refs("ab")})
    account.use([*refs("c"), Ref("other", "x")])
    ended = account.end("p")
    assert ended is not None
    begin, uses = ended
    assert (begin.received, begin.here, uses) == (100.0, {*refs("a")}, [*refs("abc"), Ref("other", "x")])
    assert len(account.uses) == 2, "what no running plan saw is forgotten"
    account.use(refs("d"))
    ended = account.end("q")
    assert ended is not None
    assert ended[1] == [*refs("c"), Ref("other", "x"), *refs("d")]
    assert not account.uses
    assert account.end("q") is None


def test_the_ratio_is_of_the_sums() -> None:
    account = Account()
    assert account.ratio() is None
    account.add("s", 30.0, 20.0)
    account.add("s", 10.0, 20.0)
    account.add("t", 20.0, 10.0)
    assert account.ratio("s") == 1.0
    assert account.ratio("t") == 2.0
    assert account.ratio() == 1.2
    assert account.ratio("u") is None


def test_a_log_that_grows_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that goes back and forth for ever, or lives for weeks, costs bounded memory."""
    monkeypatch.setattr(regret, "MOST", 10)
    account = Account()
    account.begins["long"] = account.now(0.0, set())
    account.use(refs("abcdefgh"))
    account.begins["short"] = account.now(0.0, set())
    account.use(refs("ijkl"))
    assert account.end("long") is None, "it ends uncounted"
    ended = account.end("short")
    assert ended is not None
    assert ended[1] == refs("ijkl")


@pytest.mark.asyncio
async def test_shards_that_went_count_with_their_own_sizes() -> None:
    """Of shards of one byte and of a million, what each plan brought, and had to, is the same."""
    ledger, metrics = Ledger(caps(1)), Metrics("test")
    regrets, one = Regrets(ledger, metrics), plan("p")
    regrets.begin(one)
    for key, size in (("small", 1), ("large", 1_000_000)):
        ledger.clear()
        ledger.add(entry(key, 0.0, size))
        metrics.origin_bytes.labels("s").inc(size)
        regrets.use([Ref("s", key)])
    regrets.end(one)
    await regrets.reckoned()
    assert regrets.ratio("s") == 1.0


@pytest.mark.asyncio
async def test_what_another_source_brought_and_used_is_not_its_plans() -> None:
    ledger, metrics = Ledger(caps(4)), Metrics("test")
    regrets, one = Regrets(ledger, metrics), plan("p")
    ledger.add(entry("here", 0.0, 10))
    regrets.begin(one)
    ledger.add(entry("new", 0.0, 10))
    metrics.origin_bytes.labels("s").inc(10)
    metrics.origin_bytes.labels("other").inc(1000)
    regrets.use([Ref("s", "here"), Ref("other", "x"), Ref("other", "y"), Ref("s", "new")])
    regrets.end(one)
    await regrets.reckoned()
    assert regrets.ratio("s") == 1.0
    assert regrets.ratio("other") is None


@pytest.mark.asyncio
async def test_plans_that_begin_together_share_what_was_here() -> None:
    """A thousand plans beside a hundred thousand shards would keep it a thousand times."""
    regrets = Regrets(Ledger(caps(1)), Metrics("test"))
    plans = [plan(f"p{number}") for number in range(100)]
    for one in plans:
        regrets.begin(one)
    assert regrets.moments <= MOMENTS
    for one in plans:
        regrets.end(one)
    assert regrets.moments == 0
