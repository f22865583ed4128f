"""Commands that change what is here: `prefetch` and `evict`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from cachedaemon.cli import bars, templates
from cachedaemon.cli.coming import Coming, looks
from cachedaemon.cli.link import Json, Link, Socket, Source, cache_of
from cachedaemon.cli.pages import shards
from cachedaemon.cli.words import counted, size
from cachedaemon_client import ShardCache
from cachedaemon_client.errors import BadRequest, CacheError
from cachedaemon_client.job import Job

Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="Shards.", show_default=False)]


def prefetch(  # noqa: PLR0913 - options of the command
    source: Source,
    keys: Keys = None,
    *,
    from_file: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="A file with a key a line; - for standard input.")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option("--template", metavar="TEXT", help="Keys as bash expands them: 'images-{000..999}.zip'."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; 1 unless all shards came.")] = False,
    as_json: Json = False,
    socket: Socket = None,
) -> None:
    """Have shards fetched in the background, in order, as far as they fit. No key: all that the origin lists."""
    wanted = list(_wanted(keys or [], from_file, template or []))
    named = bool(keys or from_file is not None or template)
    with cache_of(source, socket) as cache:
        job = _begin(cache, wanted if named else None)
        if wait:
            _follow(job, looks(cache.socket, source, frozenset(wanted) if named else None))
        _tell(job.refresh(), as_json=as_json)
        if wait and job.state != "done":
            raise CacheError(_shortfall(job), code=job.state, source=source)


def _wanted(keys: list[str], from_file: str | None, template: list[str]) -> Iterator[str]:
    yield from keys
    if from_file is not None:
        yield from _lines(from_file)
    for one in template:
        yield from _expanded(one)


def _expanded(template: str) -> Iterator[str]:
    try:
        return templates.expand(template)
    except ValueError as cause:
        raise typer.BadParameter(f"--template {template!r}: {cause}") from None


def _lines(name: str) -> list[str]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        reason = getattr(cause, "strerror", None) or "not UTF-8"
        raise typer.BadParameter(f"--from {name}: {reason}") from None
    return [line for line in text.split("\n") if line]


def _begin(cache: ShardCache, keys: list[str] | None) -> Job:
    if keys is not None:
        return cache.prefetch(keys)
    try:
        said = cache.call("POST", "/v1/prefetch", {"source": cache.source})
    except BadRequest as cause:
        raise typer.BadParameter(str(cause)) from None
    return Job(cache, said["job"])


def _follow(job: Job, look: Callable[[], Coming]) -> None:
    """Until the job's end. Ctrl-C ends the waiting, and says that it ends nothing else."""
    try:
        with bars.of_keys(job.refresh().total) as bar:
            while job.state == "running":
                time.sleep(bars.LOOK if bar.is_seen or job.done else bars.LOOK / 4)
                job.refresh()
                if bar.is_seen:
                    bar.at(job.done + job.failed, job.bytes, look())
    except KeyboardInterrupt:
        typer.echo(f"cachedaemon: job {job.id} goes on in the daemon", err=True)
        raise


def _tell(job: Job, *, as_json: bool) -> None:
    if as_json:
        names = ("state", "total", "done", "failed", "bytes", "errors")
        typer.echo(json.dumps({"job": job.id} | {name: getattr(job, name) for name in names}))
    elif job.state == "running":
        typer.echo(f"job {job.id}: {counted(job.total, 'shard')} on the way")
    else:
        typer.echo(f"job {job.id}: {job.state}, {job.done} of {counted(job.total, 'shard')} here, {size(job.bytes)}")


def _shortfall(job: Job) -> str:
    """Why not all shards came, in one line."""
    parts = [f"prefetch is {job.state}: {job.done} of {counted(job.total, 'shard')} here"]
    if job.state == "partial":
        parts[0] += ": the rest would displace what nobody has read yet"
    if job.errors:
        more = f" (and {job.failed - 1} more)" if job.failed > 1 else ""
        parts.append(f"{job.failed} failed: {job.errors[0]['message']}{more}")
    return "; ".join(parts)


def evict(
    source: Source,
    keys: Keys = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All shards of the source.")] = False,
    socket: Socket = None,
) -> None:
    """Remove shards that nobody reads. With --all the number of them is printed."""
    if bool(keys) == everything:
        raise typer.BadParameter("allowed are keys, or --all for all shards of the source")
    link = Link(socket)
    wanted = [row["key"] for row in shards(link, source)] if everything else keys or []
    unique = list(dict.fromkeys(wanted))
    refused = [cause for cause in (_refusal(link, source, key) for key in unique) if cause is not None]
    gone = [cause for cause in refused if everything and cause.code == "not_found"]
    failed = [cause for cause in refused if cause not in gone]
    if everything:
        typer.echo(f"{counted(len(unique) - len(refused), 'shard')} evicted")
    if failed:
        raise _several(failed, len(wanted))


def _refusal(link: Link, source: str, key: str) -> CacheError | None:
    """Evict one shard; why it stays, where it does. What is no matter of this shard is raised."""
    try:
        link.delete(f"/v1/shards?{_query(source, key)}", source, key)
    except CacheError as cause:
        if not _is_of_one_shard(cause):
            raise
        return cause
    return None


def _query(source: str, key: str) -> str:
    return urlencode({"source": source, "key": key}, errors="surrogateescape")


def _is_of_one_shard(cause: CacheError) -> bool:
    return cause.code in ("leased", "locked", "not_found", "bad_request")


def _several(failed: list[CacheError], of: int) -> CacheError:
    if of == 1:
        return failed[0]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    message = f"{len(failed)} of {counted(of, 'shard')} not evicted: {failed[0]}{more}"
    return CacheError(message, code=failed[0].code)
