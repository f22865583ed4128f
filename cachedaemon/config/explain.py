"""A refused configuration, in lines that a person can act on: the key's path, the value, what is allowed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from cachedaemon.config.settings import Settings, Source
from cachedaemon.config.urls import redacted
from cachedaemon.config.values import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Keys = tuple[str, ...]

_URLS = ("url", "proxy", "endpoint")
_SECRETS = ("headers", "credentials")
_LONGEST = 120  # characters of a value in a message


def explain(error: ValidationError, label: Mapping[Keys, str]) -> Iterator[str]:
    """One line per problem; `label` says of keys that were not in the file where they came from."""
    for detail in error.errors():
        keys = tuple(str(key) for key in detail["loc"] if key != "[key]")
        origin = label.get(keys) or next((label[k] for k in label if k[: len(keys)] == keys), "")
        yield _line(".".join(keys)) + (f" ({_line(origin)})" if origin else "") + ": " + _what(detail, keys)


def _line(text: str) -> str:
    """Names come from files and the environment too: a newline in one must not look like the next problem."""
    return text if text.isprintable() else ascii(text)


def _what(detail: ErrorDetails, keys: Keys) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown(keys)
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        cause = _line(str(detail["ctx"]["error"]))
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        cause = "allowed is a table"
    else:
        cause = detail["msg"]
    if detail["loc"][-1] == "[key]":
        return f"{keys[-1]!r} is no good name: {cause}"
    return f"{shown(keys, detail['input'])} is refused: {cause}"


def shown(keys: Keys, value: object) -> str:
    """The value as a message may show it, on one line."""
    if any(key in _SECRETS for key in keys[2:3]):
        return "its value"
    is_url = keys[0] == "sources" and keys[-1] in _URLS and len(keys) == 3
    if is_url or (isinstance(value, str) and "://" in value):  # what was pasted into a wrong place may be signed too
        text = redacted(value)
    elif isinstance(value, dict | list) or (keys[0] == "sources" and len(keys) < 3):
        return kind_of(value)  # it may hold secrets
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _unknown(keys: Keys) -> str:
    """The key's value is not shown: under a wrong name it may be a secret."""
    names = list(_fields(keys[:-1]))
    near = difflib.get_close_matches(keys[-1], names, n=1)
    hint = f"did you mean {'.'.join((*keys[:-1], near[0]))}? " if near else ""
    return f"unknown key; {hint}allowed are {', '.join(names)}"


def _fields(keys: Keys) -> Mapping[str, Any]:
    """Fields of the table that stands at these keys."""
    if keys[:1] == ("sources",):
        return Source.model_fields
    model: type[BaseModel] = Settings
    for key in keys:
        annotation = model.model_fields[key].annotation
        found = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in found if issubclass(kind, BaseModel))
    return model.model_fields
