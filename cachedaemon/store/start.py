"""Taking a cache directory into use: its place, its lock, the boot it belongs to, and what was left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cachedaemon import guarded
from cachedaemon.errors import StartError
from cachedaemon.store import disk, files
from cachedaemon.store.layout import FOLDERS, Layout, Modes
from cachedaemon_client.names import unversioned
from cachedaemon_client.places import boot_id
from cachedaemon_client.wire import FORMAT

NETWORKED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "virtiofs"})
LOCK_WAIT = 5.0
"""Seconds that a start waits for the daemon before it to end."""


def unusable(root: Path, cause: OSError) -> StartError:
    """The cache directory cannot be used, and why."""
    where = f" ({cause.filename})" if cause.filename not in (None, str(root)) else ""
    return StartError(f"cache.dir = {str(root)!r} cannot be used: {cause.strerror or cause}{where}")


# ---- its place


def make_root(root: Path, modes: Modes) -> None:
    """Make the cache directory where it is missing."""
    try:
        guarded.make_way(root, _setting(root))
        if not root.exists():
            guarded.make_folder(root, modes.folder, modes.group, _setting(root))
    except OSError as cause:
        raise StartError(f"cache.dir = {str(root)!r} cannot be made: {cause.strerror}") from cause
    if not root.is_dir():
        raise StartError(f"cache.dir = {str(root)!r} is not a folder")


def check_place(root: Path) -> list[str]:
    """Refuse a cache directory that is another user's; warnings of who else could put one in its place."""
    guarded.refuse_others(root, os.stat(root), _setting(root))
    return guarded.doubts(root, _setting(root))


def _setting(root: Path) -> str:
    return f"cache.dir = {str(root)!r}"


def check_kind(root: Path) -> list[str]:
    """Refuse a network file system, where locks do not reach or are slow; warnings about others."""
    kind = file_system(root)
    if kind in NETWORKED:
        raise StartError(
            f"cache.dir = {str(root)!r} lies on {kind}: locks need a local file system (ext4, xfs, tmpfs, ...)"
        )
    return [f"cache.dir lies on {kind}: whether locks hold there is not known"] if kind.startswith("fuse") else []


def file_system(path: Path) -> str:
    """The type of the file system that `path` lies on, as /proc/self/mountinfo names it (proc_pid_mountinfo(5))."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split(" ")
            if fields[2] == wanted and "-" in fields:
                return fields[fields.index("-") + 1]
    return "unknown"


# ---- its lock


def lock(layout: Layout, *, wait: float = LOCK_WAIT) -> int:
    """Lock the cache directory for this daemon, waiting `wait` seconds for one that ends; the descriptor."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        guarded.refuse_others(layout.lock, os.fstat(descriptor), _setting(layout.root))
        _take(descriptor, layout.root, time.monotonic() + wait)
        _try_locks(layout)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_taken(layout: Layout) -> None:
    """`StartError` when another daemon has the cache directory now; nothing is made, and nothing waited for."""
    with contextlib.suppress(OSError):
        descriptor = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(descriptor, layout.root) from None
        finally:
            os.close(descriptor)


