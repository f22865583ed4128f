"""Every disk call of the daemon, in threads: the loop never waits for a disk.

Five pools. `steps` has one thread: publishing, locking and evicting are so short that order is worth more than width,
and with one thread none of them meets another half-way. `writers` write and hash what arrives. `reapers` delete
(an unlink of 1 GiB takes 200 ms). `background` syncs, scans and proves suspects. `verifier` hashes what is here already,
slowly, and keeps nobody else waiting.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from cachedaemon.digests import Piece
from cachedaemon.errors import Shortage
from cachedaemon.model import Digest, Disk, Meta, Need, Ref, Stamp, Validators
from cachedaemon.pools import fill
from cachedaemon.store import disk, plans, removal, scan
from cachedaemon.store.directory import Directory, Opened, SourceMark
from cachedaemon.store.disk import Held, disk_error
from cachedaemon.store.files import read_meta
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.scan import Found, Known
from cachedaemon.store.shards import Published, Sealed, Shards
from cachedaemon.store.staged import Staged
from cachedaemon.store.threads import committed, to_end
from cachedaemon.store.trouble import Trouble

WRITERS = 8
REAPERS = 2


class Store:
    """The cache directory of one daemon. What the disk refuses is raised as `NoSpace`, unless it says otherwise."""

    def __init__(self, layout: Layout, modes: Modes) -> None:
        self.layout = layout
        self.modes = modes
        self.trouble = Trouble()
        self.displaced: Callable[[str, Need], object] = lambda *_: None
        """Is told of what was moved to trash without being in the ledger, and how much room it takes."""
        self._directory = Directory(layout, modes)
        self._shards = Shards(layout, modes)
        self._steps = ThreadPoolExecutor(1, "steps")
        self._writers = ThreadPoolExecutor(WRITERS, "write")
        self._reapers = ThreadPoolExecutor(REAPERS, "reap")
        self._background = ThreadPoolExecutor(2, "background")
        self._verifier = ThreadPoolExecutor(1, "verify")
        self._mtime = 0

    @contextlib.contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            error = disk_error(cause, what)
            self.trouble.report("shortage" if isinstance(error, Shortage) else "disk", str(error))
            raise error from cause

    def _trash_place(self) -> str:
        return self.layout.trash(self._directory.numbers.next())

    def _beside(self, source: str) -> str:
        return self.layout.beside(source, self._directory.numbers.next())

    # ---- life

    def begin(self) -> None:
        """Have all threads begin, before anything else is done. Raises `StartError` where they cannot be had."""
        fill(self._steps, 1)
        fill(self._writers, WRITERS)
        fill(self._reapers, REAPERS)
        fill(self._background, 2)
        fill(self._verifier, 1)

    async def open(self, sources: Sequence[SourceMark]) -> Opened:
        """Take the directory into use: lock it, clear what was left, set aside what is doubtful, read the rest.

        Raises `StartError`.
        """
        opened = await to_end(self._background, self._directory.open, sources)
        self._mtime = max((one.stamp.mtime_ns for one in opened.found), default=0)
        return opened

    async def outdated(self, sources: Sequence[SourceMark]) -> list[str]:
        """Names of sources whose shards on the disk came by another configuration."""
        with self._mapped("looking at the sources"):
            found = await to_end(self._background, self._directory.outdated, sources)
        return [source.name for source in found]

    async def renew(self, sources: Sequence[SourceMark]) -> None:
        """The sources were configured anew while the daemon runs."""
        with self._mapped("making the folders of the sources"):
            gone = await committed(self._steps, self._directory.renew, sources)
        await self._tell(gone)

    async def remake(self, sources: Sequence[SourceMark]) -> bool:
        """Make the directory anew as far as somebody removed it; whether that was so."""
        with self._mapped("looking for the cache directory"):
            if await to_end(self._background, self._directory.is_whole, sources):
                return False
            await committed(self._steps, self._directory.remake)
        await self.renew(sources)
        return True

    async def _tell(self, displaced: list[str]) -> None:
        """It is in trash, and the ledger knows nothing of it yet."""
        if displaced:
            for path, room in await committed(self._background, removal.rooms, displaced):
                self.displaced(path, room)

    def close(self) -> None:
        """Let the directory go. Threads that still work are waited for."""
        for pool in (self._steps, self._writers, self._reapers, self._background, self._verifier):
            pool.shutdown(wait=True, cancel_futures=True)
        self._directory.close()

    async def usage(self) -> Disk:
        """Room on the file system."""
        with self._mapped("looking for room"):
            return await to_end(self._writers, disk.usage, str(self.layout.root))

    # ---- a transfer

    @contextlib.asynccontextmanager
    async def staging(self, source: str) -> AsyncIterator[Staged]:
        """A new file in staging; whatever is left of it at the end is removed."""
        number = self._directory.numbers.next()
        folder, table = self.layout.staging(number), self.layout.new_table(source, number)
        staged = None
        try:
            with self._mapped("staging"):
                staged = await to_end(self._writers, Staged, folder, number)
            yield staged
        finally:
            await committed(self._writers, self._drop, staged, folder, table)

    def _drop(self, staged: Staged | None, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(OSError):  # a failing disk: the next start clears it
                if staged is not None:
                    staged.close()
                removal.delete(path)

    async def seal_table(self, source: str, staged: Staged) -> None:
        """A member table is complete: give it mode and group."""
        with self._mapped("sealing a member table"):
            await to_end(self._writers, disk.seal_path, self.layout.new_table(source, staged.number), self.modes)

    async def write(self, staged: Staged, pieces: Sequence[Piece]) -> None:
        """Append to a staged file."""
        with self._mapped("writing a transfer"):
            await to_end(self._writers, staged.write, pieces)

    async def write_at(self, staged: Staged, start: int, pieces: Sequence[Piece]) -> None:
        """Write a stretch of a staged file that nobody else writes."""
        with self._mapped("writing a transfer"):
            await to_end(self._writers, staged.write_at, start, pieces)

    async def expect(self, staged: Staged, size: int | None, digests: Iterable[Digest] = ()) -> None:
        """What is known of a staged file beforehand."""
        with self._mapped("preparing a transfer"):
            await to_end(self._writers, staged.expect, size, digests)

    async def seal(self, staged: Staged) -> Sealed:
        """The file is complete: give it its mode, its group and an mtime that no other shard has."""
        with self._mapped("sealing a transfer"):
            seen = await to_end(self._writers, staged.seal, self.modes, self._next_mtime())
        return Sealed(staged.path, disk.stamp_of(seen), seen.st_blocks * 512)

    async def seal_folder(self, path: str, blocks: int) -> Sealed:
        """The same for an unpacked folder."""
        with self._mapped("sealing a folder"):
            seen = await to_end(self._writers, disk.seal_folder, path, self.modes, self._next_mtime())
        return Sealed(path, disk.stamp_of(seen), blocks)

    def _next_mtime(self) -> int:
        self._mtime = max(time.time_ns(), self._mtime + 1)
        return self._mtime

    async def publish(self, ref: Ref, name: str, staged: Staged, sealed: Sealed, meta: Meta) -> Published:
        """Make a shard visible: meta and member table first, its own rename last. Its shared lock is held already."""
        aside = self._trash_place()
        with self._mapped(f"publishing {ref}"):
            published, displaced = await committed(
                self._steps, self._shards.publish, ref, name, staged, sealed, meta, aside
            )
        await self._tell([aside] if displaced else [])
        return published

    async def drop_packed(self, staged: Staged) -> None:
        """Remove the packed form of what was unpacked."""
        with self._mapped("deleting a packed archive"):
            await to_end(self._reapers, staged.unlink)

    def table_of(self, source: str, staged: Staged) -> str:
        """Where the member table of a staged archive is written."""
        return self.layout.new_table(source, staged.number)

    # ---- published shards

    async def hold(self, ref: Ref, name: str, stamp: Stamp, *, indexed: bool, checked: bool) -> Held:
        """The daemon's own lease on a shard that is as it was published. Raises `lease.Busy` or `lease.Gone`."""
        with self._mapped(f"opening {ref}"):
            return await to_end(self._steps, self._shards.hold, ref, name, stamp, indexed=indexed, checked=checked)

    async def let_go(self, held: Held) -> None:
        """Give the daemon's lease back."""
        await to_end(self._steps, held.close)

    async def is_leased(self, ref: Ref, name: str, own: Held | None) -> bool:
        """Whether a reader holds the shard."""
        place = self.layout.shard(ref.source, name)
        with self._mapped(f"looking at {ref}"):
            return await to_end(self._steps, disk.is_leased, place, own.descriptor if own else None)

    async def leased(self, shards: Sequence[tuple[Ref, str, Held | None]]) -> list[bool]:
        """Whether readers hold these shards, all in one step: about 10 us each."""
        places = [(self.layout.shard(ref.source, name), own.descriptor if own else None) for ref, name, own in shards]
        return await to_end(self._steps, disk.leased_among, places)

    async def evict(self, ref: Ref, name: str, stamp: Stamp, *, suspect: bool = False) -> str:
        """Move a shard that nobody holds to trash; its path there. Raises `lease.Busy`, `lease.Gone` or OSError."""
        place = self.layout.suspect(ref.source, name) if suspect else self.layout.shard(ref.source, name)
        trash = self._trash_place()
        await committed(self._steps, disk.evict, place, stamp, self._shards.beside(ref, name), trash)
        return trash

    async def discard(self, ref: Ref, name: str, *, suspect: bool = False) -> tuple[str, Need] | None:
        """Move whatever stands in a shard's place to trash, whoever holds it; OSError.

        Its path there and the room it takes, which is not that of the shard if it is something else; None when nothing
        was there.
        """
        place = self.layout.suspect(ref.source, name) if suspect else self.layout.shard(ref.source, name)
        trash = self._trash_place()
        if not await committed(self._steps, disk.discard, place, self._shards.beside(ref, name), trash):
            return None
        return (await committed(self._background, removal.rooms, [trash]))[0]

    async def reap(self, trash: str) -> bool:
        """Delete what was moved to trash; False while a reader still uses the folder; OSError."""
        return await to_end(self._reapers, removal.reap, trash)

    async def restore(self, ref: Ref, name: str, stamp: Stamp) -> Published:
        """Publish a suspect shard that has proved its digest."""
        aside = self._trash_place()
        with self._mapped(f"publishing {ref}"):
            held, displaced = await committed(self._steps, self._shards.restore, ref, name, stamp, aside)
        await self._tell([aside] if displaced else [])
        return Published(held, held.stamp)

    async def proves(self, ref: Ref, name: str, digest: Callable[[str], str]) -> bool:
        """Whether a suspect shard has the digest that its meta file says; `digest` takes it anew from a path."""
        return await to_end(self._background, self._shards.proves, ref, name, digest)

    async def is_sound(self, ref: Ref, name: str, stamp: Stamp, digest: Callable[[str], str]) -> bool:
        """Whether a published shard has the digest that its meta file says; one that went meanwhile has not.

        `digest` takes it anew from a path, in a thread for this alone, since it may take its time.
        """
        with self._mapped(f"reading {ref}"):
            return await to_end(self._verifier, self._shards.is_sound, ref, name, stamp, digest)

    async def validators(self, ref: Ref, name: str) -> Validators | None:
        """What the origin said of the version that is here; None where the disk does not tell."""
        try:
            meta = await to_end(self._background, read_meta, self.layout.meta(ref.source, name))
        except OSError:
            return None
        return meta.validators if meta is not None else None

    async def note_validators(self, ref: Ref, name: str, validators: Validators) -> None:
        """The origin says something else of the same bytes."""
        with self._mapped(f"noting what the origin says of {ref}"):
            await committed(self._steps, self._shards.note_validators, ref, name, validators, self._beside(ref.source))

    async def make_durable(self, ref: Ref, name: str, stamp: Stamp, used: float) -> int | None:
        """Sync a shard and mark its meta file so; the bytes that it takes. None when it went meanwhile.

        OSError when the disk fails.
        """
        beside = self._beside(ref.source)
        blocks = await to_end(self._background, self._shards.prepare_durable, ref, name, stamp, used, beside)
        if blocks is None or not await to_end(self._steps, self._shards.make_durable, ref, name, stamp, beside):
            return None
        await to_end(self._background, disk.sync_folder, os.path.dirname(self.layout.meta(ref.source, name)))
        return blocks

    async def note_uses(self, uses: Iterable[tuple[Ref, str, float]]) -> None:
        """Write last uses (Unix seconds) to the meta files' times."""
        await to_end(self._background, self._shards.note_uses, list(uses))

    async def changed(self, known: Sequence[Known]) -> list[Ref]:
        """Shards that somebody changed or removed."""
        lost, failed = await to_end(self._background, scan.changed, known)
        if failed is not None:
            self.trouble.report("disk", str(disk_error(failed, "looking at the shards")))
        return lost

    def known(self, ref: Ref, name: str, stamp: Stamp, *, unread_meta: bool, suspect: bool = False) -> Known:
        """A shard for `changed`."""
        place = self.layout.suspect(ref.source, name) if suspect else self.layout.shard(ref.source, name)
        return Known(ref, place, self.layout.meta(ref.source, name), stamp, unread_meta)

    # ---- plans

    async def make_plan(self, name: str) -> str:
        """The file that the plan's owner holds; it stays the same for the same plan."""
        with self._mapped(f"making the file of plan {name}"):
            return await committed(self._writers, plans.make, self.layout.plan(name), self.modes)

    async def held_plans(self, names: Sequence[str]) -> set[str]:
        """Those plans whose file somebody holds; OSError."""
        return await to_end(self._background, lambda: {name for name in names if plans.is_held(self.layout.plan(name))})

    async def drop_plan(self, name: str) -> None:
        """The plan ends."""
        with self._mapped(f"removing the file of plan {name}"):
            await committed(self._writers, disk.unlink, self.layout.plan(name))


__all__ = ["REAPERS", "Found", "Held", "Known", "Opened", "Published", "Sealed", "SourceMark", "Staged", "Store"]
