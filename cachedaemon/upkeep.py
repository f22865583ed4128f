"""What goes on beside the walk: last uses to the disk, syncing, looking for damage, proving suspects, ending plans."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

from cachedaemon.cache import CHECK, Cache
from cachedaemon.entries import Entry
from cachedaemon.errors import SHORT, CacheDaemonError, NoSpace
from cachedaemon.model import Ref
from cachedaemon.planfiles import AT_ONCE, PlanFiles
from cachedaemon.plans import Plans
from cachedaemon.store import Found, Known, Opened, Store
from cachedaemon.store.disk import disk_error

log = logging.getLogger(__name__)

NOTE_USES = 1.0
"""Seconds that a last use may be missing on the disk."""
LOOK_AT_PLANS = 1.0
LOOK_AT_PAST = 1.0
SLOW_RETRY = 5.0


def admit(cache: Cache, opened: Opened) -> None:
    """Take what was found at start into the ledger, in the order of last use; stamps from the future count as now."""
    now, wall = time.monotonic(), time.time()
    for found in sorted(opened.found, key=lambda one: one.used):
        entry = _entry(found, now - max(0.0, wall - found.used))
        _add(cache, entry)
        if found.used > wall:
            cache.shelf.used[found.ref] = entry  # written back, or it would stay the last for years
    for path, room in opened.trash:
        cache.ledger.leftover(room)
        cache.trash.throw(path, room)
    cache.room.changed()  # a cap may be lower than it was


def _add(cache: Cache, entry: Entry) -> None:
    """Of the versions of one shard the one that was published last is in force: each has a later mtime than all before."""
    other = cache.ledger.get(entry.ref)
    if other is not None and other.stamp.mtime_ns > entry.stamp.mtime_ns:
        entry.past = True
    elif other is not None:
        cache.ledger.supersede(other)
    cache.ledger.add(entry)


def _entry(found: Found, used: float) -> Entry:
    entry = Entry(found.ref, found.name, found.stamp, found.size, found.blocks, found.inodes, used)
    entry.suspect, entry.checked = found.suspect, False
    return entry


class Upkeep:
    """The background work of one cache. `health` says what is wrong, by area."""

    def __init__(
        self, cache: Cache, store: Store, plans: Plans, files: PlanFiles, scan_every: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._store = store
        self._plans = plans
        self._files = files
        self._scan_every = scan_every

    @property
    def health(self) -> dict[str, str]:
        """What is wrong now; empty when all is well."""
        return self._cache.troubles | self._store.trouble.now()

    async def run(self, **others: Callable[[], Awaitable[None]]) -> None:
        """All of it, for ever, and other work with it, by the area that its failures are told under."""
        async with asyncio.TaskGroup() as group:
            for work in (self._note, self._sync, self._scan, self._prove, self._end_plans, self._end_past):
                group.create_task(self._lasting(work.__name__.strip("_"), work))
            group.create_task(self._lasting("room", self._cache.room.keep))
            group.create_task(self._lasting("trash", self._cache.trash.empty))
            for area, other in others.items():
                group.create_task(self._lasting(area, other))

    async def _lasting(self, area: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin again what failed: hits need none of this work, so no failure of it may end them."""
        while True:
            try:
                return await work()
            except Exception as cause:
                if self._store.trouble.report(area, f"{area} failed, and is tried again: {cause!r}"):
                    known = isinstance(cause, OSError | CacheDaemonError)
                    log.log(logging.ERROR, "%s failed, and is tried again: %r", area, cause, exc_info=not known)
            await asyncio.sleep(SLOW_RETRY)

    async def note_uses(self) -> None:
        """Tell the order of eviction of the last uses that gathered, and write them to the disk, so that a restart keeps it."""
        used, self._cache.shelf.used = self._cache.shelf.used, {}
        refs = iter(used)
        while some := list(itertools.islice(refs, AT_ONCE)):
            self._cache.ledger.replanned(some)
            await asyncio.sleep(0)
        offset = time.time() - time.monotonic()
        if used:
            uses = [(ref, entry.name, entry.used + offset) for ref, entry in used.items() if not entry.past]
            await self._store.note_uses(uses)

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(NOTE_USES)
            await self.note_uses()

    async def _sync(self) -> None:
        """Make each new shard durable, in the background; a shard that the disk cannot keep goes."""
        while True:
            entry = await self._cache.publication.unsynced.get()
            if entry.past:  # should it be in force again, it comes again
                continue
            used = entry.used + time.time() - time.monotonic()
            try:
                blocks = await self._store.make_durable(entry.ref, entry.name, entry.stamp, used)
            except OSError as cause:
                await self._not_durable(entry, cause)
                continue
            if blocks is not None:
                self._cache.ledger.resize(entry, blocks)

    async def _not_durable(self, entry: Entry, cause: OSError) -> None:
        error = disk_error(cause, f"syncing {entry.ref}")
        news = self._store.trouble.report("sync", str(error))
        if cause.errno in SHORT:
            asyncio.get_running_loop().call_later(SLOW_RETRY, self._cache.publication.unsynced.put_nowait, entry)
        else:
            await self._lose(entry)
        if news:
            log.warning("%s", error)

    async def _scan(self) -> None:
        """Notice what somebody changed behind the daemon's back."""
        while True:
            every = self._scan_every()
            await asyncio.sleep(every or SLOW_RETRY)
            if every:
                await self._cache.absent()
                await self.look()

    async def look(self) -> None:
        """Compare everything with the disk, once."""
        entries = list(self._cache.ledger.entries())
        known = [self._known(entry) for entry in entries]
        lost = set(await self._store.changed(known))
        for entry, seen in zip(entries, known, strict=True):
            if entry.ref not in lost:
                entry.checked = True
            elif self._cache.ledger.has(entry) and self._known(entry).path == seen.path:  # else it went, or was proved
                log.warning("%s was changed or removed by somebody else", entry.ref)
                await self._lose(entry)

    async def _lose(self, entry: Entry) -> None:
        with contextlib.suppress(NoSpace):  # the disk refuses: that is told, and the next look tries again
            await self._cache.eviction.lose(entry)

    def _known(self, entry: Entry) -> Known:
        unread = not entry.checked
        return self._store.known(entry.ref, entry.name, entry.stamp, unread_meta=unread, suspect=entry.suspect)

    async def _prove(self) -> None:
        """Check the shards that an unclean boot has left, one by one."""
        suspects = [entry.ref for entry in self._cache.ledger.entries() if entry.suspect]
        for ref in suspects:
            await self._prove_one(ref)

    async def _prove_one(self, ref: Ref) -> None:
        entry = self._cache.ledger.get(ref)
        if entry is None or not entry.suspect:
            return
        try:
            await self._cache.bring(ref.source, ref.key, CHECK)
        except CacheDaemonError as cause:  # it stays suspect: whoever asks for it has it checked
            log.warning("%s is not checked yet: %s", ref, cause)

    async def _end_past(self) -> None:
        """An earlier version goes when nobody holds it; the kernel tells nobody when that is."""
        while True:
            await asyncio.sleep(LOOK_AT_PAST)
            if past := self._cache.ledger.past():
                await self._cache.eviction.retire(past)

    async def _end_plans(self) -> None:
        """A plan ends with its owner."""
        while True:
            await asyncio.sleep(LOOK_AT_PLANS)
            if len(self._plans):
                self._files.note_idle()
                await self._files.look()
