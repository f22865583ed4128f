"""Epochs that are interrupted and gone on with: StatefulDataLoader's states, and those for other numbers of workers."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import readers
from tests.process.torch_shards import IMPORTS, KEYS, MARKS, MEMBERS, members, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.daemon import Daemon

pytestmark = [
    *MARKS,
    pytest.mark.skipif(importlib.util.find_spec("torchdata") is None, reason="torchdata is not installed: make torch"),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


RESUMING = (
    IMPORTS
    + """
import pickle
from torchdata.stateful_dataloader import StatefulDataLoader
from cachedaemon_client.torch import ShardDataset, MapDataset, ShardOrder, state_of_loader

def name(shard, member):
    return shard.key + "/" + member

def made(case, workers, kind=StatefulDataLoader):
    keep = {"persistent_workers": case["keep"]} if workers else {}
    data = ShardDataset(ShardCache("s"), ShardSampler(case["keys"], seed=7), name, mix=case["mix"])
    return data, kind(data, 5, num_workers=workers, collate_fn=list, **keep)

def whole(loader):
    return [sample for batch in loader for sample in batch]

def run(case):
    data, loader = made(case, case["workers"])
    data.set_epoch(1)
    whole_epoch, batches = whole(loader), iter(loader)
    seen = [sample for _ in range(case["after"]) for sample in next(batches)]
    saved = pickle.dumps(loader.state_dict())
    del batches, loader
    data, loader = made(case, case["workers"])
    loader.load_state_dict(pickle.loads(saved))
    data.set_epoch(1)
    rest = whole(loader)
    data.set_epoch(2)
    said = {"whole": whole_epoch, "seen": seen, "rest": rest, "next": whole(loader), "others": []}
    for workers in case["others"]:
        data, loader = made(case, workers, DataLoader)
        data.load_state_dict(json.loads(json.dumps(state_of_loader(pickle.loads(saved)))))
        said["others"].append(whole(loader))
        data.set_epoch(2)
        said["others"].append(whole(loader))
    return said

if __name__ == "__main__":
    for case in ARG:
        say(run(case))
"""
)


def expected(keys: list[str]) -> list[str]:
    """The names of all samples."""
    return sorted(f"{key}/{name}" for key in keys for name in members(KEYS.index(key)))


def case(workers: int, after: int, *, mix: int = 1, keep: bool = False, shards: int = 9, others: Any = ()) -> Any:
    return {"workers": workers, "after": after, "mix": mix, "keep": keep, "keys": KEYS[:shards], "others": others}


def check(daemon: Daemon, *cases: Any) -> None:
    """Each case goes on in the very order it would have had, and no number of workers loses or repeats a sample."""
    for told, said in zip(cases, readers.run(daemon, RESUMING, cases, seconds=170), strict=True):
        samples = expected(told["keys"])
        assert sorted(said["whole"]) == sorted(said["next"]) == samples
        assert said["whole"] != said["next"]
        assert said["seen"] == said["whole"][: len(said["seen"])]
        assert said["rest"] == said["whole"][len(said["seen"]) :]
        for rest, after in zip(said["others"][::2], said["others"][1::2], strict=True):
            assert sorted(said["seen"] + rest) == samples
            assert sorted(after) == samples


def test_an_interrupted_epoch_goes_on_where_it_was(daemon: Daemon) -> None:
    """In the middle of shards, whose samples are mixed; with another number of workers, too."""
    check(daemon, case(2, 5, mix=2, others=[0, 3]))


OTHERWISE = (
    RESUMING.partition("if __name__")[0]
    + """
from cachedaemon_client.sampler import joined as of_ranks

def over(keys):
    data, loader = made({"keys": keys, "mix": 1, "keep": False}, ARG["workers"])
    data.set_epoch(1)
    whole(loader)
    saved = loader.state_dict()
    data, loader = made({"keys": keys, "mix": 1, "keep": False}, ARG["workers"])
    loader.load_state_dict(saved)
    data.set_epoch(2)
    return whole(loader)

def by_index(keys):
    def made():
        data = MapDataset(ShardCache("s"), keys, name, counts=dict.fromkeys(keys, ARG["members"]))
        order = ShardOrder(data, ShardSampler(keys, seed=7))
        order.set_epoch(1)
        return StatefulDataLoader(data, 5, sampler=order, num_workers=ARG["workers"], collate_fn=list)
    loader = made()
    epoch, batches = whole(loader), iter(loader)
    seen = [sample for _ in range(4) for sample in next(batches)]
    saved = loader.state_dict()
    loader = made()
    loader.load_state_dict(saved)
    return [epoch, seen + whole(loader)]

def of_two_ranks(keys):
    states, seen = [], []
    for rank in range(2):
        data = ShardDataset(ShardCache("s"), ShardSampler(keys, seed=7, rank=rank, world_size=2), name)
        loader = StatefulDataLoader(data, ARG["members"], num_workers=0, collate_fn=list)
        batches = iter(loader)
        seen += [sample for _ in range(2) for sample in next(batches)]
        states.append(state_of_loader(loader.state_dict())["sampler"])
    sampler = ShardSampler(keys, seed=7)
    sampler.load_state_dict(of_ranks(states))
    return seen + whole(DataLoader(ShardDataset(ShardCache("s"), sampler, name), 5, collate_fn=list))

def refused(keys):
    data, loader = made({"keys": keys, "mix": 1, "keep": False}, 0)
    next(iter(loader))
    state, said = data.state_dict(), []
    state["sampler"]["epoch"] = 3
    for workers, before, after in ((0, 3, 2), (0, 5, None), (2, 3, 3)):
        data, loader = made({"keys": keys, "mix": 1, "keep": False}, workers, DataLoader)
        try:
            data.set_epoch(before)
            data.load_state_dict(state)
            if after is not None:
                data.set_epoch(after)
            whole(loader)
        except ValueError as error:
            said.append(str(error))
    return said

if __name__ == "__main__":
    say([over(ARG["keys"]), by_index(ARG["keys"]), of_two_ranks(ARG["keys"]), refused(ARG["keys"])])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_other_states(daemon: Daemon, workers: int) -> None:
    """One of a whole epoch, of samples by index, of several ranks; and those that do not fit."""
    arg = {"keys": KEYS, "workers": workers, "members": MEMBERS}
    ((over, (whole, in_two), ranks, refused),) = readers.run(daemon, OTHERWISE, arg, seconds=170)
    assert sorted(over) == sorted(ranks) == sorted(whole) == expected(KEYS)
    assert in_two == whole
    assert "of epoch 3, and set_epoch said 2" in refused[0]
    assert "in the middle of epoch 3, and set_epoch said 5" in refused[1]
    assert "worker 0 of 1 says nothing to worker" in refused[2]


@pytest.mark.slow
def test_any_place_and_any_number_of_workers(daemon: Daemon) -> None:
    """From the first batch to the last; workers that outlive the epoch, and fewer shards than workers."""
    batches = -(-9 * MEMBERS // 5)
    check(
        daemon,
        *[case(0, after, others=[0, 1]) for after in (0, 1, batches)],
        *[case(0, after, mix=4, others=[0]) for after in range(batches)],
        case(1, 7, keep=True, others=[0, 4]),
        case(4, 1, others=[1]),
        case(4, 13, mix=3, keep=True, others=[2, 5, 12]),
        case(12, 6, others=[0, 4]),
        case(5, 4, shards=2, keep=True, others=[0, 3]),
    )
