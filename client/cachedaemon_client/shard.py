"""One leased shard: a local path, or the members of an archive read in place."""

from __future__ import annotations

import io
import json
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from cachedaemon_client import process
from cachedaemon_client.errors import Corrupt
from cachedaemon_client.lease import give_back
from cachedaemon_client.members import Damaged, MemberReader, Members, StaleTable, Truncated
from cachedaemon_client.process import alive

if TYPE_CHECKING:
    from os import stat_result

    from typing_extensions import Self

    from cachedaemon_client.local import Local

INDEXED = (".zip", ".tar")
"""Endings of the archives that have a member table."""
CHANGED = (Truncated, StaleTable)
"""Shard and table do not fit together (any more): the daemon is asked to look."""
WRONG = (*CHANGED, Damaged)

T = TypeVar("T")


class Shard:
    """A lease on one shard, and what can be done with it. The lease ends with `close`, the block, or the process."""

    __slots__ = ("__weakref__", "_cache", "_descriptor", "_epoch", "_place", "_reader", "_stat", "hit", "key")

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place, for every hit
        self,
        cache: Local[Any],
        key: str,
        place: str,
        descriptor: int,
        opened: stat_result,
        hit: bool,  # noqa: FBT001
    ) -> None:
        self._cache = cache
        self._place = place
        self._descriptor = descriptor
        self._stat = opened
        self._epoch = alive[0]
        self._reader: MemberReader | None = None
        self.key = key
        self.hit = hit
        """Whether it was local when it was asked for."""

    @property
    def path(self) -> Path:
        """The local file; a folder where the source unpacks archives."""
        return Path(self._place)

    @property
    def size(self) -> int:
        """Bytes of the object; of an unpacked archive the sum of its members."""
        if not stat.S_ISDIR(self._stat.st_mode):
            return self._stat.st_size
        shards, source, name = self._place.rsplit("/", 2)
        meta = Path(shards).parent / "meta" / source / f"{name}.json"
        return int(json.loads(meta.read_bytes())["size"])

    @property
    def closed(self) -> bool:
        """Whether the lease has ended, or is another process's."""
        return self._descriptor < 0 or self._epoch != alive[0]

    # ---- members of an archive

    @property
    def members(self) -> Members:
        """Names of the archive's files, in its order."""
        return (self._reader or self._opened()).members

    def read(self, member: str | int) -> bytes:
        """The bytes of a member, by name or index. `Corrupt` when it is not what the archive announced."""
        try:
            return (self._reader or self._opened()).read(member)
        except WRONG as cause:
            return self._once_more(MemberReader.read, member, cause)

    def view(self, member: str | int) -> memoryview:
        """The bytes of a member without a copy, where it is stored in one piece; it may outlive the lease."""
        try:
            return (self._reader or self._opened()).view(member)
        except WRONG as cause:
            return self._once_more(MemberReader.view, member, cause)

    def open(self, member: str | int) -> BinaryIO:
        """A member as a binary file."""
        try:
            return (self._reader or self._opened()).open(member)
        except WRONG as cause:
            return self._once_more(MemberReader.open, member, cause)

    def locate(self, member: str | int) -> tuple[Path, int, int]:
        """Path, offset and length of a member that is stored in one piece, for direct I/O."""
        try:
            return (self._reader or self._opened()).locate(member)
        except WRONG as cause:
            return self._once_more(MemberReader.locate, member, cause)

    def _once_more(self, way: Callable[[MemberReader, str | int], T], member: str | int, cause: Exception) -> T:
        """After the daemon has looked at a shard that does not fit its table. What was damaged before it came stays so."""
        try:
            if isinstance(cause, Damaged):
                raise cause
            return way(self._renewed(), member)
        except WRONG as wrong:
            message = f"{self._cache.source}/{self.key}: member {member!r}: {_reason(wrong)}"
            raise Corrupt(message, code="corrupt", source=self._cache.source, key=self.key) from wrong

    def _opened(self) -> MemberReader:
        if self.closed:
            raise ValueError(f"the shard {self.key!r} is closed, or was opened by the process that forked this one")
        self._refuse_other_kinds()
        try:
            reader = self._read_table()
        except StaleTable:
            return self._renewed()
        self._reader = reader
        process.forkables.add(self)
        return reader

    def _read_table(self) -> MemberReader:
        shards, source, name = self._place.rsplit("/", 2)
        table = f"{shards.removesuffix('/shards')}/members/{source}/{name}"
        return MemberReader(self._descriptor, self._place, table)

    def _refuse_other_kinds(self) -> None:
        if stat.S_ISDIR(self._stat.st_mode):
            raise io.UnsupportedOperation(f"{self.key!r} is unpacked: its members are files below its path")
        mode = self._cache.archives
        if mode == "opaque" or not self.key.lower().endswith(INDEXED):
            raise io.UnsupportedOperation(f"{self.key!r} is not read in place (archives = {mode!r}): use its path")

    def _renewed(self) -> MemberReader:
        """The shard is not what its table says: end this lease, let the daemon look, and lease what it gives."""
        self.close()
        self._place, self._stat, self._epoch, self._descriptor = self._cache.renew(self.key).hand_over()
        try:
            self._reader = self._read_table()
        except StaleTable as cause:
            raise io.UnsupportedOperation(f"{self.key!r} has no member table: {cause}") from None
        process.forkables.add(self)
        return self._reader

    def hand_over(self) -> tuple[str, stat_result, int, int]:
        """The lease, for another object to end: path, `fstat`, the process's number, descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        return self._place, self._stat, self._epoch, descriptor

    # ---- the lease's end

    def close(self) -> None:
        """End the lease. Views that are still out stay valid."""
        descriptor = self._descriptor
        self._descriptor = -1
        if descriptor < 0:
            return
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._epoch == alive[0]:
            give_back(descriptor)
        elif not alive[0]:  # forked behind Python's back: the lease is the parent's too
            os.close(descriptor)

    def forked(self) -> None:
        """In a forked child: the descriptor is closed already, and its number may soon be another file's."""
        if self._epoch != alive[0]:
            self._reader = None
            if alive[0]:
                self._descriptor = -1

    def __enter__(self) -> Self:
        """The shard itself; its lease runs until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the lease."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """A lease cannot travel."""
        raise TypeError(f"the shard {self.key!r} is a lease of this process: send the key instead, and open it there")

    def __repr__(self) -> str:
        """For people."""
        return f"<Shard {self.key!r} {'closed' if self.closed else self._place}>"

    def __del__(self) -> None:
        """A lease that nobody can end any more ends here."""
        if self._descriptor >= 0 and self._epoch == alive[0]:
            self.close()
            warnings.warn(f"the shard {self.key!r} was never closed", ResourceWarning, stacklevel=2)


def _reason(wrong: Exception) -> str:
    return (isinstance(wrong, OSError) and wrong.strerror) or str(wrong)
