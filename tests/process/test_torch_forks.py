"""A client that is used before and while a DataLoader starts its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes import readers
from tests.process.torch_shards import IMPORTS, KEYS, MARKS, MEMBERS, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.daemon import Daemon

pytestmark = MARKS


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


FORKING = (
    IMPORTS
    + """
def sockets():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + fd))
        except FileNotFoundError:
            pass  # the listing's own
    return {link for link in found if link.startswith("socket:")}

class Asked:
    def __init__(self, cache, keys):
        self.cache, self.keys = cache, keys
    def __len__(self):
        return len(self.keys)
    def __getitem__(self, index):
        self.cache.status()
        with self.cache.open(self.keys[index]) as shard:
            return os.getpid(), len(shard.members), sorted(sockets())

def busy(cache, stop):
    while not stop.is_set():
        cache.status()
        cache.open(ARG["keys"][0]).close()

if __name__ == "__main__":
    before, cache, stop = sockets(), ShardCache("s"), threading.Event()
    cache.open(ARG["keys"][0]).close()
    cache.status()
    thread = threading.Thread(target=busy, args=(cache, stop))
    thread.start()
    own = sockets() - before
    for _ in range(ARG["rounds"]):
        loader = DataLoader(Asked(cache, ARG["keys"]), 1, num_workers=ARG["workers"], collate_fn=list, multiprocessing_context=ARG["start"])
        rows = [row for batch in loader for row in batch]
        say([len({row[0] for row in rows}), [row[1] for row in rows], sorted(own & {s for row in rows for s in row[2]})])
    stop.set()
    thread.join()
    say(len(own))
"""
)


def fork(daemon: Daemon, start: str, workers: int, rounds: int, seconds: float) -> None:
    *rows, own = readers.run(
        daemon, FORKING, {"keys": KEYS, "start": start, "rounds": rounds, "workers": workers}, seconds=seconds
    )
    assert own >= 1
    assert rows == [[workers, [MEMBERS] * len(KEYS), []]] * rounds


@pytest.mark.parametrize(
    ("start", "workers", "rounds"),
    [
        ("fork", 4, 8),
        pytest.param("spawn", 2, 1, marks=pytest.mark.slow),
        pytest.param("forkserver", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_client_used_before_the_fork_works_in_each_worker(
    daemon: Daemon, start: str, workers: int, rounds: int
) -> None:
    """While a thread of the parent goes on using it; no worker has a connection of the parent's (C-58)."""
    fork(daemon, start, workers, rounds, 120)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_200_forks_with_a_busy_client(daemon: Daemon) -> None:
    """None hangs (C-58)."""
    fork(daemon, "fork", 4, 200, 500)
