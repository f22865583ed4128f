"""A plan, for asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachedaemon_client.errors import CacheError, DaemonUnavailable
from cachedaemon_client.plan import Order
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Self

    from cachedaemon_client.aio import ShardCache


class Plan(Order):
    """A plan, in force once it was awaited or within `async with`; iterating it yields opened shards in order."""

    def __init__(self, cache: ShardCache, keys: list[str], holds: int) -> None:
        super().__init__(cache, keys, holds)
        self._cache = cache

    async def renew(self, wait: float | None = None) -> None:
        """Tell the daemon, and hold the file that it made."""
        if not self.inert:
            said = await self._cache.call("PUT", self._target, self._body, wait=wait)
            self.warning = said.get("warning")
            self._hold(await self._cache.local_path(said["file"]))
            with contextlib.suppress(CacheError):
                await self._cache.call("POST", "/v1/touch", self._here, wait=wait)

    async def __aiter__(self) -> AsyncIterator[Shard]:
        """Opened shards from the plan's place on, in its order; each is closed when `holds` newer ones are wanted."""
        try:
            while (position := self.position) < len(self.keys):
                self._make_room()
                yield self._yielded(await self._cache.open(self.keys[position]), position)
        finally:
            self._close_out()

    async def close(self) -> None:
        """End the plan."""
        await self.end(tell=True)

    async def end(self, *, tell: bool) -> bool:
        """End the plan; whether the daemon can be told. Untold, too, it ends a plan whose file is free."""
        if self._leave() and tell:
            try:
                await self._cache.call("DELETE", self._target, wait=0.0)
            except CacheError as cause:
                return not isinstance(cause, DaemonUnavailable)
        return tell

    async def _start(self) -> Self:
        await self.renew()
        self._cache.start(self)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """The plan, in force."""
        return self._start().__await__()

    async def __aenter__(self) -> Self:
        """The plan, in force."""
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the plan."""
        await self.close()
