"""The command line.

Exit status: 0 done, 1 failed, 2 usage, 3 no daemon at the socket; 1 and 3 say why in one line on standard error.
Commands start fast: what is heavy (the daemon, rich, the configuration) is imported by the commands that need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    _fill_standard_streams()
    try:
        from cachedaemon.cli.app import run  # noqa: PLC0415 - Ctrl-C while modules load is no traceback either

        run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _fill_standard_streams() -> None:
    """Where 0, 1 or 2 was closed by who started us, the next thing opened would have its number, and be taken for it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))
