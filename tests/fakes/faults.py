"""How a file server under test misbehaves: one small file that the test writes, and the server reads at each request."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Faults:
    """Nothing is wrong unless it is said here."""

    down: bool = False
    """Every connection is closed."""
    hang: bool = False
    """Nothing is answered."""
    bps: float = 0
    """Bytes per second of a transfer; 0: no limit."""
    cut: int | None = None
    """The next transfer ends after so many bytes, once."""
    refused: str = ""
    """The end of a name that may not be read."""

    @classmethod
    def read(cls, place: Path) -> Faults:
        return cls(**json.loads(place.read_text()))

    def write(self, place: Path) -> None:
        new = place.with_name(f"{place.name}.new")
        new.write_text(json.dumps(asdict(self)))
        new.rename(place)


def uncut(place: Path) -> None:
    """The cut has happened."""
    replace(Faults.read(place), cut=None).write(place)
