"""Taking a cache directory into use: its place, its lock, the boot it belongs to, and what was left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from pathlib import Path

from cachedaemon.errors import StartError
from cachedaemon.store.disk import read_meta
from cachedaemon.store.layout import FOLDERS, Layout, Modes
from cachedaemon_client.places import boot_id
from cachedaemon_client.wire import FORMAT

NETWORKED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "virtiofs"})
LOCK_WAIT = 5.0
"""Seconds that a start waits for the daemon before it to end."""


def prepare(layout: Layout, modes: Modes) -> list[str]:
    """Make the folders and try the file system; warnings. Raises `StartError` with the right cause."""
    kind = file_system(layout.root)
    if kind in NETWORKED:
        raise StartError(
            f"cache.dir = {str(layout.root)!r} lies on {kind}: locks need a local file system (ext4, xfs, tmpfs, ...)"
        )
    try:
        for folder in FOLDERS:
            _make_folder(layout.root / folder, modes, shared=folder not in ("staging", "trash", "suspect"))
        _try_locks(layout.root)
    except OSError as cause:
        raise StartError(f"cache.dir = {str(layout.root)!r} cannot be written: {cause.strerror}") from cause
    return [f"cache.dir lies on {kind}: whether locks hold there is not known"] if kind.startswith("fuse") else []


def make_root(root: Path, modes: Modes) -> None:
    """Make the cache directory where it is missing."""
    try:
        for parent in reversed([one for one in root.parents if not one.exists()]):
            parent.mkdir(exist_ok=True)
            parent.chmod(0o755)  # whatever the umask is: readers must be able to pass
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
            _make_folder(root, modes, shared=True)
        if not root.is_dir():
            raise StartError(f"cache.dir = {str(root)!r} is not a folder")
    except OSError as cause:
        raise StartError(f"cache.dir = {str(root)!r} cannot be made: {cause.strerror}") from cause


def _make_folder(path: Path, modes: Modes, *, shared: bool) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink():
        raise StartError(f"{path} is a symbolic link: links are not followed in the cache directory")
    if modes.group is not None:
        os.chown(path, -1, modes.group)
    path.chmod(modes.folder if shared else 0o700)


def _try_locks(root: Path) -> None:
    """Two descriptors of one file must exclude each other; on some file systems they do not."""
    with tempfile.TemporaryFile(dir=root / "staging") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(other)
    raise StartError(f"cache.dir = {str(root)!r}: flock does not work on this file system")


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


def lock(layout: Layout) -> int:
    """Lock the cache directory for this daemon, waiting 5 s for one that ends; the descriptor."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as cause:
        raise StartError(f"cache.dir = {str(layout.root)!r} cannot be written: {cause.strerror}") from cause
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StartError(f"another daemon (pid {holder}) uses the cache directory {layout.root}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def other_boot(layout: Layout) -> bool:
    """Whether the cache was last used under another boot of the machine."""
    try:
        said = json.loads(layout.vouch.read_bytes())
        return bool(said["boot_id"] != boot_id())
    except (OSError, ValueError, KeyError, TypeError):
        return (layout.root / "shards").is_dir() and any((layout.root / "shards").iterdir())


def vouch(layout: Layout, modes: Modes, archives: dict[str, str], direct: list[str]) -> None:
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
    beside = layout.root / "plans" / ".daemon.json"
    beside.write_text(json.dumps(said))
    if modes.group is not None:
        os.chown(beside, -1, modes.group)
    beside.chmod(modes.file | 0o200)
    beside.rename(layout.vouch)


def empty(layout: Layout, numbers: Numbers) -> None:
    """Move what a killed daemon left in staging and plans to trash."""
    for area in ("staging", "plans"):
        for entry in list(os.scandir(layout.root / area)):
            os.rename(entry.path, layout.trash(numbers.next()))


def left_in_trash(layout: Layout) -> list[str]:
    """What is still to be deleted."""
    return [entry.path for entry in os.scandir(layout.root / "trash")]


class Numbers:
    """Names for staging and trash that are not taken."""

    def __init__(self, layout: Layout) -> None:
        taken = [e.name for area in ("staging", "trash") for e in os.scandir(layout.root / area)]
        self._last = max((int(name) for name in taken if name.isdecimal()), default=0)

    def next(self) -> int:
        """One that was never used before."""
        self._last += 1
        return self._last


def set_suspects_aside(layout: Layout, numbers: Numbers) -> int:
    """After another boot: move every shard that is not known to be durable to `suspect/`; how many.

    One whose meta file was lost cannot be checked and goes to trash.
    """
    count = 0
    for source in list(os.scandir(layout.root / "shards")):
        if not source.is_dir(follow_symlinks=False):
            continue
        os.makedirs(layout.root / "suspect" / source.name, mode=0o700, exist_ok=True)
        for entry in list(os.scandir(source.path)):
            meta = read_meta(layout.meta(source.name, entry.name))
            if entry.is_symlink() or (meta is not None and meta.synced):
                continue
            lost = meta is None
            os.rename(entry.path, layout.trash(numbers.next()) if lost else layout.suspect(source.name, entry.name))
            count += not lost
    return count


def renew_source(layout: Layout, modes: Modes, source: str, digest: str, numbers: Numbers) -> int:
    """Make a source's folders; move its shards to trash when its url, archives or etl changed. How many went."""
    for folder in layout.source_folders(source):
        _make_folder(Path(folder), modes, shared="/suspect/" not in folder)
    mark = Path(layout.root, "meta", source, ".source")
    with contextlib.suppress(FileNotFoundError):
        if mark.read_text() == digest:
            return 0
    went = 0
    for area in ("shards", "suspect", "members", "meta"):
        for entry in list(os.scandir(layout.root / area / source)):
            os.rename(entry.path, layout.trash(numbers.next()))
            went += area in ("shards", "suspect")
    beside = Path(layout.beside(source, numbers.next()))
    beside.write_text(digest)
    beside.rename(mark)
    return went
