"""What is done to a shard on the disk in one step, of several calls. All of them block; none runs on the loop.

The store says in which thread each runs, and what becomes of its failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from cachedaemon.errors import SHORT
from cachedaemon.model import Meta, Ref, Stamp, Validators
from cachedaemon.store import disk, files, scan
from cachedaemon.store.disk import Held
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.staged import Staged
from cachedaemon_client import lease
from cachedaemon_client.member_table import Table
from cachedaemon_client.members import StaleTable


@dataclass(frozen=True, slots=True)
class Sealed:
    """A complete shard in staging, with the stamp that it is published with."""

    path: str
    stamp: Stamp
    blocks: int


@dataclass(frozen=True, slots=True)
class Published:
    """A shard that became visible, with the daemon's lease on it."""

    held: Held
    stamp: Stamp

    def close(self) -> None:
        """Give the lease back."""
        self.held.close()


class Shards:
    """The shards of one cache directory."""

    def __init__(self, layout: Layout, modes: Modes) -> None:
        self._layout = layout
        self._modes = modes

    def publish(  # noqa: PLR0913, PLR0917 - what is published, and what it is called
        self, ref: Ref, name: str, staged: Staged, sealed: Sealed, meta: Meta, aside: str
    ) -> tuple[Published, bool]:
        """Make a shard visible; whether something else had to go.

        What stands in its place without being in the ledger goes first: the new meta file would vouch for it.
        """
        displaced = disk.move_aside(self._layout.shard(ref.source, name), aside)
        beside = self._layout.beside(ref.source, staged.number)
        try:
            files.write_meta(meta, beside, self._modes)
            os.rename(beside, self._layout.meta(ref.source, name))
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._layout.new_table(ref.source, staged.number), self._layout.table(ref.source, name))
            held = disk.publish(sealed.path, self._layout.shard(ref.source, name), sealed.stamp)
        except BaseException:
            disk.unlink_beside([beside, *self.beside(ref, name)])
            raise
        return Published(held, held.stamp), displaced

    def restore(self, ref: Ref, name: str, stamp: Stamp, aside: str) -> tuple[Held, bool]:
        """Publish a suspect shard; whether something else had to go."""
        place = self._layout.shard(ref.source, name)
        displaced = disk.move_aside(place, aside)
        return disk.publish(self._layout.suspect(ref.source, name), place, stamp), displaced

    def hold(self, ref: Ref, name: str, stamp: Stamp, *, indexed: bool, checked: bool) -> Held:
        """The daemon's own lease on a shard that is as it was published. Raises `lease.Busy` or `lease.Gone`."""
        place = self._layout.shard(ref.source, name)
        held = disk.hold(place, stamp)
        try:
            if not checked and not scan.is_intact(
                place, self._layout.meta(ref.source, name), held.stamp, look_at_meta=True
            ):
                raise lease.Gone(place)  # noqa: TRY301 - the lease ends in one place
            if indexed:
                Table(held.descriptor, self._layout.table(ref.source, name), anew=True)
        except StaleTable as cause:
            held.close()
            raise lease.Gone(str(cause)) from None
        except BaseException:
            held.close()
            raise
        return held

    def beside(self, ref: Ref, name: str) -> list[str]:
        """The meta file last: the start finds by it what was left."""
        return [self._layout.table(ref.source, name), self._layout.meta(ref.source, name)]

    def proves(self, ref: Ref, name: str, digest: Callable[[str], str]) -> bool:
        """Whether a suspect shard has the digest that its meta file says."""
        try:
            meta = files.read_meta(self._layout.meta(ref.source, name))
            if meta is None or meta.key != ref.key:
                return False
            return digest(self._layout.suspect(ref.source, name)) == meta.digest
        except OSError:
            return False

    def is_sound(self, ref: Ref, name: str, stamp: Stamp, digest: Callable[[str], str]) -> bool:
        """Whether a published shard has the digest that its meta file says; OSError where the daemon is short of something."""
        place, meta_place = self._layout.shard(ref.source, name), self._layout.meta(ref.source, name)
        meta = files.read_meta(meta_place)
        if meta is None or meta.key != ref.key or not scan.is_intact(place, meta_place, stamp):
            return False
        try:
            return digest(place) == meta.digest
        except OSError as cause:
            if cause.errno in SHORT:
                raise
            return False  # a sector that cannot be read is one that no reader can have

    def note_validators(self, ref: Ref, name: str, validators: Validators, beside: str) -> None:
        """The meta file says something else of the same bytes."""
        place = self._layout.meta(ref.source, name)
        meta = files.read_meta(place)
        if meta is not None:
            used = os.stat(place).st_mtime
            files.write_meta(replace(meta, validators=validators), beside, self._modes, used, durable=meta.synced)
            os.rename(beside, place)

    def prepare_durable(self, ref: Ref, name: str, stamp: Stamp, used: float, beside: str) -> int | None:
        """Sync a shard, and write the meta file that says so beside its place; the bytes that it takes, None when it went."""
        meta = files.read_meta(self._layout.meta(ref.source, name))
        blocks = disk.sync_shard(self._layout.shard(ref.source, name), stamp, meta.blocks) if meta is not None else None
        if meta is None or blocks is None:
            return None
        files.write_meta(replace(meta, synced=True, blocks=blocks), beside, self._modes, used, durable=True)
        return blocks

    def make_durable(self, ref: Ref, name: str, stamp: Stamp, beside: str) -> bool:
        """Put that meta file in its place, if the shard is what it was; whether it is."""
        meta_place = self._layout.meta(ref.source, name)
        try:
            if scan.is_intact(self._layout.shard(ref.source, name), meta_place, stamp):
                os.rename(beside, meta_place)
                return True
        finally:
            disk.unlink(beside)
        return False

    def note_uses(self, uses: list[tuple[Ref, str, float]]) -> None:
        """Last uses (Unix seconds) become the meta files' times."""
        for ref, name, used in uses:
            with contextlib.suppress(OSError):  # evicted meanwhile
                os.utime(self._layout.meta(ref.source, name), (used, used))
