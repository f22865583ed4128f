"""A value that may be a secret: never shown, and read again from its file when that changes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachedaemon.config.values import open_regular
from cachedaemon.errors import ConfigError

_MOST = 64 << 10  # bytes of a secret's file; more is a wrong path
_LINE = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]+")
"""Nothing that would end or split a header line (RFC 9110, 5.5)."""
_LINES = re.compile("[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]+")


@dataclass(slots=True)
class _Read:
    """What was last read, and the file's identity then."""

    stamp: tuple[int, int, int, int] | None = None
    value: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Text given as it is, as `file:PATH` or as `env:NAME`. Equal when given alike."""

    spec: str
    environ: Mapping[str, str] = field(compare=False)
    _last: _Read = field(default_factory=_Read, compare=False)

    def __repr__(self) -> str:
        """Where the value comes from, never the value."""
        kind, _, where = self.spec.partition(":")
        return f"<secret {kind}:{where}>" if kind in ("file", "env") else "<secret>"

    @property
    def file(self) -> str | None:
        """The path of the file that it is read from, if any."""
        kind, _, where = self.spec.partition(":")
        return where if kind == "file" else None

    def value(self) -> str:
        """The text now, for a header. Reads the disk: call it in a thread.

        A file is read again when its inode, size or times differ. One that has gone since (a rotation under way)
        keeps its last value; ConfigError when there never was one, or when the text cannot go into a header.
        """
        return self._taken(_LINE, "has control characters or bytes that are not UTF-8")

    def document(self) -> str:
        """The text now, of several lines if need be, such as JSON; else as `value`."""
        return self._taken(_LINES, "is no text in UTF-8")

    def _taken(self, allowed: re.Pattern[str], fault: str) -> str:
        kind, _, where = self.spec.partition(":")
        text = self._of_file(Path(where)) if kind == "file" else self._of_environ(where) if kind == "env" else self.spec
        if not allowed.fullmatch(text):
            what = {"file": f"the file {where}", "env": f"the environment variable {where}"}.get(kind, "the value")
            msg = f"{what} is empty, or {fault}"
            raise ConfigError(msg)
        return text

    def _of_environ(self, name: str) -> str:
        if name not in self.environ:
            msg = f"the environment variable {name} is not set"
            raise ConfigError(msg)
        return self.environ[name]

    def _of_file(self, path: Path) -> str:
        last = self._last
        try:
            stat = os.stat(path)
            stamp = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stamp != last.stamp:
                last.value = _read(path)
                last.stamp = stamp
        except OSError as error:
            if last.stamp is None:
                msg = f"the file {path} cannot be read ({error.strerror})"
                raise ConfigError(msg) from None
        return last.value


def json_of(text: str) -> Any:
    """What a secret in JSON says; ValueError, which shows nothing of it, for what is none or nests without end."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        msg = "no JSON"
        raise ValueError(msg) from None


def _read(path: Path) -> str:
    with open_regular(path) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        msg = f"the file {path} has more than {_MOST} bytes"
        raise ConfigError(msg)
    return data.decode("utf-8", "surrogateescape").strip()
