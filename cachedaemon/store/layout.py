"""Where everything lies below the cache directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("shards", "meta", "members", "staging", "suspect", "plans", "trash")
FILES = ("daemon.lock", "daemon.json")


@dataclass(frozen=True, slots=True)
class Modes:
    """Modes of what is published, and the group it belongs to (None: the daemon's own)."""

    file: int
    folder: int
    group: int | None

    @classmethod
    def for_group(cls, group: int | None) -> Modes:
        """Readable for the group; for everybody where no group is named."""
        return cls(0o440, 0o750, group) if group is not None else cls(0o444, 0o755, None)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths, as text: they are made for every call."""

    root: Path

    @property
    def lock(self) -> Path:
        """Exclusively locked by the daemon as long as it runs."""
        return self.root / "daemon.lock"

    @property
    def vouch(self) -> Path:
        """What the daemon vouches for, for clients."""
        return self.root / "daemon.json"

    def shard(self, source: str, name: str) -> str:
        """Published."""
        return f"{self.root}/shards/{source}/{name}"

    def suspect(self, source: str, name: str) -> str:
        """To be checked after an unclean boot."""
        return f"{self.root}/suspect/{source}/{name}"

    def meta(self, source: str, name: str) -> str:
        """Its mtime is the shard's last use."""
        return f"{self.root}/meta/{source}/{name}.json"

    def table(self, source: str, name: str) -> str:
        """Member table of an archive."""
        return f"{self.root}/members/{source}/{name}"

    def beside(self, source: str, number: int) -> str:
        """A meta file that is being written; no shard's name begins so."""
        return f"{self.root}/meta/{source}/~{number}"

    def new_table(self, source: str, number: int) -> str:
        """A member table that is being written. It is not in staging, whose bytes are counted."""
        return f"{self.root}/members/{source}/~{number}"

    def staging(self, number: int) -> str:
        """A folder for one transfer."""
        return f"{self.root}/staging/{number}"

    def trash(self, number: int) -> str:
        """A place for one shard that goes."""
        return f"{self.root}/trash/{number}"

    def plan(self, name: str) -> str:
        """The file that a plan's owner holds."""
        return f"{self.root}/plans/{name}"

    def source_folders(self, source: str) -> list[str]:
        """The folders of one source."""
        return [f"{self.root}/{area}/{source}" for area in ("shards", "meta", "members", "suspect")]
