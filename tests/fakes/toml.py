"""Writing TOML: tables of strings, numbers, booleans, lists and inline tables, as configurations need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def dumps(tables: Mapping[str, object]) -> str:
    """The text; a mapping whose values are all mappings becomes sub-tables (`[sources.s]`)."""
    return "".join(_table((name,), body) for name, body in tables.items())


def _table(path: tuple[str, ...], body: object) -> str:
    if not isinstance(body, dict):
        return f"{json.dumps(path[-1])} = {_value(body)}\n"
    if body and all(isinstance(inner, dict) for inner in body.values()):
        return "".join(_table((*path, name), inner) for name, inner in body.items())
    lines = "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in body.items())
    return f"[{'.'.join(json.dumps(part) for part in path)}]\n{lines}\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value))
