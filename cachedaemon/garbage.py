"""When the interpreter looks for garbage, and how soon a busy thread lets the loop go on.

What lives long here is many objects without cycles: shards, plans, who wants what. The interpreter would look through all of
them whenever planning has made enough new ones, and the loop stands still for a tenth of a second with 100,000 shards.
So only the young ones are looked through as they come (cycles mostly die young), all of them now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator

EVERY = 600.0
"""Seconds from one look through everything to the next."""
MIDDLE = 3
"""Looks through what is new before one through what outlived those: seldom, that one would take long."""
NEVER = 1_000_000
"""Looks through the younger ones before one through all: more than there are in the time between two of ours."""
SWITCH = 0.001
"""Seconds that a thread keeps the interpreter while the loop waits for it; the interpreter's own 5 ms add up in a busy time."""


def spare_the_loop() -> None:
    """From now on nothing is looked through but what is young, and threads take short turns."""
    young, *_ = gc.get_threshold()
    gc.set_threshold(young, MIDDLE, NEVER)
    sys.setswitchinterval(SWITCH)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While much is made that holds no cycle: a list of 100,000 is looked through whole, over and over while it is young."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep() -> None:
    """What is here now stays: it is not looked through any more."""
    gc.freeze()


async def collect() -> None:
    """Look through everything, now and then, for ever."""
    while True:
        await asyncio.sleep(EVERY)
        gc.collect()
