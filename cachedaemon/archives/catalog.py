"""What an archive holds, checked as one tree: no two members at one path, no way out through links, within limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cachedaemon.archives.names import bad, check_target, clean
from cachedaemon.model import blocks

FILE, FOLDER, SYMLINK, HARDLINK = "f", "d", "l", "h"

_HOPS = 40  # links followed for one path, MAXSYMLINKS of Linux


class Extent(NamedTuple):
    """One piece of a sparse member: offset in the member, offset in the archive (or its stream), length."""

    at: int
    offset: int
    length: int


class Entry(NamedTuple):
    """One member. `offset` and `stored` say where its data lies, `size` how many bytes it has when read."""

    kind: str
    path: bytes
    offset: int = 0
    stored: int = 0
    size: int = 0
    crc: int | None = None
    method: int = 0
    target: bytes = b""
    extents: tuple[Extent, ...] = ()


class Bounds(NamedTuple):
    """How much one archive may hold: members (files, links and folders) and bytes of all members together."""

    members: int
    bytes: int


class Catalog:
    """All members of one archive. `add` checks each against those before it, `finish` the links among them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.entries: list[Entry] = []
        self._paths: dict[bytes, Entry | None] = {}  # None: a folder
        self._count = 0
        self.size = 0  # bytes of all regular files
        self.blocks = 0  # the same in whole blocks

    @property
    def inodes(self) -> int:
        """Files, links and folders, those included that only paths imply."""
        return len(self._paths)

    def add(self, entry: Entry) -> Entry:
        """Take one more member; raises BadArchive `name-conflict`, `link-escape`, `corrupt` or `limit`."""
        self._count += 1
        if self._count > self._bounds.members:
            raise bad("limit", entry.path, f"the archive has more than {self._bounds.members} members")
        if entry.kind == FOLDER:
            self._add_folder(entry)
            return entry
        if entry.path in self._paths or not entry.path:
            raise bad("name-conflict", entry.path, "another member has this path")
        self._add_parents(entry.path)
        if entry.kind != FILE:
            entry = self._checked_link(entry)
        self._paths[entry.path] = entry
        self.entries.append(entry)
        if entry.kind == FILE:
            self._count_bytes(entry)
        return entry

    def _count_bytes(self, entry: Entry) -> None:
        self.size += entry.size
        self.blocks += blocks(entry.size)
        if self.size > self._bounds.bytes:
            raise bad("limit", entry.path, f"the members have more than {self._bounds.bytes} bytes together")

    def _add_folder(self, entry: Entry) -> None:
        if not entry.path:
            return
        there = self._paths.get(entry.path)
        if there is not None:
            raise bad("name-conflict", entry.path, "a folder, and another member has this path")
        self._add_parents(entry.path)
        if entry.path not in self._paths:
            self._paths[entry.path] = None
            self.entries.append(entry)

    def _add_parents(self, path: bytes) -> None:
        cut = path.rfind(b"/")
        while cut > 0:
            parent = path[:cut]
            if parent in self._paths:
                self._check_parent(path, self._paths[parent])
                return
            if len(self._paths) >= 2 * self._bounds.members:
                raise bad("limit", path, f"the paths imply more than {self._bounds.members} folders")
            self._paths[parent] = None
            cut = path.rfind(b"/", 0, cut)

    @staticmethod
    def _check_parent(path: bytes, parent: Entry | None) -> None:
        if parent is None:
            return
        if parent.kind == SYMLINK:
            raise bad("link-escape", path, "it lies below a symbolic link")
        raise bad("name-conflict", path, "it lies below a member that is a file")

    def _checked_link(self, entry: Entry) -> Entry:
        if entry.kind == SYMLINK:
            check_target(entry.path, entry.target)
            return entry
        return self._checked_hard_link(entry)

    def _checked_hard_link(self, entry: Entry) -> Entry:
        """A hard link with its target cleaned and followed to the file itself."""
        if entry.target[:1] == b"/" or b".." in entry.target.split(b"/"):
            raise bad("link-escape", entry.path, "the hard link leads out of the archive")
        there = self._paths.get(clean(entry.target)) if entry.target else None
        if there is None:
            raise bad("corrupt", entry.path, "the hard link's target is not a file that came before it")
        if there.kind == SYMLINK:
            raise bad("unsupported", entry.path, "a hard link to a symbolic link")
        return entry._replace(target=there.target if there.kind == HARDLINK else there.path)

    def finish(self) -> None:
        """Follow every symbolic link; raises BadArchive `link-escape` where one leaves the folder or leads in circles."""
        for entry in self.entries:
            if entry.kind == SYMLINK:
                self.resolve(entry)

    def readable(self) -> Iterator[tuple[bytes, Entry]]:
        """Path and data of every member that can be read: regular files, and links that lead to one."""
        for entry in self.entries:
            found = entry if entry.kind == FILE else self.resolve(entry)
            if found is not None and found.kind == FILE:
                yield entry.path, found

    def resolve(self, entry: Entry) -> Entry | None:
        """The regular file that a member is or leads to; None for a folder, or for a link to nothing."""
        found: Entry | None = entry
        if entry.kind == SYMLINK:
            path = self._follow(entry)
            found = None if path is None else self._paths.get(path)
        if found is not None and found.kind == HARDLINK:
            found = self._paths[found.target]
        return found

    def _follow(self, link: Entry) -> bytes | None:
        """The path at which a link ends, walked segment by segment as the kernel does it.

        None where the walk goes on behind what is no folder, be it only by `..`, `.` or a last `/`: such a link leads to
        nothing (path_resolution(7)). It is walked to its end all the same, since it may lead out.
        """
        done = link.path.split(b"/")[:-1]
        todo = link.target.split(b"/")[::-1]
        hops, in_folder, lost = 1, True, False
        while todo:
            segment = todo.pop()
            lost = lost or not in_folder
            if segment in (b"", b"."):
                continue
            if segment == b"..":
                if not done:
                    raise bad("link-escape", link.path, "the link leads out of the archive")
                done.pop()
                in_folder = True
                continue
            done.append(segment)
            path = b"/".join(done)
            there = self._paths.get(path)
            in_folder = there is None and path in self._paths
            if there is not None and there.kind == SYMLINK:
                hops += 1
                if hops > _HOPS:
                    raise bad("link-escape", link.path, f"a loop, or a chain of more than {_HOPS} links")
                done.pop()
                in_folder = True
                todo.extend(there.target.split(b"/")[::-1])
        return None if lost else b"/".join(done)
