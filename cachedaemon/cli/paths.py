"""Commands that give local paths: `get` prints them, `exec` runs a program with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer

from cachedaemon.cli import bars, programs
from cachedaemon.cli.coming import looks
from cachedaemon.cli.link import PATIENCE, Socket, Source, Wait, cache_of, cap_of
from cachedaemon.cli.words import plain
from cachedaemon_client import Shard, ShardCache
from cachedaemon_client.errors import BY_CODE, CacheError
from cachedaemon_client.job import Job

NOT_SO_FAR = 125
"""`exec` could not start the program because of the cache, as env(1) and its like say it."""

FRESH = 1.0
"""Seconds that an answer is old at the most whose grace counts as just begun."""

CERTAIN = frozenset({"missing", "origin_refused", "corrupt", "bad_archive", "too_large"})
"""Failures of a shard that would be the same if it were asked for again at once."""

Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Shards, in this order.", show_default=False)]


def get(source: Source, keys: Keys, *, wait: Wait = PATIENCE, socket: Socket = None) -> None:
    """Wait for shards and print a local path a line.

    The shards are leased while this command runs, and kept for the grace time after it ends. More keys than the cache
    has room for come one after the other: each path is then good for the grace time only.
    """
    with cache_of(source, socket, wait) as cache, contextlib.ExitStack() as leases:
        cap = cap_of(cache)
        fits = cap is None or len(set(keys)) <= cap
        held: dict[str, Asked] = {}
        with bars.watching(len(keys), looks(cache.socket, source, frozenset(keys))) as bar:
            for one in _asked(cache, keys, held):
                bar.put(str(one.shard.path))
                bar.done(one.shard.size)
                if fits:
                    held[one.shard.key] = one
                    leases.enter_context(one.shard)
                else:
                    one.shard.close()
        _prolong(cache, held.values())


@dataclass(frozen=True)
class Asked:
    """A shard that the daemon holds too, for the grace time from its answer on."""

    shard: Shard
    at: float
    """Monotonic seconds."""


def _asked(cache: ShardCache, keys: list[str], held: Mapping[str, Asked]) -> Iterator[Asked]:
    """Shards in order, while the ones that follow are on their way; one that is held is not asked for again."""
    job = _begin(cache, keys)
    for key in keys:
        if key not in held:
            _refuse_lost(job, key)
        yield held.get(key) or Asked(cache.acquire(key, lasting=True), time.monotonic())


def _begin(cache: ShardCache, keys: list[str]) -> Job | None:
    """Have all of them brought at once, where there are several."""
    return cache.prefetch(dict.fromkeys(keys)) if len(keys) > 1 else None


def _refuse_lost(job: Job | None, key: str) -> None:
    """Raise what the job found out of this key, where that is certain: the origin need not be asked again."""
    if job is None:
        return
    if job.state == "running":
        job.refresh()
    for said in job.errors:
        if said["key"] == key and said["code"] in CERTAIN:
            raise BY_CODE[said["code"]](said["message"], code=said["code"], source=said["source"], key=key)


def _prolong(cache: ShardCache, held: Iterable[Asked]) -> None:
    """Have the daemon hold the shards that we let go of now: anew those that it may soon have held for long enough."""
    for one in held:
        if time.monotonic() - one.at > FRESH:
            body = {"source": cache.source, "key": one.shard.key, "wait": 0}
            with contextlib.suppress(CacheError):  # the lease went well; this is a courtesy
                cache.call("POST", "/v1/acquire", body, wait=0)


def execute(
    context: typer.Context, source: Source, keys: Keys, *, wait: Wait = PATIENCE, socket: Socket = None
) -> NoReturn:
    """Run a program with the paths of shards, leased until it ends.

    A single {} stands for all paths, as many as there are keys for one each. The exit status is the program's (128 + n
    when signal n ended it), 126 or 127 when it cannot be started, 125 when the shards cannot be had.
    """
    program = _filled(context.obj, keys)
    try:
        with contextlib.ExitStack() as leases:
            paths = _leased(source, keys, leases, socket, wait)
            status = programs.run(program(paths))
    except CacheError as cause:
        typer.echo(f"cachedaemon: {plain(str(cause))}", err=True)
        raise typer.Exit(NOT_SO_FAR) from None
    raise typer.Exit(status)


def _leased(source: str, keys: list[str], leases: contextlib.ExitStack, socket: str | None, wait: float) -> list[str]:
    cache = leases.enter_context(cache_of(source, socket, wait))
    cap = cap_of(cache)
    if cap is not None and len(set(keys)) > cap:
        raise CacheError(f"{len(set(keys))} shards cannot be leased at once: the cap is {cap}", source=source)
    job = _begin(cache, keys)
    with bars.watching(len(keys), looks(cache.socket, source, frozenset(keys))) as bar:
        paths = []
        for key in keys:
            _refuse_lost(job, key)
            shard = leases.enter_context(cache.open(key))
            paths.append(str(shard.path))
            bar.done(shard.size)
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
