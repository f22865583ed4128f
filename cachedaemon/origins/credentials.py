"""Headers that a source is configured with. Their values may be secrets in files, read again when these change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from cachedaemon.errors import ConfigError, OriginUnavailable
from cachedaemon.model import Ref

T = TypeVar("T")


class Readable(Protocol):
    """A header's value, such as a `Secret`."""

    def value(self) -> str:
        """As it is now; may read the disk. ConfigError when there is none."""


class Credentials:
    """What a source sends with each request to its own site. `patience`: seconds that reading may take, None for no limit."""

    def __init__(self, headers: Mapping[str, Readable], patience: float | None, threads: Executor) -> None:
        self._headers = headers
        self._patience = patience
        self._threads = threads

    async def headers(self, ref: Ref | str) -> dict[str, str]:
        """As they are now; a secret's file is read in a thread, since its mount can hang like any other."""
        if not self._headers:
            return {}
        read = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: {name: secret.value() for name, secret in self._headers.items()}
        )
        said = (f"{ref}: the file of a configured header", f"{ref}: a configured header cannot be sent")
        return await in_time(read, self._patience, *said)


async def in_time(read: Awaitable[T], patience: float | None, file: str, use: str) -> T:
    """A secret that a thread reads; `OriginUnavailable` says which file it is not read from in time, or what cannot be done."""
    try:
        async with asyncio.timeout(patience):
            return await read
    except TimeoutError:
        raise OriginUnavailable(f"{file} cannot be read in time") from None
    except ConfigError as cause:
        raise OriginUnavailable(f"{use}: {cause}") from None
