"""Commands that give local paths: `get` prints them, `exec` runs a program with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Annotated, NoReturn

import typer

from cachedaemon.cli import bars, programs
from cachedaemon.cli.link import PATIENCE, Socket, Source, Wait, cache_of, cap_of
from cachedaemon_client import Shard, ShardCache
from cachedaemon_client.errors import CacheError

NOT_SO_FAR = 125
"""`exec` could not start the program because of the cache, as env(1) and its like say it."""

Keys = Annotated[list[str], typer.Argument(metavar="KEY", help="Shards, in this order.", show_default=False)]


def get(source: Source, keys: Keys, *, wait: Wait = PATIENCE, socket: Socket = None) -> None:
    """Wait for shards and print a local path a line.

    The shards are leased while this command runs, and kept for the grace time after it ends. More keys than the cache
    has room for come one after the other: each path is then good for the grace time only.
    """
    with cache_of(source, socket, wait) as cache, contextlib.ExitStack() as leases, bars.of_keys(len(keys)) as bar:
        held = _hold(cache, keys, leases)
        for key, path in zip(keys, held, strict=True):
            bar.put(path)
            bar.done(key)
        _begin_grace(cache, keys)


def _hold(cache: ShardCache, keys: list[str], leases: contextlib.ExitStack) -> Iterator[str]:
    """Paths as they come; their leases end with `leases`, unless the shards do not fit all together."""
    cap = cap_of(cache)
    fits = cap is None or len(set(keys)) <= cap
    for shard in _opened(cache, keys):
        if fits:
            leases.enter_context(shard)
            yield str(shard.path)
        else:
            with shard:
                _begin_grace(cache, [shard.key])
                yield str(shard.path)


def _opened(cache: ShardCache, keys: list[str]) -> Iterator[Shard]:
    """Shards in order, while the ones that follow are on their way."""
    if len(keys) > 1:
        cache.prefetch(dict.fromkeys(keys))
    for key in keys:
        yield cache.open(key)


def _begin_grace(cache: ShardCache, keys: Iterable[str]) -> None:
    """Have the daemon hold the shards that we let go of now, for as long as it holds one for whoever asks."""
    for key in dict.fromkeys(keys):
        with contextlib.suppress(CacheError):  # the lease went well; this is a courtesy
            cache.call("POST", "/v1/acquire", {"source": cache.source, "key": key, "wait": 0}, key=key, wait=0)


def execute(
    context: typer.Context, source: Source, keys: Keys, *, wait: Wait = PATIENCE, socket: Socket = None
) -> NoReturn:
    """Run a program with the paths of shards, leased until it ends: exec SOURCE KEY... -- CMD {}...

    A single {} stands for all paths, as many as there are keys for one each. The exit status is the program's (128 + n
    when signal n ended it), 126 or 127 when it cannot be started, 125 when the shards cannot be had.
    """
    program = _filled(context.obj, keys)
    try:
        with contextlib.ExitStack() as leases:
            paths = _leased(source, keys, leases, socket, wait)
            status = programs.run(program(paths))
    except CacheError as cause:
        typer.echo(f"cachedaemon: {cause}", err=True)
        raise typer.Exit(NOT_SO_FAR) from None
    raise typer.Exit(status)


def _leased(source: str, keys: list[str], leases: contextlib.ExitStack, socket: str | None, wait: float) -> list[str]:
    cache = leases.enter_context(cache_of(source, socket, wait))
    cap = cap_of(cache)
    if cap is not None and len(set(keys)) > cap:
        raise CacheError(f"{len(set(keys))} shards cannot be leased at once: the cap is {cap}", source=source)
    with bars.of_keys(len(keys)) as bar:
        paths = []
        for shard in _opened(cache, keys):
            paths.append(str(leases.enter_context(shard).path))
            bar.done(shard.key)
    return paths


def _filled(command: list[str] | None, keys: list[str]) -> programs.Template:
    """What makes the command line from paths; a usage error when it cannot be meant."""
    if not command:
        raise typer.BadParameter("the program is missing: exec SOURCE KEY... -- CMD {}...")
    places = command.count(programs.PLACE)
    if places not in (1, len(keys)):
        raise typer.BadParameter(
            f"{places} times {{}} for {len(keys)} keys: allowed are one {{}} for all paths, or one for each key"
        )
    return programs.Template(command)
