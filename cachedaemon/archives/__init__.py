"""Archives: checked completely, then read in place through a member table or unpacked into a private folder.

All parsing happens in a process of its own (`worker`), driven from asyncio by `workers.Workers`. This module stays
free of imports, because every start of that process pays for them.
"""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["zip", "tar", "tar.gz", "tar.zst"]

REASONS: Final = (
    "path-escape",
    "link-escape",
    "special-file",
    "bad-name",
    "name-conflict",
    "encrypted",
    "unsupported",
    "corrupt",
    "truncated",
    "overlap",
    "not-an-archive",
    "limit",
)
"""Every `reason` that a `BadArchive` can have."""

_SUFFIXES: Final[dict[str, Kind]] = {
    ".zip": "zip",
    ".tar": "tar",
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
}


def kind_of(key: str) -> Kind | None:
    """What kind of archive a key names, by its suffix in any case; None for everything else."""
    lower = key.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix)), None)
