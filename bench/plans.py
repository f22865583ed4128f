"""Figures 3 and 7: what an epoch brings over the link, and how long a trainer stands still, with the order known ahead.

    python bench/plans.py [--shards 400] [--epochs 4] [--step 0.05] [--figure 3 7]

A trainer opens a shard, works on it for a step, and opens the next, through shuffled epochs that its plan tells all at once.
Beside the daemon, in the same run: the same daemon with `policy = "lru"`, which fetches ahead for plans too but keeps what
was used last, and for figure 7 reads straight from the origin, one at a time and as many at once as the daemon may have.

Figure 3: bytes after the first epoch, over the least that any policy can do with: (1-c) of the data an epoch, where c of
the shards fit; an answer takes four steps. Figure 7: the part of its time that the trainer works after the first epoch, with
a link of 0.6 of what it consumes, which allows it to work always when c = 0.5; and with an answer that takes four steps.
"""

from __future__ import annotations

import argparse
import os

from side_by_side import main, table, verdict
from trainers import Link, Ran, Side, epochs, play

SIZE = 20_000
PARTS = (0.5, 0.8, 0.9)
"""c: the part of the shards that fits."""
FETCH = 4
"""Steps that an answer takes, where the link has no other limit."""
CONNECTIONS = 8
"""That the daemon may have to one source, and a rival that reads ahead."""


def figure_3(shards: int, count: int, step: float) -> None:
    """Bytes an epoch after the first."""
    keys, link = epochs(shards, count), Link(SIZE, latency=FETCH * step)
    chosen = [(c, policy) for c in PARTS for policy in ("auto", "lru")]
    ran = play([Side(f"{c} {policy}", shards, link, [keys], step, int(c * shards), policy) for c, policy in chosen])
    times = {
        one: (side.sent - shards * SIZE) / ((count - 1) * (1 - one[0]) * shards * SIZE)
        for one, side in zip(chosen, ran, strict=True)
    }
    rows = [
        [
            f"c = {c}, {policy}",
            f"{side.transfers:,}",
            f"{times[c, policy]:.2f}",
            f"{side.hits:.0%}",
            _works(side, shards),
        ]
        for (c, policy), side in zip(chosen, ran, strict=True)
    ]
    table([f"{shards} shards, {count} epochs", "transfers", "x least, later", "local", "works, later"], rows)
    for c in PARTS:
        verdict(3, f"c = {c}, bytes of an epoch after the first / (1-c)D", times[c, "auto"], at_most=1.05)
        print(f"    lru beside it: {times[c, 'lru']:.2f}")


def figure_7(shards: int, count: int, step: float) -> None:
    """How much of its time a trainer works. All reads from the origin cost alike: an epoch of them is enough."""
    keys = epochs(shards, count)
    links = {
        "link of 0.6": Link(SIZE, rate=0.6 * SIZE / step),
        f"fetch of {FETCH} uses": Link(SIZE, latency=FETCH * step),
    }
    sides = {
        what: [
            Side("plan", shards, link, [keys], step, shards // 2),
            Side("lru", shards, link, [keys], step, shards // 2, "lru"),
            Side("direct, as needed", shards, link, [keys[:shards]], step),
            Side(f"direct, {CONNECTIONS} ahead", shards, link, [keys[:shards]], step, ahead=CONNECTIONS),
        ]
        for what, link in links.items()
    }
    ran = iter(play([side for some in sides.values() for side in some]))
    for what, some in sides.items():
        later = _rows(f"{what}, c = 0.5", some, [next(ran) for _ in some], shards)
        verdict(7, f"{what}: the part of its time that the trainer works", later, at_least=0.95)


def _rows(title: str, sides: list[Side], ran: list[Ran], shards: int) -> float:
    """A row for each side; what the first one reached."""
    later = [one.utilisation(shards if side.cap else 0) for side, one in zip(sides, ran, strict=True)]
    rows = [
        [side.name, f"{works:.3f}", f"{one.utilisation():.3f}", f"{one.transfers / one.uses:.2f}", f"{one.busy:.1f}"]
        for side, one, works in zip(sides, ran, later, strict=True)
    ]
    table([title, "works, later", "with the first", "transfers a use", "CPU s"], rows)
    return later[0]


def _works(ran: Ran, first: int) -> str:
    return f"{ran.utilisation(first):.3f}"


def run() -> None:
    """Both figures, one after the other."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=400)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--step", type=float, default=0.05, help="seconds that the trainer works on a shard")
    options.add_argument("--figure", type=int, nargs="+", choices=(3, 7), default=(3, 7))
    chosen = options.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} before")
    if 3 in chosen.figure:
        figure_3(chosen.shards, chosen.epochs, chosen.step)
    if 7 in chosen.figure:
        figure_7(chosen.shards // 4, chosen.epochs, 4 * chosen.step)  # longer than what the link's limit evens out
    print(f"load average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main(run)
