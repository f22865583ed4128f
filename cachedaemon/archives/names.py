"""Names of members: one path below the folder, in one spelling, or refused.

Names are bytes here (UTF-8, or whatever a tar holds), since that is what the disk takes and what the table keeps.
"""

from __future__ import annotations

import re

from cachedaemon.errors import BadArchive

SEGMENT_MOST = 255
"""Bytes of one path segment, NAME_MAX of every Linux file system."""
PATH_MOST = 4095
"""Bytes of a whole path, PATH_MAX less its NUL."""
DEPTH_MOST = 200
"""Segments of a path: whoever deletes a tree holds a descriptor a level."""

_DRIVE = re.compile(rb"[A-Za-z]:[/\\]")


def bad(reason: str, name: bytes | None, cause: str) -> BadArchive:
    """The error for a member, or for the archive as a whole where `name` is None."""
    if name is None:
        return BadArchive(cause, reason=reason)
    shown = name[: PATH_MOST + 1].decode("utf-8", "replace")
    return BadArchive(f"member {shown!r}: {cause}", reason=reason, member=shown)


def clean(raw: bytes) -> bytes:
    """The path of a member: no `.` or empty segments, `b""` for the top folder itself.

    Raises BadArchive `path-escape` for absolute names, drive letters and `..`, `bad-name` for what no disk can hold.
    """
    if not raw:
        raise bad("bad-name", raw, "the name is empty")
    if b"\0" in raw:
        raise bad("bad-name", raw, "the name holds a NUL")
    if raw[0] == 0x2F or _DRIVE.match(raw):
        raise bad("path-escape", raw, "the name is absolute")
    segments = raw.split(b"/")
    if b".." in segments:
        raise bad("path-escape", raw, "the name has a '..' segment")
    if b"" in segments or b"." in segments:
        segments = [segment for segment in segments if segment not in (b"", b".")]
    _check_lengths(raw, segments)
    return b"/".join(segments)


def _check_lengths(raw: bytes, segments: list[bytes]) -> None:
    longest = max(map(len, segments), default=0)
    if longest > SEGMENT_MOST:
        raise bad("bad-name", raw, f"a path segment has {longest} bytes, allowed are {SEGMENT_MOST}")
    if len(raw) > PATH_MOST:
        raise bad("bad-name", raw, f"the name has {len(raw)} bytes, allowed are {PATH_MOST}")
    if len(segments) > DEPTH_MOST:
        raise bad("bad-name", raw, f"the name has {len(segments)} segments, allowed are {DEPTH_MOST}")


def check_target(name: bytes, target: bytes) -> None:
    """Whether a symbolic link's target can be one at all; where it leads is `catalog`'s question."""
    if not target or b"\0" in target or len(target) > PATH_MOST:
        raise bad("bad-name", name, "the link's target is empty, too long, or holds a NUL")
    if target[0] == 0x2F:
        raise bad("link-escape", name, "the link leads to an absolute path")
