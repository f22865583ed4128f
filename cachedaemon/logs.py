"""Log lines on standard error: one a line, as `key=value` or as JSON objects; with a priority where the journal reads them.

A line says what it is about besides its words: the shard that stands among its arguments, and what `about` said of the task
that it comes from, so that all lines of one flight have its number.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from cachedaemon.errors import CacheDaemonError
from cachedaemon.model import Ref

_QUIET = frozenset({"missing", "bad_archive"})
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Of syslog(3); systemd reads it before a line (sd-daemon(3))."""
_UNSEEN = (*range(32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that a terminal takes as orders, or that end a line or turn the direction of writing."""
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSEEN}
_IN_TEXT = _ESCAPED | {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}
_IN_JSON = {code: f"\\u{code:04x}" for code in _UNSEEN if code >= 32}  # json itself escapes those below
_BARE = re.compile(r"[!#-<>-\[\]-~]+")
"""What needs no quotes: visible ASCII but quotes, backslashes and equals signs."""
_about: ContextVar[Mapping[str, object]] = ContextVar("about")


@contextmanager
def about(**what: object) -> Iterator[None]:
    """Lines of this block, and of tasks that are begun in it, say this too."""
    token = _about.set({**_about.get({}), **what})
    try:
        yield
    finally:
        _about.reset(token)


def _members(record: logging.LogRecord) -> dict[str, object]:
    """What a line says, in its order."""
    ref = next((one for one in record.args if isinstance(one, Ref)), None) if isinstance(record.args, tuple) else None
    said = {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
    return said | ({"source": ref.source, "key": ref.key} if ref is not None else {}) | dict(_about.get({}))


class _Lines(logging.Formatter):
    """`is_journal`: the reader knows the time, and wants the priority."""

    def __init__(self, *, is_journal: bool) -> None:
        super().__init__()
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        said = _members(record)
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        priority = f"<{_PRIORITY.get(str(said['level']), 6)}>" if self._is_journal else ""
        return priority + self._line(record.created, said)

    def _line(self, at: float, said: dict[str, object]) -> str:
        raise NotImplementedError


class _Json(_Lines):
    def _line(self, at: float, said: dict[str, object]) -> str:
        return json.dumps({"time": round(at, 3), **said}, ensure_ascii=False).translate(_IN_JSON)


class _Text(_Lines):
    def _line(self, at: float, said: dict[str, object]) -> str:
        del said["logger"]
        if not self._is_journal:
            whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
            said = {"time": f"{whole}.{int(at % 1 * 1000):03d}Z", **said}
        return " ".join(f"{name}={_value(value)}" for name, value in said.items())


def _value(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) else f'"{text.translate(_IN_TEXT)}"'


def tell_failure(log: logging.Logger, ref: Ref, cause: CacheDaemonError) -> None:
    """A shard did not come, for good: one line; a warning unless the origin's object is at fault or the daemon stops."""
    level = logging.INFO if cause.code in _QUIET else logging.DEBUG if cause.code == "stopping" else logging.WARNING
    why = ", ".join([cause.code, *cause.details().values()])
    log.log(level, "%s did not become local (%s): %s", ref, why, str(cause).removeprefix(f"{ref}: "))


def configure(form: str, level: str, *, is_journal: bool) -> None:
    """Log to standard error in this form, from this level on. In UTF-8 whatever the locale says, as JSON is (RFC 8259, 8.1)."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(is_journal=is_journal) if form == "json" else _Text(is_journal=is_journal))
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """From this level on; of libraries warnings at the most, since what they say at a lower one may name URLs."""
    number: int = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("cachedaemon").setLevel(number)
    logging.getLogger().setLevel(max(number, logging.WARNING))
