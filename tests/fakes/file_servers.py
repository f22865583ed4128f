"""Real file servers, as processes of their own, with objects in a folder, that misbehave on request."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cachedaemon.conformance import STALL, Place, Then, nothing
from tests.fakes.faults import Faults

USER, WORD = "reader", "s3cr3t-w0rd"
"""Whom both servers know."""
_PROJECT = Path(__file__).resolve().parents[2]
_times = itertools.count(1_000_000_000)


class FileServer:
    """A running server of one folder."""

    def __init__(self, scheme: str, folder: Path, lines: list[str]) -> None:
        self.scheme, self.folder, self.port = scheme, folder / "served", int(lines[0])
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(lines[1:]))
        self._faults = folder / "faults"

    def turn(self, **faults: object) -> None:
        """All is well besides these."""
        replace(Faults(), **faults).write(self._faults)  # type: ignore[arg-type]

    def url(self, path: str = "/", user: str = f"{USER}:{WORD}") -> str:
        return f"fsspec+{self.scheme}://{user}@127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def serving(scheme: str, folder: Path) -> Iterator[FileServer]:
    """A server of `folder`/served, for "ftp" or "sftp"."""
    (folder / "served").mkdir()
    Faults().write(folder / "faults")
    command = [sys.executable, "-m", f"tests.fakes.{scheme}d", folder / "served", folder / "faults"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_PROJECT
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2 if scheme == "sftp" else 1)]
        try:
            yield FileServer(scheme, folder, lines)
        finally:
            process.kill()


class Served(Place):
    """A folder of such a server."""

    settings: Mapping[str, object] = {"insecure": True, "concurrency": 2}

    def __init__(self, server: FileServer, name: str) -> None:
        self.server, self.folder = server, server.folder / name
        self.folder.mkdir()
        self.url = server.url(f"/{name}/")
        # A line's end in a command is what ftplib refuses to send.
        self.impossible = ("new\nline",) if server.scheme == "ftp" else ()

    def put(self, key: str, data: bytes) -> None:
        """With a time of its own: these protocols tell whole seconds."""
        place, time = self.folder / key, next(_times)
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.parent / ".new"
        new.write_bytes(data)
        os.utime(new, (time, time))
        new.rename(place)

    def refuse(self, key: str) -> None:
        self.put(key, b"x")
        self.server.turn(refused=key)

    def down(self) -> None:
        self.server.turn(down=True)

    def up(self) -> None:
        self.server.turn()

    def trickle(self, key: str) -> None:
        self.server.turn(bps=(self.folder / key).stat().st_size / (1.5 * STALL))

    def hang(self, key: str) -> None:
        self.server.turn(hang=True)

    def cut(self, key: str, offset: int) -> Then:
        self.server.turn(cut=offset)
        return nothing

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.put(key, data)
