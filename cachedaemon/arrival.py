"""From complete bytes in staging to what can be published: archives are checked and indexed, or unpacked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path

from cachedaemon.archives import Kind, kind_of
from cachedaemon.archives.tree import Modes, tree_digest
from cachedaemon.archives.workers import Workers
from cachedaemon.config import Source
from cachedaemon.entries import Flight
from cachedaemon.errors import BadArchive
from cachedaemon.landing import INODES
from cachedaemon.metrics import Metrics
from cachedaemon.model import Meta, Need, Ref, Taken, Validators, unheeded
from cachedaemon.store import Sealed, Staged, Store
from cachedaemon.store.disk import file_digest


@dataclass(frozen=True, slots=True)
class Arrived:
    """A shard that is complete in staging, checked or unpacked."""

    sealed: Sealed
    size: int
    digest: str
    inodes: int = INODES

    def meta(self, ref: Ref, validators: Validators) -> Meta:
        """What its meta file says."""
        return Meta(ref.key, self.size, self.digest, self.sealed.blocks, self.inodes, time.time(), validators)


class Arrival:
    """The last steps of one shard before it is published. `needs` yields the room it needs in all, before it is used."""

    def __init__(self, store: Store, workers: Workers, metrics: Metrics, flight: Flight, staged: Staged) -> None:
        self._store = store
        self._workers = workers
        self._metrics = metrics
        self._flight = flight
        self._staged = staged
        self.result: Arrived
        """After the last need."""

    async def needs(self, source: Source) -> AsyncGenerator[Need, None]:
        """Do what the source's settings say. Raises `BadArchive`, naming the shard."""
        ref, kind = self._flight.ref, kind_of(self._flight.ref.key)
        if kind is None or not is_looked_into(ref.key, source):
            self.result = Arrived(await self._store.seal(self._staged), self._staged.size, self._staged.digest)
            return
        with self._metrics.unpack.labels(ref.source).time(), _naming(ref):
            if source.archives == "index":
                await self._index(kind, verify=source.verify_members)
                return
            async with contextlib.aclosing(self._unpack(kind)) as needs:
                async for need in needs:
                    yield need

    async def _index(self, kind: Kind, *, verify: bool) -> None:
        source = self._flight.ref.source
        sealed = await self._store.seal(self._staged)
        table = Path(self._store.table_of(source, self._staged))
        await self._workers.index(kind, Path(sealed.path), table, sealed.stamp, verify=verify)
        await self._store.seal_table(source, self._staged)
        self.result = Arrived(sealed, self._staged.size, self._staged.digest)

    async def _unpack(self, kind: Kind) -> AsyncGenerator[Need, None]:
        packed, folder, modes = self._flight.room, f"{self._staged.folder}/tree", self._store.modes
        self._flight.growing = True
        given = Modes(modes.file, modes.folder, modes.group)
        async with self._workers.unpack(kind, Path(self._staged.path), Path(folder), given) as unpacking:
            async for need in unpacking:
                self._flight.written, self._flight.made = self._flight.room  # what was granted before has been used up
                yield Need(packed.bytes + need.bytes, packed.inodes + need.inodes)
        result = unpacking.result
        await self._store.drop_packed(self._staged)
        sealed = await self._store.seal_folder(folder, result.blocks)
        self.result = Arrived(sealed, result.size, result.digest, INODES + result.members)


def is_looked_into(key: str, source: Source) -> bool:
    """Whether a shard of a source is an archive that a worker checks or unpacks."""
    return is_indexed(key) if source.archives == "index" else source.archives == "unpack" and kind_of(key) is not None


def is_indexed(key: str) -> bool:
    """Whether a source that indexes archives keeps a member table of this one; a compressed tar has no random access."""
    return kind_of(key) in ("zip", "tar")


def digest_of(path: str, taken: Taken = unheeded) -> str:
    """The digest of a shard, taken anew: of a file's bytes, or of an unpacked folder's tree. `taken` hears of each piece."""
    return tree_digest(path, taken) if Path(path).is_dir() else file_digest(path, taken)


@contextlib.contextmanager
def _naming(ref: Ref) -> Iterator[None]:
    """Who checks an archive knows its file in staging only: the asker is told which shard it is."""
    try:
        yield
    except BadArchive as cause:
        raise BadArchive(f"{ref}: {cause}", reason=cause.reason, member=cause.member) from cause
