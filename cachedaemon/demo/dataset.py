"""The demo's data set: zip shards of samples that look like small images, and where each sample lies."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_LOCAL_HEADER = 30
"""Bytes of a zip's local file header without its name and extra field (APPNOTE.TXT, 4.3.7)."""
_JPEG = b"\xff\xd8\xff\xe0"


class Sample(NamedTuple):
    """One member of a shard; the rival that asks for single samples needs to know where it lies."""

    name: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """Shards in a folder, and their samples in the archives' order."""

    folder: Path
    shards: dict[str, list[Sample]]

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(len(samples) for samples in self.shards.values())

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum((self.folder / key).stat().st_size for key in self.shards)

    def save(self, path: Path) -> None:
        """Write it down for other processes."""
        path.write_text(json.dumps({"folder": str(self.folder), "shards": self.shards}))

    @classmethod
    def load(cls, path: Path) -> DataSet:
        """What `save` wrote."""
        said = json.loads(path.read_text())
        shards = {key: [Sample(*one) for one in samples] for key, samples in said["shards"].items()}
        return cls(Path(said["folder"]), shards)


def make(folder: Path, *, shards: int, samples: int, size: int, seed: int) -> DataSet:
    """Write `shards` archives of `samples` samples of `size` bytes, give or take a quarter. The same for each seed."""
    folder.mkdir()
    made = {}
    for number in range(shards):
        key = f"images-{number:03d}.zip"
        made[key] = _write(folder / key, samples, size, random.Random(f"{seed}/data/{key}"))  # noqa: S311 - sample data
    return DataSet(folder, made)


def _write(path: Path, samples: int, size: int, chance: random.Random) -> list[Sample]:
    bodies = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number in range(samples):
            name = f"class-{chance.randrange(10)}/{number:06d}.jpg"
            bodies[name] = _JPEG + chance.randbytes(int(size * chance.uniform(0.75, 1.25)))
            archive.writestr(zipfile.ZipInfo(name), bodies[name])
        return [_sample(entry, bodies[entry.filename]) for entry in archive.infolist()]


def _sample(entry: zipfile.ZipInfo, body: bytes) -> Sample:
    """Names are ASCII and nothing has an extra field, so that the data follow the name."""
    offset = entry.header_offset + _LOCAL_HEADER + len(entry.filename)
    return Sample(entry.filename, offset, len(body), hashlib.sha256(body).hexdigest())
