"""Shards of the cache in WebDataset's own pipelines, with torch's real DataLoader."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import disk, packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: make torch"),
    pytest.mark.skipif(importlib.util.find_spec("webdataset") is None, reason="webdataset is not installed"),
]
SAMPLES = 6
KEYS = [f"train-{number}.tar" for number in range(7)]


def members(number: int) -> dict[str, bytes]:
    """A shard's files, two a sample."""
    images = packing.image_like(SAMPLES, number, 3000).values()
    pairs = [(f"{number}-{place:03}", image) for place, image in enumerate(images)]
    return {f"{key}.{end}": body for key, image in pairs for end, body in (("jpg", image), ("cls", key.encode()))}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One with room for fewer shards than there are, but for as many as any of these tests has workers."""
    with Origin() as origin:
        for number, key in enumerate(KEYS):
            origin.put(key, data=packing.tar_bytes(members(number)))
        with Daemon({"s": origin.url}, max_shards=5) as running:
            yield running


IMPORTS = f"""
sys.path.append({str(readers.ROOT / "examples")!r})
import warnings, zlib
warnings.filterwarnings("ignore", "(Failed to initialize NumPy|This DataLoader will create)")
from webdataset_loader import *
DataLoader = torch.utils.data.DataLoader

def row(sample):
    return [sample["cls"].decode(), zlib.crc32(sample["jpg"])]
"""
EPOCHS = (
    IMPORTS
    + """
def read(keys, how):
    with ShardCache("s") as cache:
        return [[row(sample) for batch in batches for sample in batch] for batches in epochs(cache, keys, batch_size=4, **how)]

if __name__ == "__main__":
    for keys, how in ARG:
        say(read(keys, how))
"""
)


def expected(count: int) -> list[list[Any]]:
    """Each sample of the first shards: name and checksum."""
    import zlib

    found = []
    for number in range(count):
        files = members(number)
        names = [name.removesuffix(".jpg") for name in files if name.endswith(".jpg")]
        found += [[name, zlib.crc32(files[f"{name}.jpg"])] for name in names]
    return sorted(found)


def shards_of(epoch: list[list[Any]]) -> list[str]:
    """The shards in their order, for one that was read without workers."""
    return list(dict.fromkeys(name.partition("-")[0] for name, _ in epoch))


def test_each_sample_once_an_epoch(daemon: Daemon) -> None:
    """With no workers and several, fewer shards than workers, both of WebDataset's classes, and workers that stay."""
    cases: list[tuple[int, dict[str, Any]]] = [
        (7, {"num_workers": 0}),
        (7, {"num_workers": 0, "style": "fluid"}),
        (3, {"num_workers": 4, "persistent_workers": True}),
    ]
    found = readers.run(daemon, EPOCHS, [(KEYS[:count], how) for count, how in cases], seconds=120)
    for (count, _), both in zip(cases, found, strict=True):
        assert [sorted(epoch) for epoch in both] == [expected(count)] * 2
    assert found[0] == found[1], "both classes have the sampler's order"
    assert shards_of(found[0][0]) != shards_of(found[0][1]), "an order of its own each epoch"


@pytest.mark.slow
def test_each_sample_once_with_any_number_of_workers_and_ranks(daemon: Daemon) -> None:
    """With one worker, as many as the cap has room for, one shard; nothing twice between ranks."""
    ways: list[tuple[int, dict[str, Any]]] = [
        (7, {"num_workers": 1}),
        (7, {"num_workers": 4, "style": "fluid"}),
        (1, {"num_workers": 4}),
        (3, {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}),
    ]
    ranks = [(KEYS, {"num_workers": 2, "rank": rank, "world_size": 2}) for rank in range(2)]
    found = readers.run(daemon, EPOCHS, [*((KEYS[:count], how) for count, how in ways), *ranks], seconds=170)
    for (count, _), both in zip(ways, found, strict=False):
        assert [sorted(epoch) for epoch in both] == [expected(count)] * 2
    for one, other in zip(*found[-2:], strict=True):
        assert sorted(one + other) == expected(len(KEYS))


