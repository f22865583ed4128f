"""Commands around the daemon itself: `serve`, `check-config`, `demo`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from cachedaemon.config import Settings

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration. Default: $CACHEDAEMON_CONFIG, /etc/cachedaemon/cachedaemon.toml where it exists.",
        show_default=False,
    ),
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="NAME=URL", help="A source; may be given several times.", show_default=False),
]


def serve(  # noqa: PLR0913 - options of the command
    *,
    config: Config = None,
    source: Sources = None,
    cache_dir: Annotated[str | None, typer.Option("--cache-dir", metavar="DIR", help="Folder of the cache.")] = None,
    max_shards: Annotated[str | None, typer.Option("--max-shards", metavar="N", help="The shard cap.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="The byte cap, such as 200GB.")
    ] = None,
    socket: Annotated[str | None, typer.Option("--socket", metavar="PATH", help="The Unix socket.")] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Listener for metrics and health; '': none.")
    ] = None,
) -> None:
    """Run the daemon in the foreground. Flags win over the environment, that over the file."""
    signal.signal(signal.SIGTERM, _leave)  # until the loop has its own: for PID 1 the kernel has no default action
    from cachedaemon.config import take_handed  # noqa: PLC0415 - pydantic is heavy

    handed = take_handed(os.environ)
    flags = _flags(source or [], cache_dir, max_shards, max_bytes, socket, http)
    load = _loader(config, flags)
    settings = load()
    from cachedaemon.daemon import run  # noqa: PLC0415 - heavy, and of no use to a wrong configuration

    run(settings, load, handed)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)


def _flags(sources: list[str], *values: str | None) -> dict[str, object]:
    names = ("cache.dir", "cache.max_shards", "cache.max_bytes", "server.socket", "server.http")
    flags: dict[str, object] = dict(zip(names, values, strict=True))
    for one in sources:
        name, given, url = one.partition("=")
        if not (name and given and url):
            raise typer.BadParameter(f"--source {one!r}: allowed is NAME=URL")
        flags[f"sources.{name}.url"] = url
    return flags


def _loader(config: str | None, flags: dict[str, object]) -> Callable[[], Settings]:
    """Reads the configuration: now, and again at each SIGHUP."""
    from cachedaemon.config import load  # noqa: PLC0415 - pydantic is heavy

    return lambda: load(config, os.environ, flags)


def check_config(*, config: Config = None) -> None:
    """Check the configuration, as `serve` would read it, and say what it comes to."""
    settings = _loader(config, {})()
    cache, server = settings.cache, settings.server
    typer.echo(f"the configuration is good: cache {cache.dir}, socket {server.socket}")
    from cachedaemon.config import public_url  # noqa: PLC0415 - as above

    for name, one in settings.sources.items():
        typer.echo(f"  source {name}: {public_url(one.url) or f'URLs of {one.urls}'}")
    import asyncio  # noqa: PLC0415 - as above

    import uvloop  # noqa: PLC0415 - as above

    from cachedaemon.sources import troubles  # noqa: PLC0415 - as above

    # The daemon's own loop: asyncio's warns now and then of a helper that ended by itself while it was being ended.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for said in runner.run(troubles(settings.sources, settings.fetch)):
            typer.echo(f"cachedaemon: warning: {said}", err=True)


def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running to play with, until Ctrl-C.")] = False,
) -> None:
    """Show what this is good for: a small data set, a slow origin, the daemon and a few trainers. No network needed."""
    from cachedaemon.demo import run  # noqa: PLC0415 - only this command needs it

    raise typer.Exit(run(keep=keep))
