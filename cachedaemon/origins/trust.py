"""Whom a source's connections trust: the system's authorities, those of the setting `ca`, or anybody."""

from __future__ import annotations

import asyncio
import os
import ssl
from concurrent.futures import Executor
from pathlib import Path

import aiohttp

from cachedaemon.config import Source

_Stamp = tuple[int, int, int, int]


class NoAuthorities(aiohttp.ClientError):
    """The file of the certificates that the origin is trusted by cannot be used any more."""


class Trust:
    """The authorities of one source, read when they are first needed; `threads` read the file."""

    def __init__(self, source: Source, threads: Executor) -> None:
        self._file = source.ca
        self._anybody = source.insecure
        self._threads = threads
        self._stamp: _Stamp | None = None
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext | bool:
        """As aiohttp wants it. Raises `NoAuthorities`."""
        if self._anybody or self._file is None:
            return not self._anybody
        return self._context or await self._read(self._file)

    async def has_changed(self) -> bool:
        """Whether others are trusted than before, since the file has changed: a certificate of theirs is worth another look."""
        if self._anybody or self._file is None:
            return False
        before = self._stamp
        await self._read(self._file)
        return self._stamp != before

    async def _read(self, file: Path) -> ssl.SSLContext:
        read = asyncio.get_running_loop().run_in_executor(self._threads, _authorities, file, self._stamp)
        self._stamp, context = await read
        self._context = context or self._context
        assert self._context is not None  # the first time there is one
        return self._context


def _authorities(file: Path, known: _Stamp | None) -> tuple[_Stamp, ssl.SSLContext | None]:
    """The file's identity and content; None for what is known already."""
    try:
        stat = os.stat(file)
        stamp = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return stamp, None if stamp == known else ssl.create_default_context(cafile=str(file))
    except OSError as cause:  # ssl.SSLError is one
        raise NoAuthorities from cause
