"""Commands that only look: `status`, `ls`, `watch`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from cachedaemon.cli.link import Json, Link, Socket
from cachedaemon.cli.pages import require, shards
from cachedaemon.cli.words import columns, counted, plain, size, span

_HEADING = ["state", "size", "last used", "shard", "held by"]
"""Over the columns of `ls`, on a terminal."""

Filter = Annotated[str | None, typer.Argument(metavar="SOURCE", help="Only this source.", show_default=False)]


def status(*, as_json: Json = False, socket: Socket = None) -> None:
    """Say what the daemon has and does."""
    said = Link(socket).get("/v1/status")
    if as_json:
        typer.echo(json.dumps(said))
        return
    for line in _status(said):
        typer.echo(line)


def _status(said: dict[str, Any]) -> list[str]:
    health = "; ".join(f"{area}: {why}" for area, why in said["health"].items()) or "healthy"
    return [
        f"cachedaemon {said['version']}, up {span(said['uptime'])}, {plain(health)}",
        *_cache(said["cache"]),
        f"waiting    {counted(said['waiters'], 'request')}",
        *_table("sources", [_source(name, one) for name, one in said["sources"].items()]),
        *_table("fetches", [_fetch(one) for one in said["fetches"]]),
        *_table(
            "plans", [[p["id"], p["source"], f"{p['position']} of {p['keys']}", p["state"]] for p in said["plans"]]
        ),
    ]


def _cache(cache: dict[str, Any]) -> list[str]:
    shards_cap = f"cap: {cache['max_shards']}" if cache["max_shards"] else "no cap"
    bytes_cap = f"cap: {size(cache['max_bytes'])}" if cache["max_bytes"] else "no cap"
    line = f"cache      {counted(cache['shards'], 'shard')} ({shards_cap}), {size(cache['bytes'])} ({bytes_cap})"
    full = cache.get("full")
    if full:
        line += f"; full: {full['leased']} leased, {full['in_transfer']} in transfer, {full['waiting']} wait for room"
    regret = cache.get("regret")
    return [line] if regret is None else [line, f"regret     {regret:.2f} times the least bytes possible for plans"]


def _source(name: str, one: dict[str, Any]) -> list[str]:
    place = one["url"] or f"URLs of {one['urls']}"
    return [name, plain(place), counted(one["shards"], "shard"), size(one["bytes"]), f"{one['fetching']} fetching"]


def _fetch(one: dict[str, Any]) -> list[str]:
    whole = f" of {size(one['size'])}" if one["size"] else ", size unknown"
    return [plain(f"{one['source']}/{one['key']}"), size(one["bytes"]) + whole]


def _table(title: str, rows: list[list[str]]) -> list[str]:
    return [title, *(f"  {line}" for line in columns(rows))] if rows else []


def ls(
    source: Filter = None,
    *,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys that begin so.")] = "",
    holders: Annotated[
        bool, typer.Option("--holders", help="Which processes hold each shard, as far as seen.")
    ] = False,
    as_json: Json = False,
    socket: Socket = None,
) -> None:
    """List the shards that are here."""
    link = Link(socket)
    rows = list(shards(link, source, prefix))
    if holders:
        from cachedaemon.cli.holders import name_holders  # noqa: PLC0415 - this reads all locks of the host

        name_holders(rows, link.path)
    if as_json:
        typer.echo("[" + ",\n ".join(json.dumps(row) for row in rows) + "]")
        return
    now = time.time()
    # A program that reads the lines has no use for it, and one that counts them would count it.
    heading = [_HEADING[: 5 if holders else 4]] if rows and sys.stdout.isatty() else []
    for line in columns([*heading, *(_row(row, now) for row in rows)], right=frozenset({1, 2})):
        typer.echo(line)


def _row(row: dict[str, Any], now: float) -> list[str]:
    held = "leased" if row["leased"] else "-" if row["state"] == "ready" else row["state"]
    cells = [held, size(row["size"]), f"{span(now - row['last_used'])} ago", plain(f"{row['source']}/{row['key']}")]
    if "holders" in row:
        cells.append(
            ", ".join(f"{plain(one['command'])} ({one['pid']}) of uid {one['user']}" for one in row["holders"])
        )
    return cells


def watch(
    source: Filter = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also what was evicted or failed.")] = False,
    socket: Socket = None,
) -> None:
    """Print a JSON line for each shard that becomes local or appears in a watched folder, from now on.

    Waits out restarts of the daemon.
    """
    from cachedaemon.cli.stream import events  # noqa: PLC0415 - brings http.client with it

    link = Link(socket)
    if source is not None:
        require(link, source)
    for event in events(link.path):
        if (everything or event["event"] in ("ready", "appeared")) and source in (None, event["source"]):
            print(json.dumps(event), flush=True)  # noqa: T201 - the command's output
