"""A plan: the order in which this process will want shards, told to the daemon ahead."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachedaemon_client.connection import TELL
from cachedaemon_client.errors import BadRequest, CacheError, PlanWarning, TooMany
from cachedaemon_client.lease import Busy, Gone, give_back, hold_plan
from cachedaemon_client.process import alive

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.cache import ShardCache
    from cachedaemon_client.local import Local
    from cachedaemon_client.shard import Shard


class Order:
    """The order of a plan, its place, and the hold on its file. The base of both clients' plans.

    A plan lives as long as this process holds its file: a killed trainer's plan is gone at once. It does not survive the
    daemon, and is made again when the daemon's generation changes. In a forked child it is inert: nobody is told.
    """

    def __init__(self, cache: Local[Any], keys: list[str], holds: int) -> None:
        if holds < 1:
            raise BadRequest(f"a plan holds at least 1 shard, not {holds}", code="bad_request", source=cache.source)
        self._local = cache
        self._epoch = alive[0]
        self._descriptor = -1
        self._out: deque[Shard] = deque()
        self.id = os.urandom(16).hex()
        self.warning: str | None = None
        """What the daemon said against the plan when it took it: that its consumers may wait for ever. None: nothing."""
        self.keys = keys
        self.holds = holds
        self.position = 0

    @property
    def position(self) -> int:
        """Index of the next key to open. May be set, from 0 to the number of keys (`BadRequest`); the next report tells."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        if not 0 <= position <= len(self.keys):
            message = f"position = {position!r}: allowed are 0 to {len(self.keys)}, the number of the plan's keys"
            raise BadRequest(message, code="bad_request", source=self._local.source)
        self._position = position
        self.ahead: str | None = self.keys[position] if position < len(self.keys) else None
        """The next key itself; None at the end."""

    def advance(self) -> None:
        """The plan's next key was opened."""
        if self._position < len(self.keys):
            self.position = self._position + 1

    def begin(self, keys: list[str]) -> None:
        """Have other keys, from the first on; in force with the next `renew`. What is under way for both goes on."""
        self.keys = keys
        self.position = 0

    @property
    def _target(self) -> str:
        return f"/v1/plans/{self.id}"

    @property
    def _body(self) -> dict[str, Any]:
        return {"source": self._local.source, "keys": self.keys, "position": self.position, "holds": self.holds}

    @property
    def _here(self) -> dict[str, Any]:
        """A touch that only tells the place. The first one, after the lock, has the daemon see that the file is held.

        Where it fails the daemon looks by itself, a second later.
        """
        return {"source": self._local.source, "used": [], "plan": self.id, "position": self.position}

    @property
    def inert(self) -> bool:
        """Whether it is another process's: this one was forked from it."""
        return self._epoch != alive[0]

    def warn(self) -> None:
        """Say aloud what the daemon said against the plan (`PlanWarning`)."""
        if self.warning is not None:
            warnings.warn(f"plan of {self._local.source}: {self.warning}", PlanWarning, stacklevel=4)

    def go_without(self, cause: TooMany) -> None:
        """Say aloud that the daemon takes no plan more of this user: the keys are read without one, as all could be."""
        self.warning = f"{cause}; its shards are read without a plan"
        self.warn()

    def _hold(self, path: str) -> None:
        """Hold the file anew before the old hold ends: at no moment may the daemon find it free."""
        before, self._descriptor = self._descriptor, -1
        try:
            with contextlib.suppress(Gone, Busy):  # ended again already: the next generation makes it anew
                self._descriptor = hold_plan(path)
        finally:
            self._give_back(before)

    def _leave(self) -> bool:
        """Let its file go. False when it had ended before, or is another process's: nobody is to be told of its end then."""
        if self.inert or not self._local.forget(self):
            return False
        descriptor, self._descriptor = self._descriptor, -1
        self._give_back(descriptor)
        return True

    def _give_back(self, descriptor: int) -> None:
        if descriptor >= 0 and not self.inert:
            give_back(descriptor)

    def _yielded(self, shard: Shard, position: int) -> Shard:
        """What was opened for this place. A plan that has ended, or is another process's, moves on untold."""
        self._out.append(shard)
        if self.position == position:
            self.advance()
        return shard

    def _make_room(self) -> None:
        """Close what is out, so that with the next one `holds` shards are."""
        while len(self._out) >= self.holds:
            self._out.popleft().close()

    def _close_out(self) -> None:
        while self._out:
            self._out.popleft().close()

    def forked(self) -> None:
        """In a forked child: the plan is the parent's."""
        self._descriptor = -1

    def __len__(self) -> int:
        """How many keys it has."""
        return len(self.keys)


class Plan(Order):
    """A plan in force. Iterating it yields opened shards in order; `holds` of them are open at once."""

    def __init__(self, cache: ShardCache, keys: list[str], holds: int) -> None:
        super().__init__(cache, keys, holds)
        self._cache = cache

    def renew(self, wait: float | None = None) -> None:
        """Tell the daemon, and hold the file that it made."""
        if not self.inert:
            said = self._cache.call("PUT", self._target, self._body, wait=wait)
            self.warning = said.get("warning")
            self._hold(self._cache.local_path(said["file"]))
            with contextlib.suppress(CacheError):
                self._cache.call("POST", "/v1/touch", self._here, wait=wait)

    def __iter__(self) -> Iterator[Shard]:
        """Opened shards from the plan's place on, in its order; each is closed when `holds` newer ones are wanted."""
        try:
            while (position := self.position) < len(self.keys):
                self._make_room()
                yield self._yielded(self._cache.open(self.keys[position]), position)
        finally:
            self._close_out()

    def close(self) -> None:
        """End the plan."""
        self.end(tell=True)

    def end(self, *, tell: bool, deadline: float = float("inf")) -> bool:
        """End the plan; whether the daemon can be told. Untold, too, it ends a plan whose file is free."""
        if self._leave() and tell:
            return self._cache.tell("DELETE", self._target, min(TELL, deadline - time.monotonic()))
        return tell

    def __enter__(self) -> Self:
        """The plan itself; it ends with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the plan."""
        self.close()
