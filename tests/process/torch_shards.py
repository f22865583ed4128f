"""What the tests of a torch DataLoader share: shards in a daemon, and how a trainer imports the example."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.fakes import packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARKS = [
    pytest.mark.torch,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: make torch"),
]
MEMBERS, SIZE = 12, 3000
KEYS = [f"images-{number}.zip" for number in range(9)]
STYLES = ("iterable", "map")
IMPORTS = f"""
sys.path.append({str(readers.ROOT / "examples")!r})
import warnings, zlib
warnings.filterwarnings("ignore", "(Failed to initialize NumPy|This DataLoader will create)")
import torch
from torch.utils.data import DataLoader
from torch_dataloader import *
"""


def members(number: int) -> dict[str, bytes]:
    """Members of shard `number`."""
    return packing.image_like(MEMBERS, number, SIZE)


@contextlib.contextmanager
def serving(count: int = len(KEYS), wrap: Sequence[str] = ()) -> Iterator[Daemon]:
    """A daemon with room for all of the first `count` shards, none of them local yet."""
    with Origin() as origin:
        for number, key in enumerate(KEYS[:count]):
            origin.put(key, data=packing.zip_bytes(members(number)))
        with Daemon({"s": origin.url}, max_shards=count, wrap=wrap) as daemon:
            yield daemon
