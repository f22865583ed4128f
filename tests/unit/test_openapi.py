"""The API's description."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cachedaemon import errors
from cachedaemon.server.api import ROUTES
from cachedaemon.server.calls import CALLS
from cachedaemon.server.openapi import document
from cachedaemon.server.page import ROUTES as LOOKED_AT
from cachedaemon.server.watch import ROUTES as WATCHED


@pytest.fixture
def described() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document(ROUTES, WATCHED, LOOKED_AT)))
    return made


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): one
        for path, by in described["paths"].items()
        for method, one in by.items()
        if method != "servers"
    }


def schema_of(described: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """What a body or an answer refers to."""
    name = content["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    found: dict[str, Any] = described["components"]["schemas"][name]
    return found


def test_every_route_is_described(described: dict[str, Any]) -> None:
    routes = {(method, path) for method, path, _ in (*ROUTES, *WATCHED, *LOOKED_AT)}
    assert set(operations(described)) == routes == set(CALLS)
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
    assert answered - set(codes) == {"bad_config", "cannot_start"}
    of_calls = json.dumps([one["responses"] for one in operations(described).values()])
    assert [code for code in codes if f'"{code}"' not in of_calls] == ["method_not_allowed"]  # of no call


def test_bodies_name_what_they_need(described: dict[str, Any]) -> None:
    needed = {
        path: schema_of(described, one["requestBody"]).get("required", [])
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


def test_members_say_what_stands_below_them(described: dict[str, Any]) -> None:
    """As in the client's wire types, and in those of the answers."""
    schemas = described["components"]["schemas"]
    assert schemas["Acquire"]["properties"]["wait"]["description"].startswith("Seconds")
    assert schemas["Planned"]["properties"]["warning"]["description"]


def test_links_lead_to_calls_that_are_there(described: dict[str, Any]) -> None:
    known = {one["operationId"]: one for one in operations(described).values()}
    links = [
        link
        for one in known.values()
        for answer in one["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) == 3
    for link in links:
        assert set(link["parameters"]) == {p["name"] for p in known[link["operationId"]]["parameters"]}


def test_each_path_says_where_it_answers(described: dict[str, Any]) -> None:
    """On the socket, on the port, or on both."""
    where = {path: [one["url"] for one in by["servers"]] for path, by in described["paths"].items()}
    assert where["/v1/acquire"] == ["http://localhost"]
    assert where["/metrics"] == ["http://localhost", "http://127.0.0.1:9464"]
    assert where["/"] == where["/page/events"] == ["http://127.0.0.1:9464"]
