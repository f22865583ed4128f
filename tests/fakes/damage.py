"""Damage that only a digest shows."""

from __future__ import annotations

import os
from pathlib import Path


def spoil(path: Path, at: int = 100) -> None:
    """Other bytes in the file, which keeps its inode, size, mode and times."""
    seen = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    path.chmod(seen.st_mode)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
