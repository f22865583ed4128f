"""The API against its own description: whatever is asked, right or wrong, answers as the description says."""

from __future__ import annotations

import copy
import io
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode, checks
from schemathesis.schemas import BaseSchema
from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from cachedaemon.server.api import ROUTES
from cachedaemon.server.calls import CALLS
from cachedaemon.server.page import ROUTES as LOOKED_AT
from cachedaemon.server.watch import ROUTES as WATCHED
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

pytestmark = pytest.mark.slow

RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
EACH = 15
"""Requests of a kind to one call."""


def no_fault(_: schemathesis.CheckContext, response: schemathesis.Response, __: schemathesis.Case) -> None:
    """What is 5xx here is mostly the origin's, or a wait that has ended: only 500 is the daemon's own fault."""
    assert response.status_code != 500


HELD = [
    no_fault,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
KEYS = ["a.bin", "b.zip", "none.bin", "é" * 3000]
KNOWN: Mapping[str, Any] = {
    "source": {"enum": ["s", "nosuch"]},
    "key": {"enum": KEYS},
    "keys": {"type": "array", "items": {"enum": KEYS}, "maxItems": 5},
    "used": {"type": "array", "items": {"enum": [["a.bin", 0], ["none.bin", 1e9]]}, "maxItems": 5},
    "watch": {"enum": ["s", "w", "nosuch"]},
    "id": {"enum": ["p", "q"]},
    "plan": {"enum": ["p", "nosuch", None]},
    "position": {"enum": [0, 1, 10**30]},
}
"""What is asked for in requests of the right form: most of what could be asked for is not there."""


class _Connection(HTTPConnection):
    """To a Unix socket, whatever the host is called."""

    def __init__(self, path: Path, **how: Any) -> None:
        super().__init__("localhost", **how)
        self._path = path

    def _new_conn(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(60)
        link.connect(str(self._path))
        return link


class _Pool(HTTPConnectionPool):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def _new_conn(self) -> _Connection:
        return _Connection(self._path, timeout=60)


class FirstPart(HTTPAdapter):
    """Of a stream without end, only what comes first."""

    def build_response(self, req: requests.PreparedRequest, resp: HTTPResponse) -> requests.Response:
        if not resp.headers.get("Content-Type", "").startswith("text/event-stream"):
            return super().build_response(req, resp)
        piece = next(resp.stream(1))
        resp.close()
        whole = HTTPResponse(io.BytesIO(piece), resp.headers, resp.status, preload_content=False)
        whole.headers.pop("Transfer-Encoding", None)
        return super().build_response(req, whole)


class UnixSocket(FirstPart):
    """requests over the daemon's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._pool = _Pool(path)

    def get_connection_with_tls_context(self, *_: object, **__: object) -> HTTPConnectionPool:
        return self._pool


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    watched = tmp_path_factory.mktemp("watched")
    (watched / "c.bin").write_bytes(b"c" * 100)
    with Origin() as origin:
        origin.put("a.bin", 1000)
        origin.put("b.zip", data=b"no archive")
        with Daemon(
            {"s": origin.url, "w": {"url": f"file://{watched}/", "watch": True, "settle": 0}}, max_shards=3, http=True
        ) as made:
            made.path("s", "a.bin")
            yield made


@pytest.fixture(scope="module")
def asking(daemon: Daemon) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://localhost", UnixSocket(daemon.socket))
        session.mount("http://127.0.0.1", FirstPart())
        yield session


@pytest.fixture(scope="module")
def described(daemon: Daemon) -> Mapping[GenerationMode, BaseSchema]:
    """The description; for what is right, with names that mean something."""
    document = daemon.api("GET", "/v1/openapi.json").body
    wrong = schemathesis.openapi.from_dict(copy.deepcopy(document))
    for schema in document["components"]["schemas"].values():
        if schema.get("description", "").startswith("Body of"):
            _hint(schema["properties"])
    for path in document["paths"].values():
        for call in path.values():
            for parameter in call["parameters"] if isinstance(call, dict) else ():
                parameter["schema"] = KNOWN.get(parameter["name"], parameter["schema"])
    return {RIGHT: schemathesis.openapi.from_dict(document), WRONG: wrong}


def _hint(members: dict[str, Any]) -> None:
    for name in KNOWN.keys() & members.keys():
        members[name] = KNOWN[name]


SOCKET, PORT = "http://localhost", "http://127.0.0.1"
ASKED = [
    *[(SOCKET, method, path, RIGHT) for method, path, _ in (*ROUTES, *WATCHED)],
    *[(PORT, method, path, RIGHT) for method, path, _ in (*WATCHED, *LOOKED_AT)],
    *[(SOCKET, *call, WRONG) for call, takes in CALLS.items() if takes.body or takes.query or "{" in call[1]],
]
"""What takes nothing cannot be asked wrongly."""
OF_THE_PORT = {path for _, path, _ in LOOKED_AT}


@pytest.mark.parametrize(("listener", "method", "path", "mode"), ASKED, ids=str)
def test_every_answer_is_as_described(  # noqa: PLR0917 - what is asked, of whom
    daemon: Daemon,
    asking: requests.Session,
    described: Mapping[GenerationMode, BaseSchema],
    listener: str,
    method: str,
    path: str,
    mode: GenerationMode,
) -> None:
    base = listener if listener == SOCKET else f"{listener}:{daemon.port}"

    @settings(max_examples=EACH, suppress_health_check=list(HealthCheck), database=None)
    @given(described[mode][path][method].as_strategy(mode))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=base, session=asking, checks=HELD)

    ask()


def test_what_leads_to_another_call_does(
    daemon: Daemon, asking: requests.Session, described: Mapping[GenerationMode, BaseSchema]
) -> None:
    """A job that was begun is known, a plan that was made can be ended: the links of the description, followed."""

    class Steps(described[RIGHT].as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"session": asking, "base_url": f"{PORT}:{daemon.port}" if case.path in OF_THE_PORT else SOCKET}

        def validate_response(self, response: Any, case: schemathesis.Case, **_: Any) -> None:
            case.validate_response(response, checks=HELD)

    few = settings(max_examples=5, stateful_step_count=10, suppress_health_check=list(HealthCheck), database=None)
    Steps.run(settings=few)
