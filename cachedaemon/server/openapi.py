"""The API's description (OpenAPI 3.1), generated from the table of routes and the types of the bodies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from cachedaemon import __version__, errors
from cachedaemon.server import bodies

_BODIES: dict[tuple[str, str], TypeAdapter[Any]] = {
    ("POST", "/v1/acquire"): bodies.ACQUIRE,
    ("POST", "/v1/prefetch"): bodies.PREFETCH,
    ("POST", "/v1/verify"): bodies.VERIFY,
    ("PUT", "/v1/plans/{id}"): bodies.PLAN,
    ("POST", "/v1/touch"): bodies.TOUCH,
}
_QUERIES = {
    ("GET", "/v1/shards"): (("source", False), ("prefix", False), ("after", False), ("limit", False)),
    ("GET", "/v1/glance"): (("since", False),),
    ("DELETE", "/v1/shards"): (("source", True), ("key", True)),
}
_STATUS = {
    ("POST", "/v1/prefetch"): "202",
    ("POST", "/v1/verify"): "202",
    ("POST", "/v1/touch"): "204",
    ("DELETE", "/v1/plans/{id}"): "204",
    ("DELETE", "/v1/shards"): "204",
}


def document(routes: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, handler in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, handler)
    return {
        "openapi": "3.1.0",
        "info": {"title": "cachedaemon", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _error()}},
    }


def _operation(method: str, path: str, handler: Any) -> dict[str, Any]:
    said = inspect.getdoc(handler) or ""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    for name, required in _QUERIES.get((method, path), ()):
        parameters.append({"name": name, "in": "query", "required": required, "schema": {"type": "string"}})
    status = _STATUS.get((method, path), "200")
    error = {
        "description": "An error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    operation: dict[str, Any] = {"summary": said, "parameters": parameters}
    operation["responses"] = {status: {"description": said}, "default": error}
    if (kind := _BODIES.get((method, path))) is not None:
        schema = kind.json_schema(ref_template="#/components/schemas/{model}")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _error() -> dict[str, Any]:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.CacheDaemonError)]
    codes = sorted({kind.code for kind in kinds if kind.status >= 400})
    error = {
        "type": "object",
        "required": ["code", "message", "retryable"],
        "properties": {
            "code": {"type": "string", "enum": codes},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "reason": {"type": "string"},
            "member": {"type": "string"},
        },
    }
    return {"type": "object", "required": ["error"], "properties": {"error": error}}
