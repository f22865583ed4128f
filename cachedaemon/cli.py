"""The command line."""

from __future__ import annotations

import os
import sys

from cachedaemon.config import load
from cachedaemon.daemon import run


def main() -> None:
    """Serve with the configuration that is named (the other commands follow)."""
    path = sys.argv[sys.argv.index("--config") + 1] if "--config" in sys.argv else None
    run(load(path, os.environ, {}), lambda: load(path, os.environ, {}))
