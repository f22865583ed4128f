"""Shards that come back too soon are told from those that have been away for long."""

from __future__ import annotations

from cachedaemon.ghosts import Ghosts
from cachedaemon.model import Ref


def ref(n: int) -> Ref:
    return Ref("s", str(n))


def reads(order: list[int], cap: int) -> int:
    """How many transfers of a cache that keeps the latest `cap` bring back what has gone too lately."""
    ghosts, here, found = Ghosts(), list[int](), 0
    for n in order:
        if n in here:
            here.remove(n)
        else:
            while len(here) >= cap:
                ghosts.went(ref(here.pop(0)), len(here))
            found += ghosts.came(ref(n))
        here.append(n)
    return found


def test_a_stream_that_is_read_once_has_none() -> None:
    assert reads(list(range(1000)), cap=10) == 0


def test_a_loop_that_twice_the_cap_would_hold_comes_back_each_time() -> None:
    assert reads(list(range(19)) * 10, cap=10) == 19 * 9


def test_a_loop_that_twice_the_cap_would_not_hold_either_has_none() -> None:
    assert reads(list(range(30)) * 10, cap=10) == 0


def test_who_has_come_back_is_no_ghost_any_more() -> None:
    ghosts = Ghosts()
    ghosts.went(ref(1), 5)
    assert ghosts.came(ref(1))
    assert not ghosts.came(ref(1))


def test_a_cache_of_one_shard_has_a_ghost() -> None:
    ghosts = Ghosts()
    ghosts.went(ref(1), 0)
    ghosts.went(ref(2), 0)
    assert [ghosts.came(ref(n)) for n in (1, 2)] == [False, True]
