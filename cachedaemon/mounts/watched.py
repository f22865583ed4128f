"""A watched folder, as its helper sees it. Events say only when to look; what is there is what a look finds.

No event can be trusted to come, and none to mean that a file is complete: a direct write ends in `closed`, a rename within the
folder in `moved`, and a rename from outside, a hard link and the files of a new folder in `created`. Of other machines' writes
to a network file system there is none, and of those that overflow the kernel's queue none either. So the folder is
subscribed to first and looked at then, after each stir and in between.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

from cachedaemon.mounts.looks import Identity, Look, Looks
from cachedaemon.mounts.tree import Tree

Say = Callable[[Any], None]

_EVERY = 2.0
"""Seconds between two looks when nothing stirs, at least."""
_SHARE = 50
"""A look without a stir takes at most this part of the time: large folders are looked at less often."""
_AFTER = 0.05
"""Seconds between a look and the next one, at least: what comes in a burst is looked at together."""
_SHARE_STIRRED = 4
"""A pause after a look lasts so many times as long as that, as far as nobody has to wait for it."""
_BEAT = 1.0
"""Seconds after which it says that it is alive."""
_AT_ONCE = 500
"""Files of one message."""
_USED_UP = {
    errno.ENOSPC: "this user's watches (fs.inotify.max_user_watches) are used up",
    errno.EMFILE: "this user's instances (fs.inotify.max_user_instances) are used up",
}


class Watched:
    """Says what becomes complete below a folder, and what has gone.

    `{"complete": [[KEY, DEVICE, INODE, MTIME_NS, SIZE], ...]}` in order of arrival, `{"gone": [KEY, ...]}`, `{"away": WHY}` when
    the folder cannot be read, `{"looked": true}` when it could, `{"polls": WHY}` where events are not to be had, and `{}` as
    a sign of life.
    """

    def __init__(self, tree: Tree, settle: float, say: Say) -> None:
        from cachedaemon.mounts.stirs import Stirs  # noqa: PLC0415 - a helper that only reads does without watchdog

        self._tree = tree
        self._say = say
        self._looks = Looks(settle)
        self._stirred = Event()
        self._stirs = Stirs(tree.top, self._stirred)
        self._polls = False

    def run(self) -> None:
        """Until nobody listens any more: then saying something raises BrokenPipeError."""
        try:
            while True:
                began = time.monotonic()
                self._look()
                self._rest(time.monotonic() - began)
        finally:
            self._stirs.leave()

    def _look(self) -> None:
        self._stirred.clear()
        try:
            self._follow()
            seen = dict(self._files())
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as cause:
            self._stirs.leave()
            self._say({"away": _why(cause, self._tree.top)})
            return
        self._tell(self._looks.take(seen, time.monotonic(), time.time()))

    def _follow(self) -> None:
        """Have events, where there are any left to have: without them it goes on with looks alone, for good."""
        if self._polls:
            return
        try:
            self._stirs.follow()
        except OSError as cause:
            if cause.errno not in _USED_UP:
                raise
            self._polls = True
            self._say({"polls": _USED_UP[cause.errno]})

    def _files(self) -> Iterator[tuple[str, Identity]]:
        beat = time.monotonic() + _BEAT
        for key in self._tree.files():
            if (found := _identity(self._tree.path(key))) is not None:
                yield key, found
            if time.monotonic() > beat:
                self._say({})
                beat = time.monotonic() + _BEAT

    def _tell(self, look: Look) -> None:
        for start in range(0, len(look.complete), _AT_ONCE):
            self._say({"complete": [[key, *found] for key, found in look.complete[start : start + _AT_ONCE]]})
        for start in range(0, len(look.gone), _AT_ONCE):
            self._say({"gone": look.gone[start : start + _AT_ONCE]})
        self._say({"looked": True})

    def _rest(self, took: float) -> None:
        """Until something stirs, a file may be complete, or the time has come; a moment at the least."""
        least = max(_AFTER, min(_SHARE_STIRRED * took, max(_EVERY, took)))
        self._wait(least, for_stirs=False)
        left = min(max(_EVERY, _SHARE * took), self._looks.due(time.monotonic())) - least
        self._wait(left, for_stirs=True)

    def _wait(self, seconds: float, *, for_stirs: bool) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not for_stirs:
                time.sleep(min(left, _BEAT))
            elif self._stirred.wait(min(left, _BEAT)):
                return
            self._say({})


def _identity(path: str) -> Identity | None:
    """Of a regular file; None for anything else, and for what has gone meanwhile."""
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Identity(seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size) if stat.S_ISREG(seen.st_mode) else None


def _why(cause: OSError, top: str) -> str:
    """What the system says, and of which folder below the watched one."""
    place = os.path.relpath(os.fsdecode(cause.filename), top) if cause.filename else "."
    reason = cause.strerror or str(cause)
    return reason if place == "." else f"{place!r}: {reason}"
