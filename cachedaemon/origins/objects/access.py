"""The way into a store: a client that is opened once, and anew when its credentials are."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cachedaemon.config import BucketUrl, Credentials, Fetch, Source, credentials_of
from cachedaemon.errors import ConfigError, OriginRefused, OriginUnavailable
from cachedaemon.model import Ref
from cachedaemon.origins.objects.failures import FOREIGN
from cachedaemon.origins.objects.opening import Store, opened
from cachedaemon.pools import started

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLED = 1.0
"""Seconds after a renewal in which credentials that are refused are not renewed once more."""


@dataclass(frozen=True, eq=False)
class Way:
    """A client of the store, and the configured credentials that it has; None where it finds its own."""

    store: Store
    credentials: Credentials | None


class Access:
    """Gives ways into one store. However many ask at once, one of them opens the next."""

    def __init__(self, name: str, url: BucketUrl, source: Source, fetch: Fetch) -> None:
        self._name = name
        self._url = url
        self._source = source
        self._fetch = fetch
        self._patience = fetch.connect_timeout or None
        self._threads = started(2, f"origin-{name}")
        self._lock = asyncio.Lock()
        self._way: Way | None = None
        self._renewed = -SETTLED

    async def now(self, ref: Ref | str) -> Way:
        """The way in as it is configured now: credentials that changed in their file take force at once."""
        credentials = await self._read(ref)
        async with self._lock:
            if self._way is None or self._way.credentials != credentials:
                self._way = await self._open(ref, credentials)
            return self._way

    async def after(self, refused: Way, ref: Ref | str) -> Way | None:
        """Another way than one that the store refused; None where there is none.

        What the library found by itself is found anew, but not at once again; what is configured must have changed.
        """
        credentials = await self._read(ref)
        async with self._lock:
            if self._way is not refused:
                return self._way
            if credentials is not None and credentials == refused.credentials:
                _refuse_expired(credentials, ref)
                return None
            now = asyncio.get_running_loop().time()
            if credentials is None and now - self._renewed < SETTLED:
                return None
            log.info("source %s: the store refuses the credentials, others are tried", self._name)
            self._way = await self._open(ref, credentials)
            self._renewed = asyncio.get_running_loop().time()
            return self._way

    def close(self) -> None:
        """Forget the client: its connections close once no transfer has them."""
        self._way = None
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read(self, ref: Ref | str) -> Credentials | None:
        """As they are now. Read in a thread, since a mount can hang."""
        secret = self._source.credentials
        if secret is None:
            return None
        try:
            return await self._in_thread(lambda: credentials_of(self._url.scheme, secret))
        except TimeoutError:
            raise OriginUnavailable(f"{ref}: the credentials cannot be read in time") from None
        except (ConfigError, ValueError) as cause:
            raise OriginUnavailable(f"{ref}: {cause}") from None

    async def _open(self, ref: Ref | str, credentials: Credentials | None) -> Way:
        try:
            store = await self._in_thread(lambda: opened(self._url, self._source, self._fetch, credentials))
        except TimeoutError:
            raise OriginUnavailable(f"{ref}: the files of the configuration cannot be read in time") from None
        except FOREIGN as cause:
            raise OriginRefused(f"{ref}: the store cannot be asked as configured: {_fault(cause)}") from None
        return Way(store, credentials)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with asyncio.timeout(self._patience):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _refuse_expired(credentials: Credentials, ref: Ref | str) -> None:
    """Credentials that have run out are about to be replaced, by whoever wrote them: that is worth another try."""
    if credentials.expires is not None and credentials.expires <= time.time():
        raise OriginUnavailable(f"{ref}: the configured credentials have expired, and no others are there yet")


def _fault(cause: Exception) -> str:
    """What the library says of the configuration, in its first line; nothing where that could hold a URL."""
    said = str(cause).partition("\n")[0]
    return "a setting cannot be used" if "://" in said else re.sub("^Generic [A-Za-z0-9]+ error: ", "", said)
