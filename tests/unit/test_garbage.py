"""When the interpreter looks for garbage: never because planning has made much, and all of it when it is our time."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from cachedaemon import garbage

MUCH = """
import asyncio, gc, sys
from cachedaemon import garbage

def looked():
    return gc.get_stats()[2]["collections"]

garbage.spare_the_loop()
before = looked()
kept = [[number] for number in range(300_000)]
told = [looked() - before, sys.getswitchinterval()]
garbage.EVERY = 0.0

async def some_looks():
    task = asyncio.create_task(garbage.collect())
    while looked() < before + 2:
        await asyncio.sleep(0)
    task.cancel()

asyncio.run(some_looks())
print(told == [0, garbage.SWITCH])
"""


def test_nothing_is_looked_through_but_what_is_young_until_it_is_time() -> None:
    done = subprocess.run([sys.executable, "-c", MUCH], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_a_pause_ends_whatever_happens() -> None:
    def fails() -> None:
        with garbage.paused():
            assert not gc.isenabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert gc.isenabled()
