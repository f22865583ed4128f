"""Each line of the threat model names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/security.md"


def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 40
    assert [(path, name) for path, name in named if name not in functions_of(ROOT / path)] == []


def test_every_claim_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    claims = [row for row in rows[rows.index("| claim | test |") :] if row != "| claim | test |"]
    assert len(claims) > 30
    assert [row for row in claims if "`tests/" not in row] == []
