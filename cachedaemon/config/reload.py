"""What a reload (SIGHUP) can take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from cachedaemon.config.settings import Settings


def changes(old: Settings, new: Settings) -> tuple[list[str], list[str]]:
    """Paths of the settings that differ: those that take force at run time, and those that need a restart.

    A source that was added or removed is one path, `sources.NAME`.
    """
    found = [change for name in ("cache", "server", "log", "fetch") for change in _between(old, new, name)]
    for name in sorted(old.sources.keys() | new.sources.keys()):
        if name in old.sources and name in new.sources:
            found += _fields(old.sources[name], new.sources[name], f"sources.{name}")
        else:
            found.append((f"sources.{name}", False))
    return [path for path, restart in found if not restart], [path for path, restart in found if restart]


def _between(old: Settings, new: Settings, section: str) -> Iterator[tuple[str, bool]]:
    return _fields(getattr(old, section), getattr(new, section), section)


def _fields(old: BaseModel, new: BaseModel, path: str) -> Iterator[tuple[str, bool]]:
    for name, field in type(old).model_fields.items():
        if getattr(old, name) != getattr(new, name):
            extra = field.json_schema_extra
            yield f"{path}.{name}", isinstance(extra, dict) and bool(extra.get("restart"))
