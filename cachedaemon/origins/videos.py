"""Videos of web sites, by yt-dlp: `ytdlp:https://host/watch?v={key}`, or `ytdlp:` for YouTube.

The configuration names the host, and a key can name no other: it is escaped into the page's path or query. yt-dlp runs in
a process of its own, one a transfer; see `cachedaemon.foreign.videos` and, for where a page may lead, `foreign.guard`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from cachedaemon.config import YOUTUBE, Fetch, Source, bare_environment
from cachedaemon.errors import BadRequest
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins.base import KEY, refuse_dots
from cachedaemon.origins.foreign import SPARE, Foreign, ForeignStream, Wanted, opened
from cachedaemon.origins.workers import Workers

WORK = 15.0
"""Seconds that yt-dlp may take for a page on a busy machine; it has time limits of its own for what it asks of the site."""
_YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_PATH = "/!$'()*,:@-._~"
"""What a key keeps of itself in a path; in a query nothing but what is never escaped (RFC 3986, 2.3)."""


class VideoOrigin:
    """Videos of one site, by the part of their page's address that tells them apart."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        page = source.url.partition(":")[2]
        self._is_youtube = not page
        self._page = page or YOUTUBE
        self._said = {"insecure": source.insecure, "proxy": source.proxy, "timeout": fetch.stall_timeout or None}
        workers = Workers("videos", bare_environment(), source.concurrency + SPARE, lasting=False)
        self._foreign = Foreign(name, source, fetch, metrics, workers, WORK)

    async def look(self) -> None:
        """A site is asked for videos only."""

    def check_key(self, key: str) -> None:
        """`BadRequest` for what cannot be the id of a video: above all, for what looks like another page's URL."""
        refuse_dots(self._name, key)
        if self._is_youtube and not _YOUTUBE_ID.fullmatch(key):
            raise BadRequest(
                f"{self._name}: {key!r} is no id of a video: allowed are 11 letters, digits, '-' and '_'; "
                "a key names no page of its own"
            )

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[ForeignStream | None]:
        """The file that yt-dlp chooses for the key's page."""
        wanted = Wanted(Ref(self._name, key), {"page": self._target(key), **self._said}, has_parts=False)
        async with opened(self._foreign, wanted, known) as stream:
            yield stream

    def _target(self, key: str) -> str:
        before, _, after = self._page.partition(KEY)
        return before + quote(key, safe="" if "?" in before else _PATH) + after

    async def keys(self) -> list[str]:
        """A site has no list of its videos."""
        raise BadRequest(f"{self._name}: a ytdlp source cannot list its keys; name them")

    async def close(self) -> None:
        """End the processes."""
        await self._foreign.close()
