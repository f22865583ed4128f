"""What a cache directory holds, looked at from outside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

AREAS = ("shards", "suspect", "staging", "trash")


def walk(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Everything below `folder`, not following links; what vanishes meanwhile is left out."""
    found, folders = [], [folder]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found.append((Path(entry.path), status))
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
    return found


def blocks(*folders: Path) -> int:
    """Allocated bytes of the regular files below `folders`, each inode once."""
    inodes = {}
    for folder in folders:
        for _, status in walk(folder):
            if stat.S_ISREG(status.st_mode):
                inodes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


def usage(cache: Path) -> int:
    """Allocated bytes of shards, suspect, staging and trash: what a byte cap limits."""
    return blocks(*(cache / area for area in AREAS))


def published(cache: Path) -> list[str]:
    """`<source>/<name>` of every published shard."""
    return _entries(cache / "shards")


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on what is at `path`; FileNotFoundError when nothing is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def leased(cache: Path) -> list[str]:
    """`<source>/<name>` of every published shard that somebody holds a lock on; one that goes meanwhile is nobody's."""
    found = []
    for name in published(cache):
        with contextlib.suppress(FileNotFoundError):
            if is_locked(cache / "shards" / name):
                found.append(name)
    return found


def leftovers(cache: Path) -> list[str]:
    """Whatever lies in staging and trash, relative to the cache; folders that are empty count only below the first level."""
    found = []
    for area in ("staging", "trash"):
        for path, status in walk(cache / area):
            inner = path.relative_to(cache)
            if len(inner.parts) > 2 or not stat.S_ISDIR(status.st_mode):
                found.append(str(inner))
    return sorted(found)


def _entries(top: Path) -> list[str]:
    """`<folder>/<name>`, names of the two levels below `top`, hidden ones left out."""
    found = []
    for folder in _list(top):
        found += [f"{folder}/{name}" for name in _list(top / folder) if not name.startswith(".")]
    return sorted(found)


def _list(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def strays(cache: Path) -> list[str]:
    """Disagreements of shards, meta and member tables: one line each.

    A version of a revalidated source, `<name>@<8 hex digits>`, may share the meta of its name.
    """
    shards = set(published(cache)) | set(_entries(cache / "suspect"))
    metas = {name.removesuffix(".json") for name in _entries(cache / "meta")}
    names = {shard.partition("@")[0] for shard in shards}
    lines = [f"shard without meta: {s}" for s in shards if s not in metas and s.partition("@")[0] not in metas]
    lines += [f"meta without shard: {m}" for m in metas - shards - names]
    lines += [f"member table without shard: {t}" for t in set(_entries(cache / "members")) - shards - names]
    return sorted(lines)


def other_boot(cache: Path) -> None:
    """Make a stopped daemon's next start believe that the machine was booted meanwhile."""
    path = cache / "daemon.json"
    text = path.read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    forms = [form for form in (boot, boot.replace("-", "")) if form in text]
    if not forms:
        raise AssertionError(f"{path} does not hold this machine's boot id: {text}")
    other = str(uuid.uuid4())
    changed = text.replace(forms[0], other if "-" in forms[0] else other.replace("-", ""))
    json.loads(changed)
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_text(changed)
    path.chmod(mode & 0o7777)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a cache directory."""

    shards: int
    bytes: int


class Sampler:
    """Looks every `step` seconds; keeps the largest. A look during which an entry came, moved or went is thrown away.

    Such a look could count a shard in two places, or two shards that were never there together.
    """

    def __init__(self, cache: Path, step: float = 0.02) -> None:
        """Starts with the block."""
        self.cache, self.step = cache, step
        self.looks = self.thrown = 0
        self.most = Look(0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        """Sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """One last look, so that there is one."""
        self._stop.set()
        self._thread.join(30)
        self.look()

    def look(self) -> Look | None:
        """Look now; None when the tree changed meanwhile."""
        before = self._tree()
        look = Look(len(published(self.cache)), usage(self.cache))
        if before != self._tree():
            self.thrown += 1
            return None
        self.looks += 1
        self.most = Look(max(self.most.shards, look.shards), max(self.most.bytes, look.bytes))
        return look

    def _tree(self) -> list[tuple[Path, int, int]]:
        """Changes when an entry is made, renamed or removed.

        Not when a file grows: what was summed meanwhile is at most what is there at the end of the look.
        """
        rows = [row for area in AREAS for row in walk(self.cache / area)]
        return sorted((path, s.st_ino, s.st_mtime_ns if stat.S_ISDIR(s.st_mode) else 0) for path, s in rows)

    def _run(self) -> None:
        while not self._stop.wait(self.step):
            self.look()
