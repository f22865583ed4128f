"""The plan of the map-style data set: it follows the workers of a real DataLoader, and ends with their epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes import packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until
from tests.process import torch_shards
from tests.process.torch_shards import IMPORTS, MARKS, MEMBERS, members

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [*MARKS, pytest.mark.slow]

KEYS = [f"images-{number}.zip" for number in range(24)]
ROOM = 8
READING = (
    IMPORTS
    + """
def name(shard, member):
    return shard.key + "/" + member

def plans(cache):
    return [plan["position"] for plan in cache.status()["plans"]]

if __name__ == "__main__":
    cache = ShardCache("s")
    data = MapDataset(cache, ARG["keys"], name, counts=dict.fromkeys(ARG["keys"], ARG["members"]))
    order = ShardOrder(data, ShardSampler(ARG["keys"], seed=3), epochs=2)
    keep = {"persistent_workers": ARG["keep"], "multiprocessing_context": ARG["how"]} if ARG["workers"] else {}
    loader = DataLoader(data, ARG["batch"], sampler=order, num_workers=ARG["workers"], collate_fn=list, **keep)
    for epoch in range(2):
        order.set_epoch(epoch)
        samples, positions = [], []
        for number, batch in enumerate(loader):
            samples += batch
            positions.append(plans(cache))
        say({"samples": samples, "positions": positions})
        hear()
    order.set_epoch(0)
    batches = iter(loader)
    next(batches)
    say({"broken off": len(plans(cache))})
    del batches, loader
    say("left")
    hear()
"""
)


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number, key in enumerate(KEYS):
            one.put(key, data=packing.zip_bytes(members(number)), latency=0.05)
        yield one


@pytest.mark.parametrize(
    ("workers", "keep", "batch", "how"),
    [
        pytest.param(0, False, 4, "fork", id="in the process"),
        pytest.param(1, False, 4, "fork", id="one"),
        pytest.param(4, False, 4, "fork", id="four"),
        pytest.param(4, True, 4, "fork", id="four that last"),
        pytest.param(2, True, 30, "fork", id="batches over shards"),
        pytest.param(4, False, 100, "fork", id="fewer batches than workers"),
        pytest.param(2, False, 4, "spawn", id="spawned"),
        pytest.param(2, True, 4, "forkserver", id="of a server, that last"),
    ],
)
def test_a_plan_follows_the_workers(origin: Origin, *, workers: int, keep: bool, batch: int, how: str) -> None:
    """Each sample once, and hardly a shard fetched twice in an epoch though a third of them fit; the plans end with their readers."""
    arg = {"keys": KEYS, "members": MEMBERS, "workers": workers, "keep": keep, "batch": batch, "how": how}
    readers_of = min(max(1, workers), -(-len(KEYS) * MEMBERS // batch))
    apart = 2 * ROOM if batch > len(KEYS) else 0  # workers that are far apart in one order need some shards twice
    with (
        Daemon({"s": origin.url}, max_shards=ROOM, grace="50ms") as daemon,
        readers.Reader(daemon, READING, arg) as reader,
    ):
        for epoch in range(2):
            said = reader.line(120)
            assert len(said["samples"]) == len(set(said["samples"])) == len(KEYS) * MEMBERS
            assert max(map(len, said["positions"])) == readers_of, "each reader has one"
            if batch < MEMBERS:
                assert max(said["positions"][-1]) >= len(KEYS) - 3, "it moves; the last word may be on its way"
            if not keep:
                until(lambda: not daemon.status()["plans"], 10, "the end of the plans with their epoch")
            if epoch == 0:
                assert gets(origin) <= len(KEYS) + 2 * ROOM + apart, "this epoch's, and the first of the next"
            reader.tell()
        assert gets(origin) <= 2 * len(KEYS) + apart
        assert reader.line(60)["broken off"] >= 1
        assert reader.line(60) == "left"
        until(lambda: not daemon.status()["plans"], 10, "the end of the plans of an epoch that was left")
        reader.tell()
        assert reader.wait(30) == 0, reader.errors


def test_a_killed_trainer_takes_it_along_and_a_restart_of_the_daemon_does_not(origin: Origin) -> None:
    """A plan is made again where the daemon has forgotten it."""
    arg = {"keys": KEYS, "members": MEMBERS, "workers": 2, "keep": True, "batch": 4, "how": "fork"}
    with (
        Daemon({"s": origin.url}, max_shards=ROOM, grace="50ms") as daemon,
        readers.Reader(daemon, READING, arg) as reader,
    ):
        assert len(reader.line(120)["samples"]) == len(KEYS) * MEMBERS
        assert len(daemon.status()["plans"]) == 2
        daemon.stop()
        daemon.start()
        reader.tell()
        said = reader.line(120)
        assert len(set(said["samples"])) == len(KEYS) * MEMBERS
        assert max(map(len, said["positions"])) == 2
        reader.tell()
        assert reader.line(60)["broken off"] == 2
        reader.kill_all()
        until(lambda: not daemon.status()["plans"], 10)


ITERATING = (
    IMPORTS
    + """
import copy, pickle
from tests.fakes.waiting import until

def name(shard, member):
    return shard.key + "/" + member

if __name__ == "__main__":
    cache = ShardCache("s")
    plans = lambda: len(cache.status()["plans"])
    ended = lambda: until(lambda: not plans(), 10, "the end of plans") and plans()  # which a copy's own connection tells
    keys, counts = ARG["keys"], dict.fromkeys(ARG["keys"], ARG["members"])
    data = MapDataset(cache, keys, name, counts=counts)
    order = ShardOrder(data, ShardSampler(keys, seed=3), epochs=1)

    first, second = iter(order), iter(order)
    before = data[next(first)], plans(), data[next(second)], plans()
    first.close()
    say(before[1::2] + (plans(),))
    read = [data[index] for index in second]
    say([1 + len(read), ended()])

    for copied in copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both)):
        other, its = copied((data, order))
        indexes = iter(its)
        other[next(indexes)]
        say([plans(), 1 + len([other[index] for index in indexes]), ended()])
        other.close()

    third = iter(order)
    data[next(third)]
    begun = data._turn.number
    child = os.fork()
    if not child:
        fourth = iter(order)
        data[next(fourth)]
        os._exit(0 if plans() == 2 and not data._plan.inert else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    say([status, data._turn.number - begun, len([data[index] for index in third]) + 1, ended()])

    data.close()
    often = ShardOrder(data, ShardSampler(keys, seed=3, weights=dict.fromkeys(keys, 5.0)), epochs=1)
    indexes = iter(often)
    data[next(indexes)]
    say([len(data._plan), data._end])
    indexes.close()
    data.close()
    cache.close()
"""
)


def test_iterations_and_copies_have_plans_of_their_own() -> None:
    """One that was left ends no other one's; a rank that was forked with them begins no iteration of its parent's."""
    all_of_them = len(torch_shards.KEYS) * MEMBERS
    with torch_shards.serving() as daemon:
        said = readers.run(daemon, ITERATING, {"keys": torch_shards.KEYS, "members": MEMBERS}, seconds=120)
    assert said == [
        [1, 1, 1],
        [all_of_them, 0],
        [1, all_of_them, 0],
        [1, all_of_them, 0],
        [0, 0, all_of_them, 0],
        [5 * len(torch_shards.KEYS)] * 2,
    ]


def gets(origin: Origin) -> int:
    return sum(origin[key].gets for key in KEYS)
