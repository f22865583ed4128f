"""A daemon under test: a process with a folder, a configuration, a socket and a log of its own.

In a test::

    with Origin() as origin, Daemon({"s": origin.url}, max_shards=5) as daemon:
        path = daemon.path("s", "a.bin")
        daemon.audit()

Sources are URLs or tables; other words are settings of `[cache]`; `server`, `fetch` and `log` are tables.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.fakes import disk, toml
from tests.fakes.api import Api
from tests.fakes.waiting import family, freeze, thaw, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND = str(Path(sys.executable).with_name("cachedaemon"))
_NOT_OURS = ("CACHEDAEMON_", "LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_OURS)}


class Daemon(Api):
    """One cache directory and the daemons that serve it, one after the other."""

    def __init__(
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
        check: bool = True,
        **cache: object,
    ) -> None:
        """`http`: listen on a free TCP port too; `wrap`: command line before it (prlimit, faketime); `popen`: user, umask.

        `begin`: start with the block; `check`: audit at the block's end.
        """
        self.home = Path(tempfile.mkdtemp(prefix="cd-")).resolve()
        self.home.chmod(0o755)
        self.cache = cache_dir or self.home / "cache"
        self.socket = self.home / "d.sock"
        self.config = self.home / "cachedaemon.toml"
        self.port = free_port() if http else 0
        self.env, self.command, self.popen = dict(env or {}), [*wrap, *command], dict(popen or {})
        self.begin, self.check = begin, check
        if "user" in self.popen:
            shutil.chown(self.home, self.popen["user"], self.popen.get("group"))
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
                self.__exit__(AssertionError)
                raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        """Nothing of it is left: processes (helpers that outlived it too) and folder.

        After a block without an error, with `check`: what has no transfer under way passes the audit, and no helper
        is left once the daemon has gone.
        """
        try:
            self.thaw()
            if self.check and kind is None:
                self._last_look()
        finally:
            self.stop(10)
            for pid in self.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["rm", "-rf", str(self.home)], check=False)

    def _last_look(self) -> None:
        if self.alive:
            said = self.status()
            if not said.get("fetches") and not said.get("waiters"):
                self.audit()
            self.stop()
        until(lambda: not self.children(), 5, f"the end of helpers {self.children()}")

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
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.process and self.process.poll() is None:
            thaw(self.pid)

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

    def helpers(self, name: str) -> list[int]:
        """Those of its processes that run such a program; one that ends meanwhile is none."""
        found = []
        for pid in self.children():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if name in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found

    def forget_the_dead(self) -> None:
        """Look no more after helpers of predecessors that left none: after many starts their pids are somebody else's."""
        self._gone = [pid for pid in self._gone if family(pid) or (self.alive and pid == self.pid)]

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
        problems: list[str] = []

        def is_clean() -> bool:
            problems[:] = self.problems()
            return not problems

        try:
            until(is_clean, seconds)
        except AssertionError:
            raise AssertionError("audit:\n" + "\n".join(problems)) from None