RESUMING = (
    IMPORTS
    + """
from torchdata.stateful_dataloader import StatefulDataLoader

def made(workers):
    shards = LocalShards(ShardCache("s"), ShardSampler(ARG["keys"], seed=3), epochs=3)
    shards.set_epoch(1)
    return shards, StatefulDataLoader(pipeline(shards), 4, num_workers=workers, collate_fn=list)

def rows(batches):
    return [row(sample) for batch in batches for sample in batch]

if __name__ == "__main__":
    for workers in ARG["workers"]:
        _, loader = made(workers)
        whole, batches = rows(loader), iter(loader)
        seen = [row(sample) for _ in range(ARG["after"]) for sample in next(batches)]
        saved = loader.state_dict()
        del batches
        shards, loader = made(workers)
        loader.load_state_dict(saved)
        rest = rows(loader)
        shards.set_epoch(2)
        say([whole, seen, rest, rows(loader)])
"""
)


@pytest.mark.slow
def test_an_interrupted_epoch_goes_on(daemon: Daemon) -> None:
    """StatefulDataLoader counts what it gave out: the rest comes as it would have, and the next epoch is whole."""
    if importlib.util.find_spec("torchdata") is None:
        pytest.skip("torchdata is not installed: make torch")
    for whole, seen, rest, further in readers.run(
        daemon, RESUMING, {"keys": KEYS, "workers": [0, 3], "after": 4}, seconds=150
    ):
        assert sorted(whole) == sorted(further) == expected(len(KEYS))
        assert seen + rest == whole != further


PLANS = (
    IMPORTS
    + """
if __name__ == "__main__":
    with ShardCache("s") as cache:
        for how in ("broken", "read"):
            for batches in epochs(cache, ARG, batch_size=1, count=1, num_workers=2, persistent_workers=True, prefetch_factor=1):
                next(batches), next(batches)  # one of each worker
                say([[plan["keys"] for plan in cache.status()["plans"]], how])
                hear()
                if how == "broken":
                    del batches
                    break
                say(sum(1 for _ in batches))
        say("still here")
        hear()
"""
)


@pytest.mark.slow
def test_a_plan_a_worker_and_no_lease_after_a_break(daemon: Daemon) -> None:
    """Leases and plans end with the loop that is left in mid-epoch, while the trainer goes on."""
    with readers.Reader(daemon, PLANS, KEYS[:4]) as trainer:
        assert trainer.line(60) == [[2, 2], "broken"]
        assert disk.leased(daemon.cache)
        trainer.tell()
        assert trainer.line(60) == [[2, 2], "read"]
        trainer.tell()
        assert trainer.line(60) == 4 * SAMPLES - 2
        assert trainer.line(60) == "still here"
        until(lambda: not disk.leased(daemon.cache), 10, "the end of all leases")
        trainer.tell()


AWAY = (
    IMPORTS
    + """
def read(workers):
    cache = ShardCache("s", wait=ARG["wait"])
    try:
        for batches in epochs(cache, ARG["keys"], count=1, num_workers=workers):
            for batch in batches:
                pass
    except Exception as error:
        return [type(error).__name__, str(error)]

if __name__ == "__main__":
    say([read(workers) for workers in ARG["workers"]])
"""
)


@pytest.mark.slow
def test_a_daemon_that_is_away_is_said_so() -> None:
    """The loop ends with an error that names the socket, with workers as without."""
    env = {"CACHEDAEMON_SOCKET": "/nowhere/cachedaemon.sock"}
    (said,) = readers.run(None, AWAY, {"keys": KEYS, "wait": 0.5, "workers": [0, 2]}, env=env)
    for kind, words in said:
        assert kind == "DaemonUnavailable"
        assert "/nowhere/cachedaemon.sock" in words


@pytest.mark.slow
def test_a_killed_trainer_holds_nothing(daemon: Daemon) -> None:
    with readers.Reader(daemon, PLANS, KEYS[:4]) as trainer:
        trainer.line(60)
        os.killpg(trainer.pid, signal.SIGKILL)
        began = time.monotonic()
        until(lambda: not disk.leased(daemon.cache), 10, "the end of all leases")
        assert time.monotonic() - began < 5
