"""A daemon that answers what a test tells it to, over a real Unix socket: for what a true daemon does not say on demand."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Said(NamedTuple):
    """One request."""

    link: int
    """Which connection it came over, counted from 0."""
    method: str
    target: str
    body: Any


Answering = Callable[[Said], bytes | None]
"""The answer's bytes; None closes the connection without one."""


def answer(status: int = 200, body: object = None, generation: str = "g1") -> bytes:
    """An answer as the daemon writes it."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nCachedaemon-Generation: {generation}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def error(status: int, code: str, **more: object) -> bytes:
    """An error as the daemon writes it."""
    return answer(status, {"error": {"code": code, "message": f"the {code}", "retryable": False, **more}})


class Scripted:
    """Listening until its block ends. `heard` is all that was asked so far; `how` may be changed at any time."""

    def __init__(self, path: Path, how: Answering, backlog: int = 64) -> None:
        self.path = path
        self.how = how
        self.heard: list[Said] = []
        self._links: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def links(self) -> int:
        """How many connections were made."""
        return len(self._links)

    def uses(self) -> list[str]:
        """Keys of all uses that were told, in order."""
        return [key for said in list(self.heard) if said.target == "/v1/touch" for key, _ in said.body["used"]]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self._links.append(link)
                thread = threading.Thread(target=self._serve, args=(len(self._links) - 1, link), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, number: int, link: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), link, link.makefile("rb") as file:
            for said in iter(lambda: self._read(number, file), None):
                self.heard.append(said)
                given = self.how(said)
                if given is None:
                    return
                link.sendall(given)

    @staticmethod
    def _read(number: int, file: Any) -> Said | None:
        line = file.readline().decode()
        if not line:
            return None
        method, target, _ = line.split()
        length = 0
        while (header := file.readline().strip().lower()) != b"":
            name, _, value = header.partition(b":")
            length = int(value) if name == b"content-length" else length
        return Said(number, method, target, json.loads(file.read(length)) if length else None)

    def close(self) -> None:
        """Every connection breaks, new ones are refused."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def scripted(path: Path, how: Answering = lambda _: answer(204), backlog: int = 64) -> Iterator[Scripted]:
    """A scripted daemon at `path` for the block."""
    one = Scripted(path, how, backlog)
    try:
        yield one
    finally:
        one.close()
