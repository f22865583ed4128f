"""Another user of the machine: a snippet runs as any user id and group, whatever that user may read of Python itself.

The interpreter starts as root, imports what the snippet may need, and only then becomes that user. The snippet finds `ARG`,
`say(value)`, `ask(socket, method, path, body)` and `tried(function, ...)`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

STRANGER = 54_321
"""A user and group that nobody has given anything."""

_PRELUDE = """
import concurrent.futures.thread, contextlib, encodings.idna, errno, fcntl, http.client, json, os, socket, sys, threading, time
ARG, uid, gid, groups = json.loads(sys.argv[1])
os.setgroups(groups); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
os.chdir("/")

class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)

def ask(path, method, target, body=None):
    with contextlib.closing(Unix(path)) as link:
        link.request(method, target, None if body is None else json.dumps(body))
        answer = link.getresponse()
        text = answer.read().decode()
        return [answer.status, json.loads(text) if text else None, dict(answer.getheaders())]

def tried(call, *args, **more):
    try:
        return str(call(*args, **more) or "done")
    except OSError as cause:
        return errno.errorcode.get(cause.errno, str(cause))

def say(value):
    print(json.dumps(value), flush=True)
"""


def popen(
    snippet: str, arg: object, uid: int = STRANGER, gid: int | None = None, groups: Sequence[int] = ()
) -> subprocess.Popen[str]:
    """The snippet as a process; it says its values, a line each."""
    said = json.dumps([arg, uid, uid if gid is None else gid, list(groups)])
    command = [sys.executable, "-c", _PRELUDE + snippet, said]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(snippet: str, arg: object, uid: int = STRANGER, gid: int | None = None, groups: Sequence[int] = ()) -> Any:
    """The last value that the snippet said."""
    with popen(snippet, arg, uid, gid, groups) as process:
        out, err = process.communicate(timeout=60)
    if process.returncode != 0:
        raise AssertionError(err)
    return json.loads(out.splitlines()[-1])
