"""The cache directory while one daemon has it: taken into use, made anew when somebody removed it, let go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from cachedaemon.errors import StartError
from cachedaemon.model import Need
from cachedaemon.store import disk, removal, scan, start
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.scan import Found


@dataclass(frozen=True, slots=True)
class SourceMark:
    """A source as far as its shards on the disk depend on it."""

    name: str
    digest: str
    archives: str
    direct: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """What was there when the cache directory was taken into use."""

    found: list[Found]
    foreign: list[str]
    trash: list[tuple[str, Need]]
    """Leftovers that are still to be deleted."""
    warnings: list[str]


class Directory:
    """All of it blocks, and belongs in a thread."""

    def __init__(self, layout: Layout, modes: Modes) -> None:
        self.layout = layout
        self.modes = modes
        self.numbers: start.Numbers
        self._lock = -1

    def open(self, sources: Sequence[SourceMark]) -> Opened:
        """Lock it, clear what was left, set aside what is doubtful, read the rest. Raises `StartError`."""
        try:
            return self._open(sources)
        except OSError as cause:
            self.close()
            raise start.unusable(self.layout.root, cause) from cause
        except StartError:
            self.close()
            raise

    def _open(self, sources: Sequence[SourceMark]) -> Opened:
        start.make_root(self.layout.root, self.modes)
        warnings = start.check_kind(self.layout.root) + start.check_place(self.layout.root)
        self._lock = start.lock(self.layout)  # nothing is touched before: another daemon may own it
        start.make_folders(self.layout, self.modes)
        self.numbers = start.Numbers(self.layout)
        start.empty(self.layout, self.numbers)
        if start.is_doubtful(self.layout):
            count = start.set_suspects_aside(self.layout, self.numbers)
            if count:
                warnings.append(f"the machine was booted since: {count} shards are checked before they are served")
        for source in sources:
            if source.direct:
                start.unshadow(self.layout, source.name, self.numbers)
        gone = self._renew(sources)
        warnings += [f"source {name!r} was configured anew: what it brought goes" for name in _shards_of(gone)]
        seen = scan.scan(self.layout, [source.name for source in sources])
        for path in seen.orphans:
            disk.unlink(path)
        trash = [(path, removal.allocated(path)) for path in start.left_in_trash(self.layout)]
        return Opened(seen.found, seen.foreign, trash, warnings)

    def outdated(self, sources: Sequence[SourceMark]) -> list[SourceMark]:
        """Sources whose shards on the disk came by another configuration."""
        return [source for source in sources if start.mark_of(self.layout, source.name) != source.digest]

    def renew(self, sources: Sequence[SourceMark]) -> list[str]:
        """Have the folders of these sources, and in them what they brought; what went to trash."""
        return [went.path for went in self._renew(sources)]

    def _renew(self, sources: Sequence[SourceMark]) -> list[start.Went]:
        for source in sources:
            start.make_source(self.layout, self.modes, source.name)
        outdated = self.outdated(sources)
        try:
            gone = [
                went
                for source in outdated
                for went in start.renew_source(self.layout, source.name, source.digest, self.numbers)
            ]
            self._vouch(sources)
        except BaseException:
            for source in outdated:  # the configuration before stays in force: no mark may vouch for what it brings now
                start.unmark(self.layout, source.name)
            raise
        return gone

    def _vouch(self, sources: Sequence[SourceMark]) -> None:
        archives = {source.name: source.archives for source in sources}
        direct = [source.name for source in sources if source.direct]
        start.vouch(self.layout, self.modes, archives, direct, self.numbers)

    def is_whole(self, sources: Sequence[SourceMark]) -> bool:
        """Whether nobody removed the directory, or a part of what the daemon made in it."""
        return self._is_mine() and start.is_complete(self.layout, [source.name for source in sources])

    def remake(self) -> None:
        """Make anew what somebody removed; `renew` is next. `StartError` when another daemon has it now."""
        start.make_root(self.layout.root, self.modes)
        if not self._is_mine():
            fresh = start.lock(self.layout, wait=0.0)
            os.close(self._lock)
            self._lock = fresh
        start.make_folders(self.layout, self.modes)

    def _is_mine(self) -> bool:
        """Whether the lock that this daemon holds is still the one of the directory."""
        try:
            return os.path.samestat(os.stat(self.layout.lock), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let it go."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _shards_of(gone: list[start.Went]) -> list[str]:
    """Names of the sources of shards that went."""
    return list(dict.fromkeys(went.source for went in gone if went.is_shard))
