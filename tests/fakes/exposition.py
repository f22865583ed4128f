"""Reading Prometheus' text format (exposition format 0.0.4)."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels; ValueError on a line that is none, or a sample given twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"no sample: {line}")
        labels = frozenset((name, _plain(value)) for name, value in _LABEL.findall(match[2] or ""))
        if (match[1], labels) in found:
            raise ValueError(f"given twice: {line}")
        found[match[1], labels] = float(match[3])
    return found


def _plain(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], value)