def _take(descriptor: int, root: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _taken(descriptor, root) from None
            time.sleep(0.05)
        else:
            return


def _taken(descriptor: int, root: Path) -> StartError:
    holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
    return StartError(f"another daemon (pid {holder}) uses the cache directory {root}")


def _try_locks(layout: Layout) -> None:
    """Two descriptors of one file must exclude each other; on some file systems they do not."""
    other = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(other)
    raise StartError(f"cache.dir = {str(layout.root)!r}: flock does not work on this file system")


# ---- its folders


def make_folders(layout: Layout, modes: Modes) -> None:
    """The folders that every cache directory has."""
    for folder in FOLDERS:
        _make_folder(f"{layout.root}/{folder}", modes, shared=folder not in ("staging", "trash", "suspect"))


def make_source(layout: Layout, modes: Modes, source: str) -> None:
    """The folders of one source."""
    for folder in layout.source_folders(source):
        _make_folder(folder, modes, shared="/suspect/" not in folder)


def _make_folder(path: str, modes: Modes, *, shared: bool) -> None:
    guarded.make_folder(path, modes.folder if shared else 0o700, modes.group, "cache.dir")


def is_complete(layout: Layout, sources: Iterable[str]) -> bool:
    """Whether nothing was removed that the daemon makes at its start."""
    wanted = [str(layout.vouch), *(f"{layout.root}/{folder}" for folder in FOLDERS)]
    wanted += [folder for source in sources for folder in layout.source_folders(source)]
    return all(os.path.lexists(path) for path in wanted)


# ---- what it says of itself


def is_doubtful(layout: Layout) -> bool:
    """Whether shards may be other than they were published: another boot, another format, or nobody says.

    OSError when the disk fails for a moment, which says nothing of the shards.
    """
    try:
        said = json.loads(files.read_regular(str(layout.vouch)))
        return bool(said["boot_id"] != boot_id() or said["format"] != FORMAT)
    except OSError as cause:
        if cause.errno in files.PASSING:
            raise
        return True
    except (ValueError, KeyError, TypeError):
        return True


def vouch(layout: Layout, modes: Modes, archives: dict[str, str], direct: list[str], numbers: Numbers) -> None:
    """Write `daemon.json`: from now on clients may lease without asking."""
    seen = os.stat(layout.root)
    said = {
        "format": FORMAT,
        "boot_id": boot_id(),
        "device": seen.st_dev,
        "inode": seen.st_ino,
        "direct": direct,
        "archives": archives,
    }
    files.replace_file(str(layout.vouch), json.dumps(said), layout.staging(numbers.next()), modes)


def mark_of(layout: Layout, source: str) -> str | None:
    """The digest of the configuration that a source's shards came by; None where it has none."""
    try:
        return files.read_regular(_mark(layout, source)).decode(errors="replace")
    except FileNotFoundError:
        return None


def mark(layout: Layout, source: str, digest: str, numbers: Numbers) -> None:
    """From now on its shards come by this configuration."""
    files.replace_file(_mark(layout, source), digest, layout.staging(numbers.next()), Modes(0o600, 0o700, None))


def unmark(layout: Layout, source: str) -> None:
    """By which configuration its shards come is not known: the next start, or reload, lets them go."""
    with contextlib.suppress(OSError):
        disk.unlink(_mark(layout, source))


def _mark(layout: Layout, source: str) -> str:
    return f"{layout.root}/meta/{source}/.source"


# ---- what was left behind


class Numbers:
    """Names for staging and trash that are not taken."""

    def __init__(self, layout: Layout) -> None:
        taken = [e.name for area in ("staging", "trash") for e in os.scandir(layout.root / area)]
        self._last = max((int(name) for name in taken if name.isdecimal()), default=0)

    def next(self) -> int:
        """One that was never used before."""
        self._last += 1
        return self._last


def empty(layout: Layout, numbers: Numbers) -> None:
    """Move what a killed daemon left in staging and plans to trash."""
    for area in ("staging", "plans"):
        for entry in list(os.scandir(layout.root / area)):
            os.rename(entry.path, layout.trash(numbers.next()))


def left_in_trash(layout: Layout) -> list[str]:
    """What is still to be deleted."""
    return [entry.path for entry in os.scandir(layout.root / "trash")]


def set_suspects_aside(layout: Layout, numbers: Numbers) -> int:
    """After another boot: move every shard that is not known to be durable to `suspect/`; how many.

    One whose meta file was lost cannot be checked and goes to trash.
    """
    count = 0
    for source in list(os.scandir(layout.root / "shards")):
        if source.is_dir(follow_symlinks=False):
            os.makedirs(layout.root / "suspect" / source.name, mode=0o700, exist_ok=True)
            count += sum(_set_aside(layout, source.name, entry, numbers) for entry in list(os.scandir(source.path)))
    return count


def _set_aside(layout: Layout, source: str, entry: os.DirEntry[str], numbers: Numbers) -> bool:
    meta = files.read_meta(layout.meta(source, entry.name))
    if entry.is_symlink() or (meta is not None and meta.synced):
        return False
    if meta is None:
        os.rename(entry.path, layout.trash(numbers.next()))
        return False
    place = layout.suspect(source, entry.name)
    with contextlib.suppress(FileNotFoundError):  # one of an earlier boot, which was fetched again since
        os.rename(place, layout.trash(numbers.next()))
    os.rename(entry.path, place)
    return True


def unshadow(layout: Layout, source: str, numbers: Numbers) -> None:
    """Move away earlier versions that lie where readers look without asking: this source asked its origin again before."""
    folder = layout.shard(source, "")
    for entry in list(os.scandir(folder)) if os.path.isdir(folder) else ():
        place = layout.shard(source, unversioned(entry.name))
        if unversioned(entry.name) == entry.name or not os.path.lexists(place):
            continue
        if os.lstat(place).st_mtime_ns < entry.stat(follow_symlinks=False).st_mtime_ns:
            disk.move_aside(place, layout.trash(numbers.next()))


class Went(NamedTuple):
    """What was moved to trash, and of which source it is."""

    path: str
    source: str
    is_shard: bool


def renew_source(layout: Layout, source: str, digest: str, numbers: Numbers) -> list[Went]:
    """Move a source's shards to trash, since its url, archives or etl changed; the shards first, the mark last."""
    gone = []
    for area in ("shards", "suspect", "members", "meta"):
        for entry in list(os.scandir(layout.root / area / source)):
            if entry.name != ".source":
                gone.append(Went(layout.trash(numbers.next()), source, area in ("shards", "suspect")))
                disk.move_aside(entry.path, gone[-1].path)
    mark(layout, source, digest, numbers)
    return gone
