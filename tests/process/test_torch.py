"""The example's data sets in a real torch DataLoader; with a small /dev/shm, too."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.fakes import readers
from tests.process.torch_shards import IMPORTS, KEYS, MARKS, MEMBERS, STYLES, members, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.daemon import Daemon

pytestmark = MARKS


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


EPOCHS = (
    IMPORTS
    + """
def read(keys, style, seed, how):
    with ShardCache("s") as cache:
        return [
            [(name, zlib.crc32(bytes(image.tolist()))) for names, images in batches for name, image in zip(names, images)]
            for batches in epochs(cache, keys, style=style, count=2, seed=seed, batch_size=5, **how)
        ]

if __name__ == "__main__":
    for keys, style, seed, how in ARG:
        say(read(keys, style, seed, how))
"""
)


def expected(count: int) -> dict[str, int]:
    """Checksum of each sample of the first `count` shards."""
    return {
        f"{KEYS[number]}/{name}": zlib.crc32(body) for number in range(count) for name, body in members(number).items()
    }


def run(daemon: Daemon, *cases: tuple[list[str], str, int, dict[str, object]]) -> list[list[list[tuple[str, int]]]]:
    """Two epochs of each case, in one trainer: (sample, checksum) in the order of the batches."""
    said = readers.run(daemon, EPOCHS, cases, seconds=150)
    return [[[tuple(pair) for pair in epoch] for epoch in epochs] for epochs in said]


def by_shard(epoch: list[tuple[str, int]]) -> dict[str, list[str]]:
    """The order of samples within each shard."""
    found = defaultdict(list)
    for name, _ in epoch:
        found[name.partition("/")[0]].append(name)
    return dict(found)


def check(daemon: Daemon, *counts: tuple[int, int], **how: object) -> list[list[list[tuple[str, int]]]]:
    """Both data sets give each sample once an epoch, with so many shards and workers."""
    told = [(shards, style, workers) for shards, workers in counts for style in STYLES]
    found = run(
        daemon, *[(KEYS[:shards], style, 7, {"num_workers": workers, **how}) for shards, style, workers in told]
    )
    for (shards, _, _), epochs in zip(told, found, strict=True):
        for epoch in epochs:
            assert len(epoch) == shards * MEMBERS
            assert dict(epoch) == expected(shards)
    return found


def test_each_sample_once_an_epoch(daemon: Daemon) -> None:
    """With no workers and several, and fewer shards than workers (C-61); no shard has another's order of samples."""
    (epoch, _), *_ = check(daemon, (9, 0), (3, 4))
    orders = [tuple(name.partition("/")[2] for name in names) for names in by_shard(epoch).values()]
    assert len(set(orders)) == len(KEYS)


@pytest.mark.slow
def test_each_sample_once_with_any_number_of_workers(daemon: Daemon) -> None:
    """With one, several, many; with one shard (C-61); with workers that outlive the epoch."""
    check(daemon, (9, 1), (9, 4), (9, 12), (3, 12), (1, 4))
    check(daemon, (9, 4), (2, 4), persistent_workers=True)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_orders_come_from_the_seed_alone(daemon: Daemon, style: str) -> None:
    """Others in another epoch and with another seed. With more workers portions of a shard mix, each in the order it had."""
    one, again, other, four, four_again = run(
        daemon,
        (KEYS, style, 7, {"num_workers": 1}),
        (KEYS[::-1], style, 7, {"num_workers": 1}),
        (KEYS, style, 8, {"num_workers": 1}),
        (KEYS, style, 7, {"num_workers": 4}),
        (KEYS[::-1], style, 7, {"num_workers": 4}),
    )
    assert one == again
    assert four == four_again
    for alone, together in zip(one, four, strict=True):
        orders = by_shard(together)
        for shard, order in by_shard(alone).items():
            for portion in (order[number::4] for number in range(4)):
                assert [sample for sample in orders[shard] if sample in portion] == portion
    assert by_shard(one[0]) != by_shard(one[1])
    assert list(by_shard(one[0])) != list(by_shard(one[1])), "the shards' order"
    assert by_shard(one[0]) != by_shard(other[0])
    assert list(by_shard(one[0])) != list(by_shard(other[0]))
    if style == "map":
        assert one == four, "one sampler orders the whole epoch"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_are_started_in_any_way(daemon: Daemon, start: str) -> None:
    """Both data sets pickle, and workers that outlive an epoch see the next one's number."""
    how = {"num_workers": 2, "multiprocessing_context": start, "persistent_workers": True}
    for epochs in run(daemon, (KEYS[:3], "iterable", 7, how), (KEYS[:3], "map", 7, how)):
        assert [dict(epoch) for epoch in epochs] == [expected(3)] * 2
        assert by_shard(epochs[0]) != by_shard(epochs[1])


def shm(size: str, then: str) -> list[str]:
    """Command line that gives a program a /dev/shm of its own."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && {then} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    ("wrap", "how"),
    [
        (shm("64m", "true"), {"num_workers": 4}),
        (shm("64m", "fallocate --length 64m /dev/shm/full"), {"num_workers": 0}),
    ],
    ids=["of 64 MB", "full"],
)
def test_neither_side_needs_shared_memory(wrap: list[str], how: dict[str, object]) -> None:
    """The daemon and the client need none; torch needs it for its workers, and little is enough (C-63)."""
    with serving(3, wrap) as daemon:
        cases = [(KEYS[:3], style, 7, how) for style in STYLES]
        for epochs in readers.run(daemon, EPOCHS, cases, seconds=100, wrap=wrap):
            assert [dict(map(tuple, epoch)) for epoch in epochs] == [expected(3)] * 2
