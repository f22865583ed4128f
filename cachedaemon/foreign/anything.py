"""The process that reads with fsspec: `python -m cachedaemon.foreign.anything PARENT`.

Each request has the source's `url`, storage `options`, and one of these. `{"open": KEY}` answers the object's state, then
`read START STOP` pours so much of it into the pipe (all, for a STOP of -1) and answers the state after it. `{"walk": true}` answers lists of keys
until null, `{"check": true}` an empty object where the source's folder is there. The connection is kept between requests
that end well.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cachedaemon.foreign.process import Conversation, Failure, run
from cachedaemon.foreign.remote import KINDS
from cachedaemon.foreign.trees import Seen, Tree, mapped


class Trees:
    """The file system that was asked for last."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._made_of: object = None

    def answer(self, asked: Conversation) -> None:
        """Answer; a connection over which something failed is not used again."""
        try:
            with mapped():
                self._answer(asked)
        except Failure as cause:
            if cause.kind != "Missing":
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise

    def _answer(self, asked: Conversation) -> None:
        if "open" in asked.said:
            self._open(asked, asked.said["open"])
        elif "walk" in asked.said:
            for keys in self._made(asked.said).walk():
                asked.say(keys)
            asked.say(None)
        else:
            self._made(asked.said).check()
            asked.say({})

    def _open(self, asked: Conversation, key: str) -> None:
        tree, seen = self._looked(asked.said, key)
        asked.say(seen.said())
        for _, start, stop in asked.lines():
            if int(stop) < 0:
                tree.pour_whole(key, asked.write)
            else:
                tree.pour(key, int(start), int(stop), asked.write)
            asked.end()
            asked.say(tree.look(key).said())

    def _looked(self, said: dict[str, Any], key: str) -> tuple[Tree, Seen]:
        """The first call may find that the server has given up the connection in the meantime: then once more."""
        tree = self._made(said)
        was_used, tree.used = tree.used, True
        try:
            with mapped():
                return tree, tree.look(key)
        except Failure as cause:
            if not was_used or cause.kind != "OriginUnavailable":
                raise
        self._drop()
        return self._looked(said, key)

    def _made(self, said: dict[str, Any]) -> Tree:
        made_of = said["url"], said["options"]
        if self._tree is None or self._made_of != made_of:
            self._drop()
            kind = KINDS.get(said["url"].partition(":")[0], Tree)
            self._tree, self._made_of = kind(*made_of), made_of
        return self._tree

    def _drop(self) -> None:
        tree, self._tree = self._tree, None
        if tree is not None:
            with contextlib.suppress(Exception):  # it has failed already
                tree.close()


if __name__ == "__main__":
    run(Trees().answer)
