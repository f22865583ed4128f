"""One leased shard: a local path, or the members of an archive read in place.

Threads may share a shard. What they read with belongs to the reader (`members`, `descriptor`); here the lease changes hands,
under `_SWAP`, which is never held for long. Whoever makes a reader, or asks for a new lease, has the shard's own turn, and
may wait for the daemon with it; `close` waits for nobody.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from cachedaemon_client import process
from cachedaemon_client.errors import Corrupt
from cachedaemon_client.lease import give_back
from cachedaemon_client.members import Damaged, Ended, MemberReader, Members, StaleTable, Truncated
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
AGAIN = (*WRONG, Ended)
CLOSED, BETWEEN = -1, -2
"""In a descriptor's place: the lease has ended; it has, and a new one is being asked for."""
_SWAP = [threading.RLock()]
"""Re-entrant, since a signal handler or the collector may close a shard anywhere."""


def _in_child() -> None:
    """A lock that another thread held during the fork would stay so."""
    _SWAP[0] = threading.RLock()


os.register_at_fork(after_in_child=_in_child)

T = TypeVar("T")


class Shard:
    """A lease on one shard, and what can be done with it. The lease ends with `close`, the block, or the process.

    It is made before the lease is taken, and given `_descriptor` and `_stat` by the statement that takes it: a signal
    handler that raises in between, such as Ctrl-C, finds no lease that nobody would end.
    """

    __slots__ = ("__weakref__", "_cache", "_descriptor", "_epoch", "_lock", "_place", "_reader", "_stat", "hit", "key")

    def __init__(self, cache: Local[Any], key: str, place: str, hit: bool) -> None:  # noqa: FBT001 - one place makes it
        self._epoch = alive[0]
        self._descriptor = CLOSED
        self._reader: MemberReader | None = None
        self._lock: threading.RLock | None = None
        self._cache = cache
        self._place = place
        self._stat: stat_result
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
        return self._descriptor == CLOSED or self._epoch != alive[0]

    # ---- members of an archive

    @property
    def members(self) -> Members:
        """Names of the archive's files, in its order."""
        return (self._reader or self._opened()).members

    def read(self, member: str | int) -> bytes:
        """The bytes of a member, by name or index. `Corrupt` when it is not what the archive announced."""
        reader = self._reader or self._opened()
        try:
            return reader.read(member)
        except AGAIN as cause:
            return self._once_more(reader, MemberReader.read, member, cause)

    def view(self, member: str | int) -> memoryview:
        """The bytes of a member without a copy, where it is stored in one piece; it may outlive the lease."""
        reader = self._reader or self._opened()
        try:
            return reader.view(member)
        except AGAIN as cause:
            return self._once_more(reader, MemberReader.view, member, cause)

    def open(self, member: str | int) -> BinaryIO:
        """A member as a binary file."""
        reader = self._reader or self._opened()
        try:
            return reader.open(member)
        except AGAIN as cause:
            return self._once_more(reader, MemberReader.open, member, cause)

    def locate(self, member: str | int) -> tuple[Path, int, int]:
        """Path, offset and length of a member that is stored in one piece, for direct I/O."""
        reader = self._reader or self._opened()
        try:
            return reader.locate(member)
        except AGAIN as cause:
            return self._once_more(reader, MemberReader.locate, member, cause)

    def _once_more(
        self, reader: MemberReader, way: Callable[[MemberReader, str | int], T], member: str | int, cause: Exception
    ) -> T:
        """After the daemon has looked at a shard that does not fit its table. What was damaged before it came stays so."""
        try:
            if isinstance(cause, Damaged):
                raise cause
            return way(self._renewed(reader), member)
        except WRONG as wrong:
            message = f"{self._cache.source}/{self.key}: member {member!r}: {_reason(wrong)}"
            raise Corrupt(message, code="corrupt", source=self._cache.source, key=self.key) from wrong

    def _opened(self) -> MemberReader:
        """The reader, made with the first use, or anew where asking for a new lease failed."""
        with self._turn():
            if self._reader is not None:
                return self._reader
            if self._descriptor == BETWEEN or self._is_misplaced():
                return self._renewed(None)
            self._refuse_other_kinds()
            try:
                return self._keep(self._read_table())
            except StaleTable:
                return self._renewed(None)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One thread at a time; ValueError when the shard is closed, before or after."""
        self._refuse_closed()  # first of all: after a fork another thread's turn would never end
        with _SWAP[0]:
            lock = self._lock = self._lock or threading.RLock()
        with lock:
            self._refuse_closed()
            yield

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError(f"the shard {self.key!r} is closed, or was opened by the process that forked this one")

    def _keep(self, reader: MemberReader) -> MemberReader:
        """This is the shard's reader; but nothing may be left open in a shard that another thread closed meanwhile."""
        process.forkables.add(self)
        with _SWAP[0]:
            if not self.closed:
                self._reader = reader
                return reader
        reader.close()
        self._refuse_closed()
        return reader

    def _read_table(self) -> MemberReader:
        shards, source, name = self._place.rsplit("/", 2)
        table = f"{shards.removesuffix('/shards')}/members/{source}/{name}"
        try:
            return MemberReader(self._descriptor, self._place, table)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            raise StaleTable("the lease's descriptor was closed by somebody else") from error

    def _is_misplaced(self) -> bool:
        """Whether somebody put a folder in an archive's place: the daemon mends it when it is asked."""
        return stat.S_ISDIR(self._stat.st_mode) and self._cache.archives == "index" and self._is_archive

    @property
    def _is_archive(self) -> bool:
        return self.key.lower().endswith(INDEXED)

    def _refuse_other_kinds(self) -> None:
        if stat.S_ISDIR(self._stat.st_mode):
            raise io.UnsupportedOperation(f"{self.key!r} is unpacked: its members are files below its path")
        mode = self._cache.archives
        if mode == "opaque" or not self._is_archive:
            raise io.UnsupportedOperation(f"{self.key!r} is not read in place (archives = {mode!r}): use its path")

    def _renewed(self, stale: MemberReader | None) -> MemberReader:
        """The shard is not what its table says: end this lease, let the daemon look, and lease what it gives.

        Threads that find so together renew it once. While the daemon cannot be asked there is no lease, and the next
        read asks again.
        """
        with self._turn():
            if self._reader is not None and self._reader is not stale:
                return self._reader
            self._end(BETWEEN)
            self._take_over(self._cache.renew(self.key))
            self._refuse_other_kinds()
            try:
                return self._keep(self._read_table())
            except StaleTable as cause:
                self._refuse_closed()
                raise io.UnsupportedOperation(f"{self.key!r} has no member table: {cause}") from None

    def _take_over(self, fresh: Shard) -> None:
        """Have the lease of a new shard; but a shard that was closed meanwhile stays closed."""
        with _SWAP[0]:
            if self._descriptor == BETWEEN:
                self._place, self._stat, self._epoch, self._descriptor = fresh.hand_over()
        fresh.close()
        self._refuse_closed()

    def hand_over(self) -> tuple[str, stat_result, int, int]:
        """The lease, for another object to end: path, `fstat`, the process's number, descriptor."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        return self._place, self._stat, self._epoch, descriptor

    # ---- the lease's end

    def close(self) -> None:
        """End the lease. Views that are still out stay valid, and a read that is under way in another thread ends well."""
        self._end(CLOSED)

    def _end(self, then: int) -> None:
        with _SWAP[0]:
            descriptor, reader = self._descriptor, self._reader
            self._descriptor, self._reader = CLOSED if descriptor == CLOSED else then, None
        if reader is not None:
            reader.close()
        if descriptor < 0:
            return
        try:
            if self._epoch == alive[0]:
                give_back(descriptor)
            elif not alive[0]:  # forked behind Python's back: the lease is the parent's too
                os.close(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:  # closed by its number (os.closerange): the lease ended then
                raise

    def forked(self) -> None:
        """In a forked child: the descriptor is closed already, and its number may soon be another file's."""
        if self._epoch != alive[0]:
            if self._reader is not None:  # files of members that are open must not read from that number either
                self._reader.close()
                self._reader = None
            if alive[0]:
                self._descriptor = CLOSED

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
        try:
            is_held = self._descriptor >= 0 and self._epoch == alive[0]
        except AttributeError:  # a signal handler raised before `__init__` noted anything
            return
        if is_held:
            self.close()
            warnings.warn(f"the shard {self.key!r} was never closed", ResourceWarning, stacklevel=2)


def _reason(wrong: Exception) -> str:
    return (isinstance(wrong, OSError) and wrong.strerror) or str(wrong)
