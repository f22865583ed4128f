"""Where the objects of a web source are: under a prefix, or at the whole URLs that a file lists."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol, TypeVar

from cachedaemon.errors import BadRequest, Missing, OriginUnavailable
from cachedaemon.model import Ref
from cachedaemon.origins.base import refuse_dots
from cachedaemon.origins.targets import placed
from cachedaemon.origins.urltable import Malformed, UrlTable, table_of

log = logging.getLogger(__name__)

T = TypeVar("T")
_Stamp = tuple[int, int, int, int]


class Places(Protocol):
    """How a source's keys become URLs."""

    async def look(self) -> None:
        """`OriginUnavailable` when no URL can be told at all."""

    def check_key(self, key: str) -> None:
        """`BadRequest` for a key that can have no URL."""

    async def find(self, ref: Ref) -> str:
        """The URL of an object as it is now. Raises `Missing`, `OriginUnavailable`."""

    async def keys(self) -> list[str]:
        """All keys, in order; `BadRequest` where nobody knows them."""


class Prefix:
    """Keys in their place in one URL."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url

    async def look(self) -> None:
        """There is nothing to look at."""

    def check_key(self, key: str) -> None:
        """No key climbs out of the URL's path."""
        refuse_dots(self._name, key)

    async def find(self, ref: Ref) -> str:
        """The URL with the key in its place."""
        return placed(self._url, ref.key)

    async def keys(self) -> list[str]:
        """A web server has no list of its objects."""
        raise BadRequest(f"{self._name}: an http source cannot list its keys; name them")


class Listed:
    """Keys and URLs of a file, which is looked at for each object and read again when it has changed.

    A new file that cannot be used is told of in the log, once, and the last one that could be is kept; likewise one that
    has gone, since it may be about to be replaced. `patience`: seconds that looking may take, None for no limit.
    """

    def __init__(self, name: str, file: Path, patience: float | None, threads: Executor) -> None:
        self._name = name
        self._file = file
        self._patience = patience
        self._threads = threads
        self._reading = threading.Lock()
        self._table: UrlTable | None = None
        self._stamp: _Stamp | None = None

    async def look(self) -> None:
        """Whether the file can be used."""
        await self._in_thread(f"source {self._name}", lambda table: table)

    def check_key(self, key: str) -> None:
        """What is not in the file is missing, whatever it looks like."""

    async def find(self, ref: Ref) -> str:
        """The URL beside the key."""
        url = await self._in_thread(ref, lambda table: table.get(ref.key) or self._next().get(ref.key))
        if url is None:
            raise Missing(f"{ref}: the file of URLs has no such key")
        return url

    async def keys(self) -> list[str]:
        """All keys of the file."""
        return await self._in_thread(f"source {self._name}", lambda table: sorted(table.keys()))

    async def _in_thread(self, what: Ref | str, use: Callable[[UrlTable], T]) -> T:
        """What a thread finds in the table; the file's mount can hang like any other."""
        asked = asyncio.get_running_loop().run_in_executor(self._threads, lambda: use(self._now()))
        try:
            async with asyncio.timeout(self._patience):
                return await asked
        except TimeoutError:
            raise OriginUnavailable(f"{what}: the file of URLs cannot be read in time") from None
        except (OSError, Malformed) as cause:
            raise self._unusable(what, cause) from None

    def _now(self) -> UrlTable:
        """The table of the file as it is; while another thread reads a new one, of the file as it was."""
        if self._reading.acquire(blocking=self._table is None):
            try:
                self._read_if_changed()
            finally:
                self._reading.release()
        return self._in_force()

    def _in_force(self) -> UrlTable:
        assert self._table is not None  # reading the first one fails or makes it
        return self._table

    def _next(self) -> UrlTable:
        """The table that another thread is just reading, once it is there: only then a key is certainly missing."""
        with self._reading:
            return self._in_force()

    def _read_if_changed(self) -> None:
        stamp = _stamp(self._file)
        if self._table is not None and stamp == self._stamp:
            return
        try:
            table = table_of(self._file)
        except (OSError, Malformed) as cause:
            if self._table is None:
                raise
            log.warning("%s; the one before stays in force", self._unusable(f"source {self._name}", cause))
        else:
            self._table = table
        self._stamp = stamp

    def _unusable(self, what: Ref | str, cause: OSError | Malformed) -> OriginUnavailable:
        why = cause.strerror if isinstance(cause, OSError) else cause
        return OriginUnavailable(f"{what}: the file of URLs {str(self._file)!r} cannot be used: {why}")


def _stamp(file: Path) -> _Stamp | None:
    """What tells one content of a file from another; None for one that is not there."""
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
