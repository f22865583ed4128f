"""A daemon under test: a process with a folder, a configuration, a socket and a log of its own.

In a test::

    with Origin() as origin, Daemon({"s": origin.url}, max_shards=5) as daemon:
        path = daemon.path("s", "a.bin")
        daemon.audit()

Sources are URLs or tables; other words are settings of `[cache]`; `server`, `fetch` and `log` are tables.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlencode

from tests.fakes import disk, toml
from tests.fakes.exposition import samples
from tests.fakes.waiting import family, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COMMAND = str(Path(sys.executable).with_name("cachedaemon"))
_NOT_OURS = ("CACHEDAEMON_", "LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")


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


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


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


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_OURS)}


class Daemon:
    """One cache directory and the daemons that serve it, one after the other."""

    def __init__(  # noqa: PLR0913 -- each is one thing that tests vary
        self,
        sources: Mapping[str, str | Mapping[str, object]],
        *,
        cache_dir: Path | None = None,
        http: bool = False,
        server: Mapping[str, object] | None = None,
        fetch: Mapping[str, object] | None = None,
        log: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
        command: Sequence[str] = (COMMAND,),
        popen: Mapping[str, Any] | None = None,
        begin: bool = True,
        **cache: object,
    ) -> None:
        """`http`: listen on a free TCP port too; `wrap`: command line before it (prlimit, faketime); `popen`: user, umask."""
        self.home = Path(tempfile.mkdtemp(prefix="cd-")).resolve()
        self.home.chmod(0o755)
        self.cache = cache_dir or self.home / "cache"
        self.socket = self.home / "d.sock"
        self.config = self.home / "cachedaemon.toml"
        self.port = free_port() if http else 0
        self.env, self.command, self.popen = dict(env or {}), [*wrap, *command], dict(popen or {})
        self.begin = begin
        self.process: subprocess.Popen[bytes] | None = None
        self._gone: list[int] = []
        self.tables: dict[str, dict[str, object]] = {
            "cache": {"dir": self.cache, "min_free": "1MB", "scan": "2s", **cache},
            "server": {"socket": self.socket, "http": f"127.0.0.1:{self.port}" if http else "", **(server or {})},
            "fetch": {"retries": 2, "connect_timeout": "5s", "stall_timeout": "10s", **(fetch or {})},
            "log": dict(log or {}),
            "sources": {name: {"url": s} if isinstance(s, str) else dict(s) for name, s in sources.items()},
        }

    # -- life

    def __enter__(self) -> Self:
        """Serving, unless `begin` is false."""
        if self.begin:
            try:
                self.start()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it is left: processes (helpers that outlived it too) and folder."""
        with contextlib.suppress(ProcessLookupError):
            self.thaw()
        self.stop(10)
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["rm", "-rf", str(self.home)], check=False)

    def write(self) -> None:
        """Write the configuration from `tables`."""
        part = self.config.with_suffix(".part")
        part.write_text(toml.dumps({name: table for name, table in self.tables.items() if table}))
        part.rename(self.config)

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Start `serve` and do not wait."""
        with (self.home / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "serve", "--config", str(self.config), *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=self.environ(),
                start_new_session=True,
                **self.popen,
            )
        self._gone.append(self.process.pid)
        return self.process

    def start(self, seconds: float = 20.0) -> None:
        """Write the configuration, start, and wait until `hello` is answered."""
        self.write()
        process = self.launch()
        until(lambda: process.poll() is not None or self.answers(), seconds, f"hello from the daemon\n{self.log}")
        if process.poll() is not None:
            raise AssertionError(f"the daemon ended with {process.returncode}:\n{self.log}")

    def fails(self, seconds: float = 20.0) -> Ran:
        """Start what cannot start: exit status, and what it said meanwhile."""
        self.write()
        before = len(self.log)
        status = self.launch().wait(seconds)
        return Ran(status, "", self.log[before:])

    def stop(self, seconds: float = 30.0) -> int | None:
        """SIGTERM; the exit status, or None when it had to be killed or was not there."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            return None

    def kill9(self) -> None:
        """SIGKILL the daemon alone: whether its helpers die by themselves is what tests look at."""
        if self.process:
            self.process.kill()
            self.process.wait(10)

    def restart(self, seconds: float = 20.0) -> int | None:
        """Stop and start; the exit status of the stop."""
        status = self.stop()
        self.start(seconds)
        return status

    def reload(self) -> None:
        """Write the configuration from `tables` and send SIGHUP."""
        self.write()
        os.kill(self.pid, signal.SIGHUP)

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.process and self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The daemon's pid."""
        if self.process is None:
            raise AssertionError("the daemon was not started")
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (or is stopped)."""
        return self.process is not None and self.process.poll() is None

    def children(self) -> list[int]:
        """Living helpers of this daemon and of its predecessors here."""
        return sorted(
            {child for pid in self._gone for child in family(pid)} - {self.process.pid if self.process else 0}
        )

    def descriptors(self) -> int:
        """How many file descriptors it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def log(self) -> str:
        """All that it and its predecessors here have said."""
        path = self.home / "daemon.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def environ(self) -> dict[str, str]:
        """The environment it runs in."""
        homes = dict.fromkeys(("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"), str(self.home))
        return {**_clean(os.environ), **homes, **self.env}

    # -- asking

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

    def cli(self, *args: str, timeout: float = 60.0, stdin: str = "", env: Mapping[str, str] | None = None) -> Ran:
        """Run `cachedaemon ARGS` against this daemon's socket."""
        environ = {**self.environ(), "CACHEDAEMON_SOCKET": str(self.socket), **(env or {})}
        command = [*self.command[-1:], *args] if self.command[-1] == COMMAND else [*self.command, *args]
        ran = subprocess.run(
            command,
            env=environ,
            cwd=self.home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    # -- looking

    def problems(self) -> list[str]:
        """What is not as it must be once nothing is under way."""
        found = [f"left behind: {path}" for path in disk.leftovers(self.cache)] + disk.strays(self.cache)
        if not self.alive:
            return found + [f"a helper outlived the daemon: {pid}" for pid in self.children()]
        said = self.status()["cache"]
        real = {"shards": len(disk.published(self.cache)), "bytes": disk.usage(self.cache)}
        return found + [f"status says {said[n]} {n}, the disk {real[n]}" for n in real if said[n] != real[n]]

    def audit(self, seconds: float = 10.0) -> None:
        """Nothing left behind, shards and meta agree, status agrees with the disk, no helper without a daemon.

        What is under way (a deletion in a thread) may end first; AssertionError with the list otherwise.
        """
        with contextlib.suppress(AssertionError):
            until(lambda: not self.problems(), seconds)
        if problems := self.problems():
            raise AssertionError("audit:\n" + "\n".join(problems))
