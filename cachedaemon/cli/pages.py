"""The daemon's list of shards, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from cachedaemon.cli.link import Link


def shards(link: Link, source: str | None, prefix: str = "") -> Iterator[dict[str, Any]]:
    """Rows of `GET /v1/shards`, all pages."""
    query = {"prefix": prefix} | ({"source": source} if source is not None else {})
    after: str | None = ""
    while after is not None:
        said = link.get(
            f"/v1/shards?{urlencode(query | ({'after': after} if after else {}), errors='surrogateescape')}"
        )
        yield from said["shards"]
        after = said["next"]


def require(link: Link, source: str) -> None:
    """Raises `CacheError` for a source that the daemon has not, as its list of shards does."""
    link.get(f"/v1/shards?{urlencode({'source': source, 'limit': 1}, errors='surrogateescape')}")
