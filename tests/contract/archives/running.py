"""Runs the worker's jobs in this process, where only `BadArchive` may come out, and looks at what they made."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cachedaemon.archives import jobs, kind_of
from cachedaemon.archives.catalog import Bounds
from cachedaemon.archives.tree import Modes
from cachedaemon.errors import BadArchive
from cachedaemon.model import Stamp
from cachedaemon_client.members import MemberReader

ODD = Path(__file__).parents[2] / "data" / "odd-archives"
EXPECTED: Mapping[str, Any] = json.loads((ODD / "expected.json").read_text())
BOUNDS = Bounds(1_000_000, 1 << 30)
MODES = Modes(0o440, 0o750)


def stamp(path: Path) -> Stamp:
    """As the store would take it."""
    found = path.stat()
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def index(archive: Path, table: Path, *, verify: bool = True, bounds: Bounds = BOUNDS) -> int:
    """Write the member table; returns the number of members."""
    kind, seen = kind_of(archive.name), stamp(archive)
    assert kind is not None
    told = (seen.inode, seen.size, seen.mtime_ns, verify, bounds)
    done = jobs.index(jobs.Index(kind, str(archive), str(table), *told))
    assert isinstance(done["members"], int)
    return done["members"]


def unpack(archive: Path, folder: Path, *, bounds: Bounds = BOUNDS) -> tuple[dict[str, object], list[tuple[int, int]]]:
    """Unpack; returns the result and what room was asked for."""
    kind = kind_of(archive.name)
    assert kind is not None
    asked: list[tuple[int, int]] = []
    job = jobs.Unpack(kind, str(archive), str(folder), MODES, bounds)
    return jobs.unpack(job, lambda size, inodes: asked.append((size, inodes))), asked


def refusal(archive: Path, place: Path, *, bounds: Bounds = BOUNDS) -> tuple[str, str]:
    """The reasons of both ways of reading an archive that must be refused; "ok" for one that is not."""
    reasons = ["ok", "ok"]
    with refused(reasons, 0):
        index(archive, place / "table", bounds=bounds)
    with refused(reasons, 1):
        unpack(archive, place / "folder", bounds=bounds)
    return reasons[0], reasons[1]


@contextlib.contextmanager
def refused(reasons: list[str], at: int) -> Iterator[None]:
    """Note the reason; anything but BadArchive goes on and fails the test."""
    try:
        yield
    except BadArchive as error:
        reasons[at] = error.reason


@contextlib.contextmanager
def reader(archive: Path, table: Path) -> Iterator[MemberReader]:
    """A reader of an archive whose table is written."""
    fd = os.open(archive, os.O_RDONLY)
    try:
        found = MemberReader(fd, str(archive), table)
        yield found
        found.close()
    finally:
        os.close(fd)


def files(folder: Path) -> dict[str, bytes]:
    """Regular files of a folder, links followed, by path."""
    found = {}
    for at, _, names in os.walk(os.fsencode(folder)):
        for name in names:
            path = os.path.join(at, name)
            relative = os.fsdecode(os.path.relpath(path, os.fsencode(folder)))
            found[relative] = Path(os.fsdecode(path)).read_bytes()
    return found


def zip_of(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A plain zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def tar_of(*entries: tarfile.TarInfo | tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of files given as (name, content), and of whatever else as TarInfo."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return buffer.getvalue()


def link(name: str, target: str, *, hard: bool = False) -> tarfile.TarInfo:
    """A link for `tar_of`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target
    return info
