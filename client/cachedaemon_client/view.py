"""What a client knows of its daemon: where the cache lies, which sources are direct, and whether locks reach it.

The daemon vouches for its cache in `daemon.json`. A client that sees another boot id, device or inode than the file
says (a virtual machine, a sandboxed runtime, an overlay) holds locks that the daemon's kernel does not know.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachedaemon_client.names import name_of
from cachedaemon_client.places import boot_id
from cachedaemon_client.wire import FORMAT


@dataclass(frozen=True)
class View:
    """One reading of the daemon's word."""

    folder: str
    """The cache directory as this process sees it."""
    foreign: str | None
    """The cache directory as the daemon names it, where that differs."""
    archives: dict[str, str] = field(default_factory=dict)
    direct: frozenset[str] = frozenset()
    """Sources whose shards may be leased without asking."""
    why_not: str | None = None
    """Why locks are not shared; None where they are."""

    def path_of(self, source: str, key: str) -> str:
        """Where the shard is published, for this process. ValueError for an impossible key."""
        return f"{self.folder}/shards/{source}/{name_of(key)}"

    def local(self, path: str) -> str:
        """A path of the daemon's, as this process sees it."""
        if self.foreign and path.startswith(self.foreign + "/"):
            return self.folder + path[len(self.foreign) :]
        return path


def from_hello(folder: str, hello: dict[str, Any]) -> View:
    """The view by an answer to `hello`, where the cache lies at `folder` for this process."""
    foreign = hello["cache_dir"] if hello["cache_dir"] != folder else None
    vouched = _vouched(folder)
    why_not = vouched if isinstance(vouched, str) else _not_shared(folder, vouched)
    archives = {name: one["archives"] for name, one in hello["sources"].items()}
    direct = frozenset(name for name, one in hello["sources"].items() if one["direct"])
    return View(folder, foreign, archives, direct if why_not is None else frozenset(), why_not)


def from_folder(folder: str, before: View | None = None) -> View | None:
    """The view by `<folder>/daemon.json` alone; None where only the daemon itself can say more."""
    vouched = _vouched(folder)
    if isinstance(vouched, str) or _not_shared(folder, vouched):
        return None
    foreign = before.foreign if before else None
    return View(folder, foreign, vouched.get("archives", {}), frozenset(vouched.get("direct", ())))


def _vouched(folder: str) -> dict[str, Any] | str:
    try:
        said = json.loads(Path(folder, "daemon.json").read_bytes())
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or str(cause)
        return f"the cache directory {folder} is not visible here (daemon.json: {reason}); set CACHEDAEMON_DIR to its place"
    return said if isinstance(said, dict) else f"the cache directory {folder} has a damaged daemon.json"


def _not_shared(folder: str, vouched: dict[str, Any]) -> str | None:
    try:
        seen = os.stat(folder)
    except OSError as cause:
        return f"the cache directory {folder} is not visible here: {cause.strerror}"
    if vouched.get("format") != FORMAT:
        return f"the cache directory {folder} has format {vouched.get('format')}, this client reads format {FORMAT}"
    if vouched.get("boot_id") != boot_id():
        return f"the cache directory {folder} belongs to a daemon of another boot or kernel: locks do not reach it"
    if (vouched.get("device"), vouched.get("inode")) != (seen.st_dev, seen.st_ino):
        return f"the cache directory {folder} is another folder here than for the daemon: locks do not reach it"
    return None
