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
    """In the middle of shards, without workers and with two, mixed and not; with another number of workers."""
    check(daemon, case(0, 4, mix=2, others=[0]), case(2, 5, mix=2, others=[0, 3]))


@pytest.mark.slow
def test_any_place_and_any_number_of_workers(daemon: Daemon) -> None:
    """From the first batch to the last; workers that outlive the epoch, and fewer shards than workers."""
    batches = -(-9 * MEMBERS // 5)
    check(
        daemon,
        *[case(0, after, others=[0, 1]) for after in (0, 1, batches)],
        *[case(0, after, mix=4) for after in range(batches)],
        case(1, 7, keep=True, others=[0, 4]),
        case(4, 1, others=[1]),
        case(4, 13, mix=3, keep=True, others=[2, 5, 12]),
        case(12, 6, others=[0, 4]),
        case(5, 4, shards=2, keep=True, others=[0, 3]),
    )
