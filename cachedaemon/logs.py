"""Log lines on standard error: text, or JSON objects."""

from __future__ import annotations

import json
import logging
import sys
import time

from cachedaemon.errors import CacheDaemonError
from cachedaemon.model import Ref

_QUIET = frozenset({"missing", "bad_archive"})
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160), 0x2028, 0x2029)}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """A message is one line, whatever a key or the name of a member holds."""
        return super().formatMessage(record).translate(_CONTROL)

    def __init__(self) -> None:
        super().__init__("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")


def tell_failure(log: logging.Logger, ref: Ref, cause: CacheDaemonError) -> None:
    """A shard did not come, for good: one line; a warning unless the origin's object is at fault or the daemon stops."""
    level = logging.INFO if cause.code in _QUIET else logging.DEBUG if cause.code == "stopping" else logging.WARNING
    why = ", ".join([cause.code, *cause.details().values()])
    log.log(level, "%s did not become local (%s): %s", ref, why, str(cause).removeprefix(f"{ref}: "))


def configure(form: str, level: str) -> None:
    """Log to standard error in this form, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
