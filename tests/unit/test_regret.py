"""The least that could have been fetched, against a search through everything, and the account that is kept of it."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from cachedaemon.model import Ref
from cachedaemon.regret import Account, least


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
    assert len(least(refs(uses), cap, refs("".join(sorted(start))))) == fewest(uses, cap, start)


def test_each_plan_is_held_against_all_uses_of_its_time() -> None:
    account = Account()
    account.begin("p", 100.0, refs("a"))
    account.use(refs("ab"))
    account.begin("q", 150.0, refs("ab"))
    account.use([*refs("c"), Ref("other", "x")])
    ended = account.end("p", "s")
    assert ended is not None
    begin, uses = ended
    assert (begin.received, begin.here, uses) == (100.0, frozenset(refs("a")), refs("abc"))
    assert len(account.uses) == 2, "what no running plan saw is forgotten"
    account.use(refs("d"))
    ended = account.end("q", "s")
    assert ended is not None
    assert ended[1] == refs("cd")
    assert not account.uses
    assert account.end("q", "s") is None


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
