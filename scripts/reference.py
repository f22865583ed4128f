"""Writes docs/reference/ from the code: each setting, and each call of the API. `--check` writes nothing and fails where a page is stale.

.venv/bin/python scripts/reference.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from cachedaemon import errors
from cachedaemon.config import Settings, Source
from cachedaemon.server.api import ROUTES
from cachedaemon.server.openapi import document, meaning
from cachedaemon.server.page import ROUTES as LOOKED_AT
from cachedaemon.server.watch import ROUTES as WATCHED

FOLDER = Path(__file__).resolve().parent.parent / "docs/reference"
MADE = "<!-- Made from the code by scripts/reference.py (`make reference`): change it there. -->"
IMPOSSIBLE = object()
"""No setting takes it, so each says what it takes."""


def pages() -> dict[str, str]:
    """Names and texts of all pages."""
    return {"configuration.md": configuration(), "api.md": api()}


# --- settings


def configuration() -> str:
    """Every setting: what it means, its default, and what is allowed."""
    parts = [
        MADE,
        "# Reference of the settings",
        (
            "File, environment, command line: the later one wins. [Configuration](../configuration.md) says how each is written, and more\n"
            "about what settings do. In the environment a setting is `CACHEDAEMON_` and its name in capitals, with `__` for each dot:\n"
            "`CACHEDAEMON_CACHE__MAX_SHARDS`, `CACHEDAEMON_SOURCES__IMAGENET__URL`. What is marked *restart* takes force at the next\n"
            "start, the rest with a reload (SIGHUP) too."
        ),
    ]
    for section, field in Settings.model_fields.items():
        model: Any = Source if section == "sources" else field.annotation
        prefix = "sources.NAME" if section == "sources" else section
        head = "| setting | meaning | default | allowed | |\n|---|---|---|---|---|"
        parts += [f"## `{prefix}`", (model.__doc__ or "").partition("\n")[0], "\n".join([head, *_rows(prefix, model)])]
    return "\n\n".join(parts) + "\n"


def _rows(prefix: str, model: Any) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}"
        extra = field.json_schema_extra
        restart = "restart" if isinstance(extra, dict) and extra["restart"] else ""
        yield _row(f"`{path}`", field.description or "", _default(path, field), _allowed(field), restart)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(path, field.annotation)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells).rstrip() + " |"


def _default(path: str, field: FieldInfo) -> str:
    if path == "sources.NAME.url":
        return "this or `urls` is required"
    if field.is_required():
        return "[by user](../configuration.md)"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def _allowed(field: FieldInfo) -> str:
    """What the setting's own refusal says."""
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return "a table of the next ones"
    if Path in (field.annotation, *get_args(field.annotation)):
        return "a path"
    kind: Any = Annotated[field.annotation, *field.metadata]
    try:
        TypeAdapter(kind).validate_python(IMPOSSIBLE)
    except ValidationError as error:
        said = str(error.errors()[0].get("ctx", {}).get("error", ""))
        for word in ("allowed are ", "allowed is "):
            if word in said:
                return said.partition(word)[2]
    return "a table" if field.default == {} else ""


# --- the API


def api() -> str:
    """Every call: what it takes, what it answers, and with which errors; then the types."""
    made = document(ROUTES, WATCHED, LOOKED_AT)
    parts = [
        MADE,
        "# Reference of the API",
        (
            "HTTP/1.1 with JSON over the Unix socket:\n\n"
            "```\ncurl --unix-socket /run/cachedaemon/cachedaemon.sock http://localhost/v1/status\n```"
        ),
        (
            "`GET /v1/openapi.json` answers the same as OpenAPI 3.1, for generators. Members of a request that nobody knows are ignored. Every\n"
            "answer of the socket has the header `Cachedaemon-Generation`, which changes when what a client has read of the daemon may no longer\n"
            "hold; those with 429 and 503 have `Retry-After`. Any call may also answer 400 `bad_request` and 500 `internal`. Every call may be\n"
            "repeated. [The client](../client.md) has what Python needs."
        ),
        "## Calls",
    ]
    for path, calls in made["paths"].items():
        where = " and ".join("socket" if one["url"] == "http://localhost" else "port" for one in calls["servers"])
        parts += [_call(method, path, call, where) for method, call in calls.items() if method != "servers"]
    error = made["components"]["schemas"]["Error"]["properties"]["error"]
    parts += ["## Errors", 'An error answers `{"error": {...}}` with', _members(error), _codes_told()]
    parts += ["## Types", *(_type(name, one) for name, one in made["components"]["schemas"].items() if name != "Error")]
    return "\n\n".join(parts) + "\n"


