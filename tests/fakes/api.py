"""Asking a daemon over its Unix socket, as tests do."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from tests.fakes.exposition import samples
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable


class Answer(NamedTuple):
    """What the API said."""

    status: int
    body: Any
    """Decoded JSON, or text where it is none; None where it is empty."""
    headers: dict[str, str]

    @property
    def code(self) -> str | None:
        """The error's code, if it is one."""
        return self.body["error"]["code"] if isinstance(self.body, dict) and "error" in self.body else None


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path | str, timeout: float) -> None:
        """Connects when first used."""
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Api:
    """The calls of the API, each on a connection of its own."""

    socket: Path
    """Where the daemon listens."""

    def connection(self, timeout: float = 60.0) -> UnixConnection:
        """A connection to the socket; the caller closes it."""
        return UnixConnection(self.socket, timeout)

    def api(self, method: str, path: str, body: object = None, *, timeout: float = 60.0) -> Answer:
        """One call on a connection of its own; `bytes` go out as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        with contextlib.closing(self.connection(timeout)) as connection:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data is not None else {})
            answer = connection.getresponse()
            text = answer.read().decode()
            headers = {name.lower(): value for name, value in answer.getheaders()}
        is_json = headers.get("content-type", "").startswith("application/json")
        return Answer(answer.status, json.loads(text) if is_json and text else text or None, headers)

    def answers(self) -> bool:
        """Whether `hello` is answered now."""
        try:
            return self.api("GET", "/v1/hello", timeout=5).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def acquire(self, source: str, key: str, wait: float = 30) -> Answer:
        """Ask for a shard."""
        body = {"source": source, "key": key, "wait": wait}
        return self.api("POST", "/v1/acquire", body, timeout=wait + 20)

    def path(self, source: str, key: str, wait: float = 30) -> Path:
        """The local path of a shard, which must be had."""
        answer = self.acquire(source, key, wait)
        if answer.status != 200:
            raise AssertionError(f"acquire {source}/{key}: {answer.status} {answer.body}")
        return Path(answer.body["path"])

    def prefetch(self, source: str, keys: Iterable[str]) -> str:
        """The job's id."""
        answer = self.api("POST", "/v1/prefetch", {"source": source, "keys": list(keys)})
        if answer.status != 202:
            raise AssertionError(f"prefetch: {answer.status} {answer.body}")
        return str(answer.body["job"])

    def job(self, job: str, seconds: float = 30.0) -> dict[str, Any]:
        """The job once it has ended."""

        def ended() -> dict[str, Any] | None:
            body: dict[str, Any] = self.api("GET", f"/v1/jobs/{job}").body
            return body if body["state"] != "running" else None

        return until(ended, seconds, f"end of job {job}") or {}

    def evict(self, source: str, key: str) -> Answer:
        """Remove a shard."""
        return self.api("DELETE", "/v1/shards?" + urlencode({"source": source, "key": key}))

    def shards(self, source: str = "", prefix: str = "") -> list[dict[str, Any]]:
        """All that it lists, page after page."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            said = {"source": source, "prefix": prefix, "after": after}
            query = urlencode({name: value for name, value in said.items() if value})
            body = self.api("GET", f"/v1/shards?{query}").body
            found += body["shards"]
            after = body["next"]
        return found

    def status(self) -> dict[str, Any]:
        """`/v1/status`."""
        answer = self.api("GET", "/v1/status")
        if answer.status != 200:
            raise AssertionError(f"status: {answer.status} {answer.body}")
        return dict(answer.body)

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples of the socket's `/metrics`, by name and labels."""
        return samples(str(self.api("GET", "/metrics").body))

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of `cachedaemon_<name>` that have these labels; 0 without any."""
        wanted = set(labels.items())
        return sum(v for (n, own), v in self.metrics().items() if n == f"cachedaemon_{name}" and wanted <= own)
