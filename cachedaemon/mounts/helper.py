"""The process that reads one mounted folder: `python -m cachedaemon.mounts.helper PARENT PLACE THREADS`.

Standard input is a socket of requests (SOCK_SEQPACKET, unix(7)): JSON, with two descriptors each: a socket for the
conversation and the end of a pipe for data. `{"open": KEY}` answers the file's state, then each line `look` again, and
`read START STOP` pours these bytes into the pipe, closes that, and answers the state after it. `{"walk": true}` answers lists of keys
until an empty one, `{"check": true}` an empty object where the folder is there, `{"watch": SETTLE}` what
`mounts/watched.py` says. A failed call answers `{"errno": N, "why": TEXT}`. Whoever closes the conversation is done with it.

It dies with the daemon, and when the daemon closes the socket; a thread that hangs then is left to the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from typing import Any

from cachedaemon.mounts.tree import File, Tree
from cachedaemon.mounts.watched import Watched

REQUEST_MOST = 64 << 10
"""Bytes of one request."""
_PR_SET_PDEATHSIG = 1  # prctl(2)
_WAITING_MOST = 64
"""Requests that wait for a thread before those are looked for that nobody waits for any more."""
_KEYS_AT_ONCE = 5000
_STEP = 1.0
"""Seconds after which a walk says what it has found so far, so that slow is not taken for dead."""


class Call:
    """One request: its conversation, and the pipe for its data."""

    def __init__(self, said: dict[str, Any], link: socket.socket, data: FileIO) -> None:
        self.said, self.link, self.data = said, link, data

    def run(self, tree: Tree) -> None:
        """Answer it, unless the asker has left."""
        with self.link, self.data, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self.is_gone():
                return
            try:
                self._answer(tree)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError as cause:
                self._say({"errno": cause.errno, "why": cause.strerror})

    def _answer(self, tree: Tree) -> None:
        if "open" in self.said:
            self._open(tree, self.said["open"])
        elif "walk" in self.said:
            self._walk(tree)
        elif "watch" in self.said:
            Watched(tree, self.said["watch"], self._say).run()
        else:
            tree.check()
            self._say({})

    def is_gone(self) -> bool:
        """Whether the asker has left."""
        poll = select.poll()
        poll.register(self.link, 0)
        return bool(poll.poll(0))

    def _say(self, what: object) -> None:
        self.link.sendall(json.dumps(what).encode() + b"\n")

    def _open(self, tree: Tree, key: str) -> None:
        with tree.open(key) as file, self.link.makefile("rb") as lines:
            self._tell(file)
            for line in lines:
                if line.startswith(b"read "):
                    _, start, stop = line.split()
                    file.pour(self.data.fileno(), int(start), int(stop))
                    self.data.close()
                self._tell(file)

    def _tell(self, file: File) -> None:
        seen = file.look()
        self._say({"size": seen.st_size, "mtime_ns": seen.st_mtime_ns, "inode": seen.st_ino})

    def _walk(self, tree: Tree) -> None:
        for batch in _batches(tree.walk()):
            self._say(batch)
        self._say([])


def _batches(keys: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    until = time.monotonic() + _STEP
    for key in keys:
        batch.append(key)
        if len(batch) >= _KEYS_AT_ONCE or time.monotonic() > until:
            yield batch
            batch, until = [], time.monotonic() + _STEP
    if batch:
        yield batch


class Helper:
    """Takes requests and hands them to threads; a thread that hangs keeps its own request only."""

    def __init__(self, tree: Tree, threads: int) -> None:
        self._tree = tree
        self._pool = ThreadPoolExecutor(threads)
        self._waiting: list[tuple[Call, Future[None]]] = []

    def serve(self, requests: socket.socket) -> None:
        """Until the daemon closes the socket."""
        while True:
            text, descriptors, _, _ = socket.recv_fds(requests, REQUEST_MOST, 2)
            if not text:
                return
            if len(descriptors) == 2:
                self._take(Call(json.loads(text), socket.socket(fileno=descriptors[0]), FileIO(descriptors[1], "w")))
            else:  # too many are open: the asker sees its conversation end
                for one in descriptors:
                    os.close(one)

    def _take(self, call: Call) -> None:
        self._waiting = [(one, job) for one, job in self._waiting if not (job.running() or job.done())]
        if len(self._waiting) >= _WAITING_MOST:
            self._waiting = [(one, job) for one, job in self._waiting if not self._is_dropped(one, job)]
        self._waiting.append((call, self._pool.submit(call.run, self._tree)))

    @staticmethod
    def _is_dropped(call: Call, job: Future[None]) -> bool:
        if not call.is_gone() or not job.cancel():
            return False
        call.link.close()
        call.data.close()
        return True


def _close_others() -> None:
    """Close what came along besides the socket: uvloop passes on what is inheritable, such as sockets from systemd."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def main() -> None:
    """See the module."""
    _close_others()
    parent, place, threads = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        Helper(Tree(place), threads).serve(socket.socket(fileno=0))
    os._exit(0)


if __name__ == "__main__":
    main()
