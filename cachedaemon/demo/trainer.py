"""One trainer: `python -m cachedaemon.demo.trainer WORK`, where WORK is the JSON of a `Work`.

It says "ready", begins when it is told so, and says how far it is in JSON lines. Every sample is checked against the
data set's digests, and every so many samples a training step takes its time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachedaemon.demo import order
from cachedaemon.demo.children import end_with_parent
from cachedaemon.demo.dataset import DataSet, Sample
from cachedaemon.demo.readers import Reader, Wanted, ways

TELL = 0.1
"""Seconds between two words on how far it is."""


@dataclass(frozen=True)
class Work:
    """What one trainer does."""

    way: str
    manifest: str
    source: str
    socket: str
    port: int
    seed: int
    epochs: int
    rank: int
    ranks: int
    batch: int
    step: float
    """Seconds that a training step takes."""


@dataclass
class Told:
    """What a trainer says of itself; all counts are from its start on."""

    samples: int = 0
    wrong: int = 0
    bytes: int = 0
    waited: float = 0.0
    """Seconds that it stood still for want of samples."""
    seconds: float = 0.0
    epochs: tuple[float, ...] = ()
    """When each epoch ended, in seconds from the start."""
    opened: int = 0
    hits: int = 0
    done: bool = False


class Trainer:
    """Reads its part of each epoch."""

    def __init__(self, work: Work, data: DataSet, reader: Reader) -> None:
        self._work = work
        self._data = data
        self._reader = reader
        self.told = Told()
        self._next = 0.0

    def run(self) -> Iterator[Told]:
        """Train; what there is to say, from time to time and at the end."""
        began = time.monotonic()
        epochs = [self._wanted(epoch) for epoch in range(self._work.epochs)]
        self._reader.expect([key for wanted in epochs for key, _ in wanted])
        for wanted in epochs:
            for _ in self._epoch(wanted):
                self.told.seconds = time.monotonic() - began
                if self.told.seconds >= self._next:
                    self._next = self.told.seconds + TELL
                    yield self.told
            self.told.epochs += (time.monotonic() - began,)
        self.told.seconds = time.monotonic() - began
        self.told.opened, self.told.hits, self.told.done = self._reader.opened, self._reader.hits, True
        yield self.told

    def _wanted(self, epoch: int) -> Wanted:
        work, shards = self._work, self._data.shards
        return [
            (key, [shards[key][i] for i in self._indices(key, epoch)])
            for key in order.of_shards(shards, work.seed, epoch)
        ]

    def _indices(self, key: str, epoch: int) -> list[int]:
        work = self._work
        return order.of_samples(key, len(self._data.shards[key]), work.seed, epoch, slice(work.rank, None, work.ranks))

    def _epoch(self, wanted: Wanted) -> Iterator[None]:
        """One step after the other; each ends with a yield."""
        samples = self._reader.read(wanted)
        while batch := self._batch(samples):
            for sample, body in batch:
                self.told.samples += 1
                self.told.bytes += len(body)
                self.told.wrong += hashlib.sha256(body).hexdigest() != sample.sha256
            time.sleep(self._work.step)
            yield

    def _batch(self, samples: Iterator[tuple[Sample, bytes]]) -> list[tuple[Sample, bytes]]:
        asked = time.monotonic()
        batch = [sample for _, sample in zip(range(self._work.batch), samples, strict=False)]
        self.told.waited += time.monotonic() - asked
        return batch


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - the parent reads it


def main(work: Work) -> None:
    """Wait for the word, and train."""
    data = DataSet.load(Path(work.manifest))
    reader = ways(work.source, work.socket, work.port)[work.way]()
    _say("ready")
    sys.stdin.readline()
    try:
        for told in Trainer(work, data, reader).run():
            _say(asdict(told))
    finally:
        reader.close()


if __name__ == "__main__":
    end_with_parent()
    main(Work(**json.loads(sys.argv[1])))
