"""The table at the end: what was counted, in words that need no knowledge of the daemon."""

from __future__ import annotations

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cachedaemon.demo import show
from cachedaemon.demo.stage import Ran

TITLES = {
    "daemon": "with the daemon",
    "shards": "whole shards per worker",
    "samples": "one request per sample",
}
_HEADS = {"daemon": "with the\ndaemon", "shards": "whole shards\nper worker", "samples": "one request\nper sample"}
NONE = "-"


def table(runs: dict[str, Ran], shards: int, cap: int, epochs: int) -> Table:
    """A row for each figure, a column for each way to read."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column("", no_wrap=True)
    for way in runs:
        made.add_column(_HEADS[way], no_wrap=True, justify="right", style="bold" if way == "daemon" else None)
    for title, figure in _figures(runs, shards, cap, epochs):
        made.add_row(title, *(figure(way, ran) for way, ran in runs.items()))
    return made


def _figures(runs: dict[str, Ran], shards: int, cap: int, epochs: int) -> list[tuple[str, Callable[[str, Ran], str]]]:
    base = runs["daemon"].samples / runs["daemon"].seconds
    per_epoch = [
        (f"  in epoch {epoch + 1}", lambda _, ran, epoch=epoch: f"{ran.samples / epochs / ran.epoch(epoch):,.0f}")
        for epoch in range(epochs)
    ]
    return [
        ("samples per second", lambda _, ran: f"{ran.samples / ran.seconds:,.0f}"),
        *per_epoch,
        ("speed-up by the daemon", lambda way, ran: NONE if way == "daemon" else _times(base, ran)),
        ("time the trainers waited", lambda _, ran: f"{ran.waited:.0%}"),
        ("shards local when opened", lambda _, ran: NONE if ran.hits is None else f"{ran.hits:.0%}"),
        ("transfers per shard", lambda way, ran: NONE if way == "samples" else f"{ran.origin.transfers / shards:.2f}"),
        ("requests to the origin", lambda _, ran: f"{ran.origin.requests:,}"),
        ("bytes from the origin", lambda _, ran: f"{ran.origin.bytes / 1e6:,.0f} MB"),
        ("bytes / least possible", lambda _, ran: NONE if ran.regret is None else f"{ran.regret:.2f}"),
        ("most shards on the disk", lambda way, ran: f"{ran.peak} (cap: {cap})" if way == "daemon" else NONE),
    ]


def _times(base: float, ran: Ran) -> str:
    return f"{base / (ran.samples / ran.seconds):.1f} x"


def explain(console: Console) -> None:
    """What the rows mean, for somebody who reads them for the first time."""
    show.say(
        console,
        "Shards local when opened (the hit ratio): the rest had to be waited for. Transfers per shard: how often the "
        "origin sent a shard whole, over all trainers and epochs. Bytes / least possible: 1.00 is what a cache of this "
        "size would have fetched that knows all that comes. The trainers read the same samples in the same order "
        "each time, and checked every byte.",
    )
