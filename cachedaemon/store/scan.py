"""Reading the disk: what is published at start, and what somebody changed behind the daemon's back."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cachedaemon.model import Meta, Ref, Stamp
from cachedaemon.store.disk import stamp_of
from cachedaemon.store.files import fits, read_meta
from cachedaemon.store.layout import FILES, FOLDERS, Layout
from cachedaemon_client.names import key_of, name_of, unversioned


@dataclass(frozen=True, slots=True)
class Found:
    """A shard that was found at start."""

    ref: Ref
    name: str
    stamp: Stamp
    size: int
    blocks: int
    inodes: int
    used: float
    """Last use in Unix seconds, as its meta file's mtime says."""
    suspect: bool = False


@dataclass(slots=True)
class Scan:
    """What the cache directory holds."""

    found: list[Found] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Paths that are not the daemon's: left alone, and reported."""
    orphans: list[str] = field(default_factory=list)
    """Meta files and tables of shards that are not there, and such as were being written."""


def scan(layout: Layout, sources: Iterable[str]) -> Scan:
    """Look at everything once. Shards of sources that are not configured any more count and can be evicted too."""
    result = Scan()
    root = layout.root
    for entry in _entries(str(root)):
        if entry.name not in FOLDERS and entry.name not in FILES:
            result.foreign.append(entry.path)
    names = dict.fromkeys(
        [*sources, *(e.name for area in ("shards", "suspect", "meta") for e in _entries(f"{root}/{area}"))]
    )
    for source in names:
        _scan_source(layout, source, result)
    return result


def _scan_source(layout: Layout, source: str, result: Scan) -> None:
    for area in ("shards", "suspect"):
        if os.path.lexists(f"{layout.root}/{area}/{source}") and not _is_folder(f"{layout.root}/{area}/{source}"):
            result.foreign.append(f"{layout.root}/{area}/{source}")
            return
    used = {e.name[:-5]: e for e in _entries(f"{layout.root}/meta/{source}") if e.name.endswith(".json")}
    for area in ("meta", "members"):
        entries = _entries(f"{layout.root}/{area}/{source}")
        result.orphans += [
            e.path for e in entries if e.name.startswith("~") or (area == "members" and e.name not in used)
        ]
    for area in ("shards", "suspect"):
        for entry in _entries(f"{layout.root}/{area}/{source}"):
            found = _found(layout, source, entry, used.pop(entry.name, None), suspect=area == "suspect")
            if found is None:
                result.foreign.append(entry.path)
            else:
                result.found.append(found)
    for name in used:
        result.orphans += [layout.meta(source, name), layout.table(source, name)]


def _found(
    layout: Layout, source: str, entry: os.DirEntry[str], meta: os.DirEntry[str] | None, *, suspect: bool
) -> Found | None:
    """A shard with a meta file; its content is read only where the name does not say everything.

    Of a source that asks its origin again each version is one.
    """
    if meta is None or entry.is_symlink():
        return None
    seen = entry.stat(follow_symlinks=False)
    name = unversioned(entry.name)
    key, said = key_of(name), None
    if key is None or not stat.S_ISREG(seen.st_mode):
        said = read_meta(layout.meta(source, entry.name))
        key = said.key if said is not None and (stat.S_ISREG(seen.st_mode) or fits(said, seen)) else None
        if not key or name_of(key) != name:
            return None
    size, blocks, inodes = _extent(seen, said)
    used = meta.stat(follow_symlinks=False).st_mtime
    return Found(Ref(source, key), entry.name, stamp_of(seen), size, blocks, inodes, used, suspect)


def _extent(seen: os.stat_result, said: Meta | None) -> tuple[int, int, int]:
    if said is not None and stat.S_ISDIR(seen.st_mode):
        return said.size, said.blocks, said.inodes
    return seen.st_size, seen.st_blocks * 512, 3


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return


@dataclass(frozen=True, slots=True)
class Known:
    """A shard as the ledger has it, for a look in a thread."""

    ref: Ref
    path: str
    meta: str
    stamp: Stamp
    unread_meta: bool
    """Nobody has compared it with its meta file yet."""


def changed(known: Iterable[Known]) -> tuple[list[Ref], OSError | None]:
    """Shards that are not on the disk any more as they were published, and why some could not be looked at."""
    lost, failed = [], None
    for one in known:
        try:
            if not is_intact(one.path, one.meta, one.stamp, look_at_meta=one.unread_meta):
                lost.append(one.ref)
        except OSError as cause:
            failed = cause
    return lost, failed


def is_intact(path: str, meta: str, stamp: Stamp, *, look_at_meta: bool = False) -> bool:
    """Whether a shard is as it was published; `look_at_meta` compares its size with the meta file too.

    Raises OSError when the disk does not say: a shard that cannot be looked at is not known to be damaged.
    """
    try:
        seen = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    same = (seen.st_dev, seen.st_ino) == stamp[:2] if stat.S_ISDIR(seen.st_mode) else stamp_of(seen) == stamp
    said = read_meta(meta) if same and look_at_meta else None
    return same and (said is None or fits(said, seen))
