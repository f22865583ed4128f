"""Origins that other distributions bring: entry points of the group `cachedaemon.origins.v1`, named by their scheme.

Nothing is loaded, and nothing looked for, unless a source uses a scheme that this distribution does not know.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cachedaemon.errors import ConfigError

GROUP = "cachedaemon.origins.v1"
"""The number is that of the contract in `cachedaemon.origins.base`."""


def offered() -> tuple[str, ...]:
    """Schemes that distributions which are installed bring."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def check(url: str) -> str:
    """A URL of such a scheme; ValueError says what may stand in it. What it means is for its origin to say."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*", url) or "#" in url:
        msg = "allowed is printable ASCII (anything else as %XX) without a fragment"
        raise ValueError(msg)
    return url


@functools.cache
def origin_class(scheme: str) -> Callable[..., Any]:
    """What makes the origins of this scheme. ConfigError names the distribution that is at fault."""
    found = list(entry_points(group=GROUP, name=scheme))
    if len({entry.value for entry in found}) != 1:
        whose = " and ".join(sorted(map(owner, found))) or "no distribution that is installed"
        msg = f"{scheme}: {whose} bring its origin; allowed is one"
        raise ConfigError(msg)
    return _loaded(found[0])


def _loaded(entry: EntryPoint) -> Callable[..., Any]:
    try:
        made = entry.load()
    except Exception as cause:
        msg = (
            f"the origin for {entry.name} that {owner(entry)} brings cannot be loaded: {type(cause).__name__}: {cause}"
        )
        raise ConfigError(msg) from cause
    if not callable(made):
        msg = f"the origin for {entry.name} that {owner(entry)} brings, {entry.value}, is no class"
        raise ConfigError(msg)
    return made  # type: ignore[no-any-return]  # an entry point can be anything


def owner(entry: EntryPoint) -> str:
    """The distribution that an entry point belongs to, as messages name it."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else f"an unnamed distribution ({entry.value})"
