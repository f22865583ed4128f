"""The API against its own description: whatever is asked, right or wrong, answers as the description says."""

from __future__ import annotations

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

EACH = 15
"""Requests of a kind to one call."""
HELD = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
KNOWN: Mapping[str, list[str]] = {
    "source": ["s"],
    "key": ["a.bin", "b.zip", "none.bin", "cut.bin"],
    "watch": ["w"],
    "job": ["0" * 32],
    "id": ["p"],
    "plan": ["p"],
}
"""What is often asked for, so that not every request is for something that is not there."""


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
            yield made


@pytest.fixture(scope="module")
def asking(daemon: Daemon) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://localhost", UnixSocket(daemon.socket))
        session.mount("http://127.0.0.1", FirstPart())
        yield session


@pytest.fixture(scope="module")
def described(daemon: Daemon) -> BaseSchema:
    document = daemon.api("GET", "/v1/openapi.json").body
    for schema in document["components"]["schemas"].values():
        _hint(schema.get("properties", {}))
    for path in document["paths"].values():
        for call in path.values():
            for parameter in call["parameters"] if isinstance(call, dict) else ():
                _hint({parameter["name"]: parameter["schema"]})
    return schemathesis.openapi.from_dict(document)


def _hint(members: dict[str, Any]) -> None:
    for name, known in KNOWN.items():
        if name in members:
            schema = dict(members[name])
            members[name].clear()
            members[name]["anyOf"] = [{"enum": known}, schema]


SOCKET, PORT = "http://localhost", "http://127.0.0.1"
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
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
    described: BaseSchema,
    listener: str,
    method: str,
    path: str,
    mode: GenerationMode,
) -> None:
    base = listener if listener == SOCKET else f"{listener}:{daemon.port}"

    @settings(max_examples=EACH, suppress_health_check=list(HealthCheck), database=None)
    @given(described[path][method].as_strategy(mode))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=base, session=asking, checks=HELD)

    ask()


def test_what_leads_to_another_call_does(daemon: Daemon, asking: requests.Session, described: BaseSchema) -> None:
    """A job that was begun is known, a plan that was made can be ended: the links of the description, followed."""

    class Steps(described.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"session": asking, "base_url": f"{PORT}:{daemon.port}" if case.path in OF_THE_PORT else SOCKET}

        def validate_response(self, response: Any, case: schemathesis.Case, **_: Any) -> None:
            case.validate_response(response, checks=HELD)

    few = settings(max_examples=5, stateful_step_count=10, suppress_health_check=list(HealthCheck), database=None)
    Steps.run(settings=few)