def _call(method: str, path: str, call: Mapping[str, Any], where: str) -> str:
    said = [f"### `{method.upper()} {path}`", f"{call['summary']} On the {where}."]
    said += [call["description"]] if "description" in call else []
    if "requestBody" in call:
        said.append(f"Takes {_kind(call['requestBody']['content']['application/json']['schema'])}.")
    if rows := [_parameter(one) for one in call["parameters"]]:
        said.append("\n".join(["| parameter | in | type | |", "|---|---|---|---|", *rows]))
    said += [*_answers(call["responses"]), *_codes(call["responses"])]
    return "\n\n".join(said)


def _answers(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in responses.items():
        schemas = [one["schema"] for one in answer.get("content", {}).values()]
        if not any("allOf" in schema for schema in schemas):
            yield f"Answers {status}, {_content(answer)}."


def _content(answer: Mapping[str, Any]) -> str:
    for media, content in answer.get("content", {}).items():
        return _kind(content["schema"]) if media == "application/json" else f"`{media}`"
    return "nothing"


def _codes(responses: Mapping[str, Any]) -> Iterator[str]:
    """Errors by status, but for those of every call."""
    found = []
    for status, answer in responses.items():
        for content in answer.get("content", {}).values():
            if "allOf" in content["schema"] and status not in ("400", "500"):
                codes = content["schema"]["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]
                found.append(f"{status} " + ", ".join(f"`{code}`" for code in codes))
    if found:
        yield "Errors: " + "; ".join(found) + "."


def _parameter(one: Mapping[str, Any]) -> str:
    needed = "required" if one["required"] else ""
    return _row(
        f"`{one['name']}`",
        one["in"],
        _kind(one["schema"]),
        "; ".join(filter(None, [needed, one["schema"].get("description")])),
    )


def _codes_told() -> str:
    """All codes, and when each comes. Of classes with one code the base comes first, and says it."""
    kinds: dict[str, type[errors.CacheDaemonError]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.CacheDaemonError):
            kinds.setdefault(kind.code, kind)
    rows = [
        _row(f"`{code}`", str(kind.status), "yes" if kind.retryable else "", meaning(kind))
        for code, kind in sorted(kinds.items(), key=lambda one: (one[1].status, one[0]))
        if kind not in (errors.ConfigError, errors.StartError)
    ]
    return "\n".join(["| code | status | asking again can help | when |", "|---|---|---|---|", *rows])


def _type(name: str, schema: Mapping[str, Any]) -> str:
    return "\n\n".join([f"### {name}", *([schema["description"]] if "description" in schema else []), _members(schema)])


def _members(schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        _row(
            f"`{name}`",
            _kind(one),
            _presence(one, needed=name in needed),
            one.get("description", "").replace("\n", " "),
        )
        for name, one in schema["properties"].items()
    ]
    return "\n".join(["| member | type | | |", "|---|---|---|---|", *rows])


def _presence(schema: Mapping[str, Any], *, needed: bool) -> str:
    if needed:
        return ""
    return f"default {json.dumps(schema['default'])}" if schema.get("default") is not None else "optional"


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in few words."""
    match schema:
        case {"$ref": where}:
            name = where.rpartition("/")[2]
            said = f"[{name}](#{name.lower()})"
        case {"anyOf": kinds}:
            said = " or ".join(map(_kind, kinds))
        case {"enum": words}:
            said = ", ".join(f"`{word}`" for word in words)
        case {"prefixItems": items}:
            said = "[" + ", ".join(map(_kind, items)) + "]"
        case {"type": "array", "items": item}:
            said = f"array of {_kind(item)}"
        case {"additionalProperties": {} as values}:
            said = f"object of {_kind(values)}"
        case _:
            said = str(schema.get("type", "any")) + _bounds(schema)
    return said


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "from {:g}", "maximum": "to {:g}", "pattern": "`{}`", "maxLength": "of at most {} characters"}
    said = [form.format(schema[name]) for name, form in words.items() if name in schema]
    return " " + " ".join(said) if said else ""


def main() -> int:
    """Exit status."""
    stale = [name for name, text in pages().items() if not _is_written(name, text)]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is stale: make reference")
        return bool(stale)
    for name in stale:
        (FOLDER / name).write_text(pages()[name])
    return 0


def _is_written(name: str, text: str) -> bool:
    return (FOLDER / name).exists() and (FOLDER / name).read_text() == text


if __name__ == "__main__":
    sys.exit(main())
