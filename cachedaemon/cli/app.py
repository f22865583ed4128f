"""All commands in one table, and what becomes of an error that leaves one."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from cachedaemon.cli import fetching, looking, paths, serving, top, verifying
from cachedaemon.cli.words import plain
from cachedaemon.errors import CacheDaemonError
from cachedaemon_client.errors import CacheError, DaemonUnavailable, Refused

FAILED = 1
NO_DAEMON = 3

app = typer.Typer(
    name="cachedaemon",
    help="Keep training shards on this node: one transfer per shard, leases kept by the kernel.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would read [KEY...] as markup
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command whose usage line is written as manual pages have it: SOURCE KEY..."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line. The program behind `exec` is none of the parser's arguments."""
        pieces = [re.sub(r"^\{(.+)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]
        return [*pieces, "--", "CMD", "{}..."] if self.name == "exec" else pieces


for _name, _command in (
    ("serve", serving.serve),
    ("get", paths.get),
    ("exec", paths.execute),
    ("prefetch", fetching.prefetch),
    ("status", looking.status),
    ("ls", looking.ls),
    ("evict", fetching.evict),
    ("verify", verifying.verify),
    ("top", top.top),
    ("watch", looking.watch),
    ("check-config", serving.check_config),
    ("demo", serving.demo),
):
    app.command(_name, cls=_Command)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cachedaemon import __version__  # noqa: PLC0415 - finding it takes longer than a command

        typer.echo(f"cachedaemon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep training shards on this node: one transfer per shard, leases kept by the kernel."""


def run(arguments: list[str]) -> None:
    """Run a command; every error that is told to users ends in one line and an exit status."""
    words, program = _split(arguments)
    try:
        app(words, prog_name="cachedaemon", obj=program)
    except DaemonUnavailable as cause:
        _fail(str(cause), NO_DAEMON)
    except Refused as cause:  # the daemon's own refusal, or a socket that this user cannot reach it by
        _fail(str(cause), NO_DAEMON if cause.code == "unreachable" else FAILED)
    except (CacheError, CacheDaemonError) as cause:
        _fail(str(cause), FAILED)
    except BrokenPipeError:  # typer knows it only where a command prints; here it came with the last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as cause:
        _fail(str(cause), FAILED)


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """The words for us, and for `exec` the program behind `--`, which the parser would not keep apart."""
    if arguments[:1] != ["exec"] or "--" not in arguments:
        return arguments, None
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _fail(message: str, status: int) -> NoReturn:
    line = "; ".join(part for part in message.splitlines() if part.strip())
    typer.echo(f"cachedaemon: {plain(line)}", err=True)  # it may name keys that anybody has chosen
    sys.exit(status)
