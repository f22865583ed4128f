"""Trainer processes: a snippet runs in an interpreter of its own, JSON lines go both ways.

The snippet finds `ARG`, `say(value)`, `hear()` (next value sent with `tell`, None at the end), `ShardCache` and
`cachedaemon_client`, `content`, and the usual modules. It runs as `__main__`, from a file, so that spawn and
forkserver work; what must not run again in such children belongs under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.fakes.waiting import family, freeze, thaw, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.fakes.daemon import Daemon

ROOT = Path(__file__).parents[2]
_PRELUDE = """\
import io, json, os, signal, sys, threading, time
sys.path.append({root!r})
from tests.fakes import content
import cachedaemon_client
from cachedaemon_client import ShardCache
ARG = json.loads(os.environ["READER_ARG"])
def say(value): os.write(1, json.dumps(value, default=str).encode() + b"\\n")
def hear(): return json.loads(sys.stdin.readline() or "null")
"""
_END = object()


class Reader:
    """One trainer process; as a context manager it is gone, with its children, at the end."""

    def __init__(
        self,
        daemon: Daemon | None,
        snippet: str,
        arg: object = None,
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
        prelude: bool = True,
        popen: Mapping[str, Any] | None = None,
    ) -> None:
        """Runs at once; `daemon` gives the socket, `popen` user and group."""
        self.folder = Path(tempfile.mkdtemp(prefix="cd-"))
        self.folder.chmod(0o755)
        script = self.folder / "trainer.py"
        script.write_text((_PRELUDE.format(root=str(ROOT)) if prelude else "") + snippet)
        script.chmod(0o644)
        self._errors = (self.folder / "stderr").open("w+")
        self.process = subprocess.Popen(
            [*wrap, python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=self.folder,
            env=self._environ(daemon, arg, env or {}),
            start_new_session=True,
            **(popen or {}),
        )
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name=f"reader {self.process.pid}", daemon=True)
        self._thread.start()

    @staticmethod
    def _environ(daemon: Daemon | None, arg: object, env: Mapping[str, str]) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CACHEDAEMON_")}
        ours = {"READER_ARG": json.dumps(arg, default=str), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**clean, **ours, **({"CACHEDAEMON_SOCKET": str(daemon.socket)} if daemon else {}), **env}

    def _listen(self) -> None:
        # Decoded here, raised in `line`: a line that is no JSON is the test's news, not this thread's end.
        for line in self.process.stdout or ():
            self._said.put(line)
        self._said.put(_END)

    def __enter__(self) -> Self:
        """Running already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Killed with its children, waited for, folder removed."""
        self.kill_all()
        self._thread.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close() if pipe else None
        self._errors.close()
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        """The process itself."""
        return self.process.pid

    def line(self, seconds: float = 60.0) -> Any:
        """The next value it said; AssertionError when it ended or stayed silent."""
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"a reader said nothing in {seconds:g} s: {self.errors}") from None
        if line is _END:
            self._said.put(_END)
            raise AssertionError(f"a reader ended: {self.errors}")
        return json.loads(line)

    def rest(self, seconds: float = 60.0) -> list[Any]:
        """What it still says until it ends, which must be with status 0."""
        end, lines = time.monotonic() + seconds, []
        with contextlib.suppress(queue.Empty):
            while (line := self._said.get(timeout=max(0.0, end - time.monotonic()))) is not _END:
                lines.append(json.loads(line))
        status = self.wait(max(1.0, end - time.monotonic()))
        if status != 0:
            raise AssertionError(f"a reader ended with {status}: {self.errors}")
        return lines

    def tell(self, value: object = None) -> None:
        """Send a value, which the snippet gets from `hear()`."""
        if self.process.stdin is None:
            raise AssertionError("no pipe to the reader")
        self.process.stdin.write(json.dumps(value, default=str) + "\n")
        self.process.stdin.flush()

    def wait(self, seconds: float = 60.0) -> int | None:
        """Its exit status; None when it does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Any signal to the process itself."""
        self.process.send_signal(number)

    def kill9(self) -> None:
        """SIGKILL the process alone, not its children."""
        self.process.kill()
        self.process.wait(10)

    def freeze(self) -> None:
        """SIGSTOP."""
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        thaw(self.pid)

    def children(self) -> list[int]:
        """Living processes that it started."""
        return family(self.pid)

    def kill_all(self) -> None:
        """SIGKILL it and all that it started."""
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kill9()
        until(lambda: not self.children(), 10, "end of a reader's children")

    @property
    def errors(self) -> str:
        """Its stderr so far."""
        return Path(self._errors.name).read_text(errors="replace").strip()


@contextlib.contextmanager
def spawn(daemon: Daemon | None, snippet: str, args: Iterable[object], **how: Any) -> Iterator[list[Reader]]:
    """A reader for each of `args`, all at once; all gone at the end of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Reader(daemon, snippet, arg, **how)) for arg in args]


def run(daemon: Daemon | None, snippet: str, arg: object = None, *, seconds: float = 60.0, **how: Any) -> list[Any]:
    """One reader to its end, which must be with status 0; what it said."""
    return run_all(daemon, snippet, [arg], seconds=seconds, **how)[0]


def run_all(
    daemon: Daemon | None, snippet: str, args: Iterable[object], *, seconds: float = 60.0, **how: Any
) -> list[list[Any]]:
    """A reader for each of `args`, all at once and to their ends; what each said."""
    end = time.monotonic() + seconds
    with spawn(daemon, snippet, args, **how) as readers:
        return [reader.rest(max(1.0, end - time.monotonic())) for reader in readers]
