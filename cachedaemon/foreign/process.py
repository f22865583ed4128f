"""What every such process does: `python -m cachedaemon.foreign.PROGRAM PARENT`.

Standard input is a socket of requests (SOCK_SEQPACKET, unix(7)). The process says `ready` on it, once, and `free` after
each request. A request is JSON with two descriptors: a socket for the conversation, and the end of a pipe for data. A
failure is answered in the conversation as `{"failed": KIND, "why": TEXT}`, with KIND a class of `cachedaemon.errors`.

It dies with the daemon, and when the daemon closes the socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any

REQUEST_MOST = 192 << 10
"""Bytes of one request; a secret in it has 64 KiB at the most."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Failure(Exception):
    """What the asker is told: a class of `cachedaemon.errors` by name, and the cause in words that hold no secret."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


class Gone(Exception):
    """The asker has left."""


class Conversation:
    """One request: what is said, and the pipe for its data. `Gone` when the asker has left."""

    def __init__(self, said: dict[str, Any], link: socket.socket, data: FileIO) -> None:
        self.said, self._link, self._data = said, link, data

    def say(self, what: object) -> None:
        """Answer."""
        with _asked():
            self._link.sendall(json.dumps(what).encode() + b"\n")

    def lines(self) -> Iterator[list[str]]:
        """The words of each further request in this conversation, until the asker leaves."""
        with _asked(), self._link.makefile("rb") as lines:
            for line in lines:
                yield line.decode().split()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pour bytes into the pipe."""
        rest = memoryview(data)
        with _asked():
            while rest:
                rest = rest[os.write(self._data.fileno(), rest) :]

    def end(self) -> None:
        """That was all the data."""
        self._data.close()


Program = Callable[[Conversation], None]
"""Answers one request. Raises `Failure`."""


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, ConnectionResetError) as cause:
        raise Gone from cause


def _answer(program: Program, conversation: Conversation) -> None:
    with contextlib.suppress(Gone):
        try:
            program(conversation)
        except Failure as cause:
            conversation.end()
            conversation.say({"failed": cause.kind, "why": cause.why})


def _serve(requests: socket.socket, program: Program) -> None:
    requests.send(b"ready")
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, REQUEST_MOST, 2)
        if not text:
            return
        with socket.socket(fileno=descriptors[0]) as link, FileIO(descriptors[1], "w") as data:
            _answer(program, Conversation(json.loads(text), link, data))
        requests.send(b"free")


def _close_others() -> None:
    """Close what came along besides the socket: uvloop passes on what is inheritable, such as sockets from systemd."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def run(program: Program) -> None:
    """Be such a process. It is a group of its own, so that it is killed with whatever it starts."""
    _close_others()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the daemon has gone
            _serve(socket.socket(fileno=0), program)
    os._exit(0)
