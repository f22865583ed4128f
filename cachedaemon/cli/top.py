"""`top`: what the daemon does, live in a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cachedaemon.cli.link import Json, Link, Socket
from cachedaemon_client.errors import CacheError

EVERY = 1.0
"""Seconds between two looks; the daemon makes no more than one snapshot a second anyway."""
KEPT = 600.0
"""Seconds of history that are kept for the plots."""
PLAIN = (100, 200)
"""Columns and lines where nobody says how large the terminal is, or there is none."""


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now, and end.")] = False,
    as_json: Json = False,
    socket: Socket = None,
) -> None:
    """Show what the daemon does, live, until q or Ctrl-C. Without a terminal: once.

    Waits out restarts of the daemon. With --json: a snapshot a line, each second.
    """
    node = _Node(Link(socket))
    said = node.look()
    if as_json:
        _lines(node, said, once=once)
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print(said)
    else:
        _live(node, said)


class _Node:
    """The daemon at the socket, looked at again and again; the points of its history gather here."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._points: list[dict[str, Any]] = []
        self.lost: str | None = None
        """Why the last look failed; None: it did not."""

    def look(self) -> dict[str, Any]:
        """The snapshot of now, with all the history there is; `CacheError`."""
        since = self._points[-1]["at"] if self._points else 0
        said: dict[str, Any] = self._link.get(f"/v1/glance?since={since}")
        self._points += [point for point in said["points"] if point["at"] > since]
        self._points = [point for point in self._points if point["at"] > said["at"] - KEPT]
        return said | {"points": list(self._points)}

    def look_again(self, before: dict[str, Any]) -> dict[str, Any]:
        """The same once somebody looks: a daemon that has gone may come back, and until then the last snapshot stays."""
        try:
            said = self.look()
        except CacheError as cause:
            self.lost = str(cause)
            return before
        self.lost = None
        return said


def _lines(node: _Node, said: dict[str, Any], *, once: bool) -> None:
    while True:
        if node.lost is None:
            print(json.dumps(said), flush=True)  # noqa: T201 - the command's output
        if once:
            return
        time.sleep(EVERY)
        said = node.look_again(said)


def _print(said: dict[str, Any]) -> None:
    """For a pipe or a file: no colours, and every line that there is."""
    from cachedaemon.cli.topview import draw  # noqa: PLC0415 - rich is slow to load

    columns = shutil.get_terminal_size(PLAIN).columns
    for line in draw(said, (columns, PLAIN[1]), lost=None):
        typer.echo(line.plain.rstrip())


def _live(node: _Node, said: dict[str, Any]) -> None:
    from rich.console import Console, Group  # noqa: PLC0415 - rich is slow to load
    from rich.live import Live  # noqa: PLC0415

    from cachedaemon.cli.topview import draw  # noqa: PLC0415

    console = Console(highlight=False)
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = draw(said, (console.width, console.height), lost=node.lost)
            live.update(Group(*lines), refresh=True)
            if _is_over(EVERY):
                return
            said = node.look_again(said)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one and are not shown; Ctrl-C stays what it is."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_over(seconds: float) -> bool:
    """Whether q was pressed, or the terminal went, within so many seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and (
            not (keys := os.read(sys.stdin.fileno(), 64)) or b"q" in keys.lower()
        ):
            return True
    return False
