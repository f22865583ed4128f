"""The API's description."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cachedaemon import errors
from cachedaemon.server.api import ROUTES
from cachedaemon.server.openapi import document
from cachedaemon.server.watch import ROUTES as WATCHED


@pytest.fixture
def described() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document((*ROUTES, *WATCHED))))
    return made


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m.upper(), path): one for path, by in described["paths"].items() for m, one in by.items()}


def test_every_route_is_described(described: dict[str, Any]) -> None:
    assert set(operations(described)) == {(method, path) for method, path, _ in (*ROUTES, *WATCHED)}
    assert all(one["summary"] for one in operations(described).values())


def test_every_place_in_a_path_is_a_parameter(described: dict[str, Any]) -> None:
    for (_, path), one in operations(described).items():
        assert {p["name"] for p in one["parameters"] if p["in"] == "path"} == set(re.findall(r"{(\w+)}", path))


def test_no_reference_points_nowhere(described: dict[str, Any]) -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(described)):
        at: Any = described
        for step in reference.split("/"):
            at = at[step]
    assert "$defs" not in json.dumps(described)


def test_every_code_of_the_api_is_named(described: dict[str, Any]) -> None:
    codes = described["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"]
    answered = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CacheDaemonError)
    }
    assert answered - set(codes) <= {"bad_config", "cannot_start"}


def test_bodies_name_what_they_need(described: dict[str, Any]) -> None:
    needed = {
        path: one["requestBody"]["content"]["application/json"]["schema"].get("required", [])
        for (_, path), one in operations(described).items()
        if "requestBody" in one
    }
    assert needed == {
        "/v1/acquire": ["source", "key"],
        "/v1/prefetch": ["source"],
        "/v1/verify": [],
        "/v1/plans/{id}": ["source", "keys"],
        "/v1/touch": ["source"],
    }
