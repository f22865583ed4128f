"""The API's description (OpenAPI 3.1), generated from the tables of routes, the types of bodies and answers, and the errors."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from cachedaemon import __version__, errors
from cachedaemon.archives import REASONS
from cachedaemon.server.calls import CALLS, JSON, Call, Errors, Schema

Route = tuple[str, str, Any]

SOCKET: Schema = {"url": "http://localhost", "description": "over the Unix socket, `server.socket`"}
PORT: Schema = {"url": "http://127.0.0.1:9464", "description": "the listener of `server.http`"}
_ALWAYS: Errors = (errors.BadRequest, errors.CacheDaemonError)
"""A request may be none, and the daemon may have a fault."""
_GENERATION: Schema = {
    "description": "changes when what a client has read of the daemon may no longer hold",
    "required": True,
    "schema": {"type": "string"},
}
_RETRY_AFTER: Schema = {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}
_PLACES: Mapping[str, Schema] = {
    "id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},  # as `plans.is_plan_id` has it
    "job": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}


@dataclass(frozen=True)
class _Listener:
    """Where calls are answered, and what every answer there has."""

    servers: list[Schema]
    errors: Errors = ()
    has_generation: bool = False


_SOCKET_ALONE = _Listener([SOCKET], has_generation=True)
_BOTH = _Listener([SOCKET, PORT], (errors.Forbidden,))  # the port answers to its own names only
_PORT_ALONE = _Listener([PORT], (errors.Forbidden,))


def document(api: Iterable[Route], probes: Iterable[Route], page: Iterable[Route]) -> dict[str, Any]:
    """The whole description: what answers on the socket, on both listeners, and on the one on TCP alone."""
    schemas: dict[str, Any] = {"Error": _error()}
    paths: dict[str, dict[str, Any]] = {}
    for routes, listener in ((api, _SOCKET_ALONE), (probes, _BOTH), (page, _PORT_ALONE)):
        for method, path, handler in routes:
            operation = _operation(CALLS[method, path], path, handler, schemas, listener)
            paths.setdefault(path, {"servers": listener.servers})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "cachedaemon", "version": __version__, "description": "One daemon per node: HTTP with JSON."},
        "servers": [SOCKET],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _operation(call: Call, path: str, handler: Any, schemas: dict[str, Any], listener: _Listener) -> Schema:
    said = (inspect.getdoc(handler) or "").partition("\n")[0]
    operation: Schema = {"operationId": handler.__qualname__.lower(), "summary": said}
    if call.note:
        operation["description"] = call.note
    operation["parameters"] = [*_places(path), *_query(call)]
    if call.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _body(call, schemas)}}}
    responses = {str(call.status): _answer(call, said, schemas), **_errors((*_ALWAYS, *listener.errors, *call.errors))}
    if path == "/readyz":
        responses["503"] = responses["200"]
    if listener.has_generation:
        for response in responses.values():
            response.setdefault("headers", {})["Cachedaemon-Generation"] = _GENERATION
    operation["responses"] = dict(sorted(responses.items()))
    return operation


def _places(path: str) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": _PLACES[name]}


def _query(call: Call) -> Iterator[Schema]:
    for name, schema in call.query.items():
        yield {"name": name, "in": "query", "required": name in call.needed, "schema": schema}


def _answer(call: Call, said: str, schemas: dict[str, Any]) -> Schema:
    if call.answer is None:
        return {"description": said}
    schema = call.answer if isinstance(call.answer, dict) else _named(call.answer, schemas)
    response: Schema = {"description": said, "content": {call.media: {"schema": schema}}}
    if call.leads_to:
        response["links"] = {
            name: {"operationId": f"api.{name}", "parameters": dict(given)} for name, given in call.leads_to.items()
        }
    return response


def _errors(kinds: Iterable[type[errors.CacheDaemonError]]) -> dict[str, Schema]:
    """A response for each status, with the codes that come with it and what each means."""
    by_status: dict[int, list[type[errors.CacheDaemonError]]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {str(status): _refusal(of_it) for status, of_it in by_status.items()}


def _refusal(kinds: list[type[errors.CacheDaemonError]]) -> Schema:
    code = {"properties": {"error": {"properties": {"code": {"enum": [kind.code for kind in kinds]}}}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Error"}, code]}
    response: Schema = {
        "description": " ".join(f"`{kind.code}`: {meaning(kind)}" for kind in kinds),
        "content": {JSON: {"schema": schema}},
    }
    if any(kind.status in (429, 503) for kind in kinds):
        response["headers"] = {"Retry-After": _RETRY_AFTER}
    return response


def meaning(kind: type[errors.CacheDaemonError]) -> str:
    """When an error is raised; the base of all is the daemon's own fault."""
    if kind is errors.CacheDaemonError:
        return "A fault of the daemon; its log says more."
    return (inspect.getdoc(kind) or "").replace("\n", " ")


def _named(kind: Any, schemas: dict[str, Any]) -> Schema:
    """A reference to a type's schema, which stands among the components with all that it needs."""
    schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    for name, needed in schema.pop("$defs", {}).items():
        schemas[name] = _untitled(needed)
    schemas[kind.__name__] = _untitled(schema)
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _body(call: Call, schemas: dict[str, Any]) -> Schema:
    """A request's body: the types of its members, what is said below them, and what else the daemon wants of them."""
    kind = call.body
    assert kind is not None
    reference = _named(kind, schemas)
    schema = schemas[kind.__name__]
    schema["description"] = inspect.getdoc(kind)
    for name, text in _below(kind).items():
        schema["properties"][name]["description"] = text
    for name, within in call.within.items():
        member = schema["properties"][name]
        kept = {key: member[key] for key in ("default", "description") if key in member}
        schema["properties"][name] = {**within, **kept}
    return reference


def _below(kind: type) -> dict[str, str]:
    """The text that stands below each member of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for member, text in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and is_text:
            found[member.target.id] = str(text.value.value)  # type: ignore[attr-defined]
    return found


def _untitled(schema: Any) -> Any:
    """Without the titles that repeat each name."""
    if isinstance(schema, dict):
        return {k: _untitled(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    return [_untitled(one) for one in schema] if isinstance(schema, list) else schema


def _error() -> Schema:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.CacheDaemonError)]
    codes = sorted({kind.code for kind in kinds if kind.status >= 400} - {"bad_config", "cannot_start"})
    error = {
        "type": "object",
        "required": ["code", "message", "retryable"],
        "additionalProperties": False,
        "properties": {
            "code": {"type": "string", "enum": codes},
            "message": {"type": "string", "description": "the shard, the cause, and what is allowed"},
            "retryable": {"type": "boolean", "description": "whether asking again can help"},
            "reason": {"type": "string", "enum": list(REASONS), "description": "of a bad archive"},
            "member": {"type": "string", "description": "of a bad archive: the one that is at fault"},
        },
    }
    return {"type": "object", "required": ["error"], "additionalProperties": False, "properties": {"error": error}}
