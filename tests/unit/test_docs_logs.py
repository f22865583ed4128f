"""The page of the log names every event."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "log"}


def said() -> Iterator[tuple[str, str]]:
    """Where a line of the log is written, and its words with `…` for what differs."""
    for path in sorted((ROOT / "cachedaemon").rglob("*.py")):
        if "demo" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                of = node.func.value
                if isinstance(of, ast.Name) and of.id == "log":
                    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", re.sub(r"%[-.\d]*[a-z]", "…", texts[0])


def test_every_line_of_the_log_is_on_its_page() -> None:
    page = (ROOT / "docs/logs.md").read_text()
    lines = list(said())
    assert len(lines) > 20
    assert [(where, words) for where, words in lines if len(words) > 4 and words not in page] == []
