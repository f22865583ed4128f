"""What stands in a meta file's or a table's place and is no file: it stops nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cachedaemon.store.files import read_meta
from tests.unit.store_kit import opened, publish

KINDS: dict[str, Callable[[Path], None]] = {"fifo": os.mkfifo, "folder": os.mkdir}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", KINDS)
def test_a_meta_file_that_is_none_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / "meta")
    assert read_meta(str(tmp_path / "meta")) is None


@pytest.mark.timeout(30)
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_start_with_a_fifo_in_a_meta_files_place_ends(folder: Path) -> None:
    async with opened(folder / "cache") as (store, _):
        await publish(store, "a.bin")
        await publish(store, "b.bin")
        meta = store.layout.meta("s", "a.bin")
    os.unlink(meta)
    os.mkfifo(meta)
    async with opened(folder / "cache") as (_, found):
        assert "b.bin" in [one.name for one in found.found]
