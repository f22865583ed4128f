"""A plan: the order in which this process will want shards, told to the daemon ahead."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachedaemon_client import process
from cachedaemon_client.errors import BadRequest
from cachedaemon_client.lease import give_back, hold_plan

if TYPE_CHECKING:
    from cachedaemon_client.cache import ShardCache
    from cachedaemon_client.shard import Shard


class Plan:
    """A plan in force. Iterating it yields opened shards in order, and closes each when `holds` newer ones are out.

    It lives as long as this process holds its file: a killed trainer's plan is gone at once. A plan does not survive
    the daemon; it is made again when the daemon's generation changes. In a forked child it is inert.
    """

    def __init__(self, cache: ShardCache, name: str, keys: list[str], holds: int) -> None:
        if holds < 1:
            raise BadRequest(f"a plan holds at least 1 shard, not {holds}", code="bad_request", source=cache.source)
        self._cache = cache
        self._epoch = process.epoch[0]
        self._descriptor = -1
        self.id = name
        self.keys = keys
        self.holds = holds
        self.position = 0
        """Index of the next key to open."""
        self._make()

    def _make(self) -> None:
        """Tell the daemon, and hold the file that it made."""
        self._let_go()
        body = {"source": self._cache.source, "keys": self.keys, "position": self.position, "holds": self.holds}
        said: dict[str, Any] = self._cache.call("PUT", f"/v1/plans/{self.id}", body)
        with contextlib.suppress(FileNotFoundError):  # ended again already; the next generation makes it anew
            self._descriptor = hold_plan(self._cache.local_path(said["file"]))

    def opened(self, key: str) -> None:
        """A shard was opened; when it is the plan's next, its place moves."""
        if self.position < len(self.keys) and self.keys[self.position] == key and not self._inert:
            self.position += 1
            self._cache.place(self.id, self.position)

    def renew(self) -> None:
        """The daemon is another one: make the plan again."""
        if not self._inert:
            self._make()

    @property
    def _inert(self) -> bool:
        return self._epoch != process.epoch[0]

    def __iter__(self) -> Iterator[Shard]:
        """Opened shards from the plan's place on, in its order."""
        out: deque[Shard] = deque()
        try:
            while self.position < len(self.keys):
                while len(out) >= self.holds:
                    out.popleft().close()
                shard = self._cache.open(self.keys[self.position])
                out.append(shard)
                yield shard
        finally:
            for shard in out:
                shard.close()

    def __len__(self) -> int:
        """How many keys it has."""
        return len(self.keys)

    def close(self) -> None:
        """End the plan."""
        if not self._inert and self._cache.forget(self.id):
            self._let_go()  # without an answer, too, the daemon ends a plan whose file is free
            self._cache.tell("DELETE", f"/v1/plans/{self.id}")

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and not self._inert:
            give_back(descriptor)

    def forked(self) -> None:
        """In a forked child: the plan is the parent's."""
        self._descriptor = -1

    def __enter__(self) -> Plan:
        """The plan itself; it ends with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the plan."""
        self.close()
