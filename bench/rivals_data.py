"""The samples that all rivals read, and the four forms in which they lie at the origin: zip, MDS, litdata chunks, tar.

    python rivals_data.py FORM FOLDER SHARDS MEMBERS SIZE

runs under the interpreter of the rival whose form it is, and needs nothing but that rival.
"""

from __future__ import annotations

import importlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes import content  # noqa: E402 - needs the path; the standard library only

MODULES = {
    "cachedaemon": "cachedaemon_client.torch",
    "mosaicml-streaming": "streaming",
    "litdata": "litdata",
    "webdataset": "webdataset",
}
UNUSED = ("streaming.multimodal", "streaming.text", "streaming.vision")
"""Ready-made data sets, which cost seconds to import and want a torchvision of the very build that torch is of."""
WRONG = -1
"""In place of the number of a sample whose bytes are not its own."""


@dataclass(frozen=True)
class Data:
    """How many samples there are, and how large each is."""

    shards: int
    members: int
    size: int

    @property
    def samples(self) -> int:
        """All of them."""
        return self.shards * self.members

    def name(self, shard: int, suffix: str) -> str:
        """Name of a zip or tar."""
        return f"{shard:05d}.{suffix}"

    def numbers(self, shard: int) -> range:
        """The samples of a shard."""
        return range(shard * self.members, (shard + 1) * self.members)

    def body(self, number: int) -> bytes:
        """Bytes of a sample."""
        return content.data(str(number), self.size)

    def checked(self, number: int, body: bytes) -> int:
        """The sample's number; `WRONG` where the bytes are another's."""
        return number if body == self.body(number) else WRONG


def load(rival: str) -> None:
    """Import a rival."""
    sys.modules |= {name: ModuleType(name) for name in UNUSED}
    importlib.import_module(MODULES[rival])


def write_zips(folder: Path, data: Data) -> None:
    """What cachedaemon reads in place: stored members."""
    for shard in range(data.shards):
        with zipfile.ZipFile(folder / data.name(shard, "zip"), "w") as archive:
            for number in data.numbers(shard):
                archive.writestr(f"{number:06d}.bin", data.body(number))


def write_tars(folder: Path, data: Data) -> None:
    """What webdataset reads."""
    for shard in range(data.shards):
        with tarfile.open(folder / data.name(shard, "tar"), "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in data.numbers(shard):
                entry = tarfile.TarInfo(f"{number:06d}.bin")
                entry.size = data.size
                archive.addfile(entry, io.BytesIO(data.body(number)))


def write_mds(folder: Path, data: Data) -> None:
    """What mosaicml-streaming reads. A shard ends where the next sample would pass the limit."""
    from streaming import MDSWriter

    limit = data.members * (data.size + 20) + data.size // 2
    with MDSWriter(out=str(folder), columns={"number": "int", "body": "bytes"}, size_limit=limit) as writer:
        for number in range(data.samples):
            writer.write({"number": number, "body": data.body(number)})


def write_chunks(folder: Path, data: Data) -> None:
    """What litdata reads."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=data.members)
    for number in range(data.samples):
        writer[number] = {"number": number, "body": data.body(number)}
    writer.done()
    writer.merge(1)


FORMS: dict[str, Callable[[Path, Data], None]] = {
    "cachedaemon": write_zips,
    "mosaicml-streaming": write_mds,
    "litdata": write_chunks,
    "webdataset": write_tars,
}

if __name__ == "__main__":
    load(sys.argv[1])
    FORMS[sys.argv[1]](Path(sys.argv[2]), Data(*map(int, sys.argv[3:6])))
