"""The command that has shards hashed anew: `verify`."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from cachedaemon.cli import bars
from cachedaemon.cli.coming import Coming
from cachedaemon.cli.link import Json, Link, Socket
from cachedaemon.cli.words import counted, size
from cachedaemon_client.errors import CacheError

Only = Annotated[str | None, typer.Argument(metavar="SOURCE", help="Only this source.", show_default=False)]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="Only these shards.", show_default=False)]


def verify(source: Only = None, keys: Keys = None, *, as_json: Json = False, socket: Socket = None) -> None:
    """Have shards that are here hashed anew, and those that are damaged fetched again.

    1 when one could not be, or when a shard that is named is not here.
    """
    link = Link(socket)
    body = {"source": source, "keys": keys or None}
    job = link.post("/v1/verify", {name: value for name, value in body.items() if value is not None})["job"]
    said = _followed(link, job)
    typer.echo(json.dumps(said) if as_json else _summary(said))
    if said["state"] != "done":
        raise CacheError(_shortfall(said), code="failed", source=source)


def _followed(link: Link, job: str) -> dict[str, Any]:
    """The job at its end. Ctrl-C ends the waiting, and says that it ends nothing else."""
    try:
        said = _look(link, job)
        with bars.of_keys(said["total"]) as bar:
            while True:
                bar.at(said["done"] + said["failed"], said["bytes"], Coming())
                if said["state"] != "running":
                    return said
                time.sleep(bars.LOOK if bar.is_seen or said["done"] else bars.LOOK / 4)
                said = _look(link, job)
    except KeyboardInterrupt:
        typer.echo(f"cachedaemon: job {job} goes on in the daemon", err=True)
        raise


def _look(link: Link, job: str) -> dict[str, Any]:
    return dict(link.get(f"/v1/jobs/{job}"))


def _summary(said: dict[str, Any]) -> str:
    checked = said["done"] + said["failed"] - said["gone"] - said["absent"]
    parts = [
        f"{counted(checked, 'shard')} checked, {size(said['bytes'])}",
        f"{said['damaged']} damaged, {said['fetched_again']} fetched again, {said['failed'] - said['absent']} failed",
    ]
    if said["gone"]:
        parts.append(f"{said['gone']} not here any more")
    if said["absent"]:
        parts.append(f"{said['absent']} not here")
    return ": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])


def _shortfall(said: dict[str, Any]) -> str:
    """What is wrong still, in one line."""
    if not said["errors"]:
        return f"the verification ended early: {said['done']} of {counted(said['total'], 'shard')} checked"
    more = f" (and {said['failed'] - 1} more)" if said["failed"] > 1 else ""
    return f"{said['failed']} of {counted(said['total'], 'shard')} failed: {said['errors'][0]['message']}{more}"
