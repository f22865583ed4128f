"""What of the environment goes on to processes that read with somebody else's library, and who reads the log."""

from __future__ import annotations

import os
import sys

_OURS = ("CACHEDAEMON_", "LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_", "JOURNAL_STREAM", "PYTHON", "FSSPEC_")
"""Settings, which may hold secrets; what systemd says to the daemon; what would change how the process starts and reads."""


_PYTHON = {
    "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry),
    "PYTHONUTF8": "1",
}


def goes_to_journal(descriptor: int) -> bool:
    """Whether the journal reads what is written there (systemd.exec(5), $JOURNAL_STREAM: device and inode)."""
    seen = os.fstat(descriptor)
    return os.environ.get("JOURNAL_STREAM") == f"{seen.st_dev}:{seen.st_ino}"


def bare_environment() -> dict[str, str]:
    """Nothing but what Python needs, and where programs are."""
    return {**_PYTHON, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}


def whole_environment() -> dict[str, str]:
    """All that is not the daemon's: libraries look there for credentials, agents and other libraries' places."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**passed, **_PYTHON}
