"""Where a run stands, as plain data for a checkpoint, and how the states of all ranks make one for any world size.

A state is what `ShardSampler.state_dict` gives: a dict of texts, numbers and lists, which JSON keeps. `run` is what a
resumed run must have in common with it, `before` the deals of this epoch in earlier worlds, and `done` what was read of
the part that was dealt to `rank` in the present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

VERSION = 1

State = Mapping[str, Any]


def joined(states: Iterable[State]) -> dict[str, Any]:
    """One state from those of all ranks, which any rank of a world of any size may load: what nobody has read is dealt anew.

    ValueError where they are not all ranks of one moment. With `shared=True` the ranks of a node must have come equally
    far: a shard that some of them have read, and others not, is neither done nor left.
    """
    listed = [checked(state) for state in states]
    if not listed:
        raise ValueError("no states to join: pass those of all ranks")
    first = listed[0]
    for name in ("run", "epoch", "before", "world_size", "local_world_size"):
        _refuse_differing(name, listed)
    by_rank = {state["rank"]: state["done"] for state in listed}
    if len(by_rank) < len(listed) or set(by_rank) != set(range(first["world_size"])):
        ranks = ", ".join(str(state["rank"]) for state in listed)
        raise ValueError(
            f"states of the ranks {ranks}: joined are one of each rank from 0 to {first['world_size'] - 1}"
        )
    done = [by_rank[rank] for rank in range(first["world_size"])]
    if first["run"]["shared"]:
        done = _of_nodes(done, first["local_world_size"])
    deal = {"world_size": first["world_size"], "local_world_size": first["local_world_size"], "done": done}
    return {**first, "rank": None, "done": [], "before": [*first["before"], deal]}


def in_step(state: State) -> dict[str, Any]:
    """One rank's state as that of all, for runs whose ranks have all done as many shards: where only one rank saves."""
    one = checked(state)
    if one["rank"] is None:
        return dict(one)
    return joined([{**one, "rank": rank} for rank in range(one["world_size"])])


def checked(state: State) -> State:
    """The state itself; ValueError when it is none, or of another version."""
    if state.get("version") != VERSION:
        raise ValueError(
            f"version {state.get('version')!r} is no sampler's state that is known here: allowed is {VERSION}"
        )
    if missing := {"run", "epoch", "before", "world_size", "local_world_size", "rank", "done"}.difference(state):
        raise ValueError(f"a sampler's state without {', '.join(sorted(missing))}")
    return state


def refuse_other_run(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """ValueError that names all that differs between the state's run and this one."""
    differing = [
        f"{name} ({saved.get(name)!r} in the state, {value!r} here)"
        for name, value in here.items()
        if saved.get(name) != value
    ]
    if differing:
        raise ValueError(f"this state is of another run, whose order was another: {'; '.join(differing)}")


def refuse_other_place(state: State, here: Mapping[str, int]) -> None:
    """ValueError where a state of one rank, in mid-epoch, is to be loaded by another, or into another world."""
    if state["rank"] is None or not (state["done"] or state["before"]):
        return
    differing = [
        f"{name} {state[name]} in the state, {value} here" for name, value in here.items() if state[name] != value
    ]
    if differing:
        raise ValueError(
            f"{'; '.join(differing)}: one rank's state in mid-epoch does not say what the others have read. Load "
            f"joined(states of all ranks), or in_step(state) where all ranks have done as many shards"
        )


def _refuse_differing(name: str, states: list[State]) -> None:
    for state in states:
        if state[name] != states[0][name]:
            told = f"rank {states[0]['rank']}: {states[0][name]!r}, rank {state['rank']}: {state[name]!r}"
            raise ValueError(f"states that differ in {name} are not of one moment of one run ({told})")


def _of_nodes(done: list[Any], local: int) -> list[Any]:
    """What each node has done, where its ranks share each shard."""
    for rank, one in enumerate(done):
        first = rank - rank % local
        if one != done[first]:
            raise ValueError(
                f"ranks {first} and {rank} of a node share shards and have not come equally far ({done[first]} and {one}): "
                f"join states that were saved when they had"
            )
    return done[::local]
