"""How far transfers are that somebody waits for, as `GET /v1/status` says it."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from cachedaemon.cli.link import Link


@dataclass(frozen=True)
class Coming:
    """Shards under way."""

    bytes: int = 0
    """Bytes of them that have come."""
    shards: float = 0.0
    """The same in shards: half of one is 0.5. What has no known size counts as nothing."""
    unsized: bool = False
    """Whether something comes, and of nothing that comes the size is known."""


def coming(fetches: list[dict[str, Any]], source: str, keys: Container[str] | None) -> Coming:
    """Of all transfers those of these keys; None: of all keys of the source."""
    mine = [one for one in fetches if one["source"] == source and (keys is None or one["key"] in keys)]
    # A transfer that is complete is not a shard yet: it is checked, or unpacked.
    parts = [min(0.99, one["bytes"] / one["size"]) for one in mine if one["size"]]
    got = sum(one["bytes"] for one in mine)
    return Coming(got, sum(parts), bool(got) and not parts)


def looks(path: str, source: str, keys: Container[str] | None) -> Callable[[], Coming]:
    """Looks at the daemon at the socket `path`, over a connection of its own."""
    link = Link(path)
    return lambda: coming(link.get("/v1/status")["fetches"], source, keys)
