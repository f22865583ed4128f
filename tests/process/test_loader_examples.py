"""The examples of loaders, as programs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fakes import packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = readers.ROOT / "examples"
MEMBERS = 8


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """Three zip shards, and three of tar."""
    with Origin() as origin:
        for number in range(3):
            images = packing.image_like(MEMBERS, number, 2000).values()
            members = {f"{number}-{place}.jpg": image for place, image in enumerate(images)}
            origin.put(f"{number}.zip", data=packing.zip_bytes(members))
            origin.put(f"{number}.tar", data=packing.tar_bytes(members))
        with Daemon({"s": origin.url}, max_shards=6) as running:
            yield running


def run(name: str, *words: str, daemon: Daemon | None = None, absent: str = "") -> subprocess.CompletedProcess[str]:
    """An example as a program; `absent` is a module that it does not find."""
    code = f"import runpy, sys; sys.argv = ['x', *{list(words)!r}]\n"
    code += f"sys.modules[{absent!r}] = None\n" if absent else ""
    code += f"runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    env = {**os.environ, "CACHEDAEMON_SOCKET": str(daemon.socket) if daemon else "/nowhere"}
    program = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(program, capture_output=True, text=True, timeout=100, check=False, env=env)


def epochs(ran: subprocess.CompletedProcess[str]) -> list[tuple[int, int]]:
    """Number and samples of each epoch that it told of."""
    assert ran.returncode == 0, ran.stderr
    return [(int(epoch), int(count)) for epoch, count in re.findall(r"epoch (\d+): (\d+) samples", ran.stdout)]


@pytest.mark.slow
def test_spdl_goes_on_where_it_was(daemon: Daemon, folder: Path) -> None:
    pytest.importorskip("spdl.pipeline", reason="spdl-core is not installed")
    words = ["s", "0.zip", "1.zip", "2.zip", "--batch-size", "5", "--mix", "2", "--state", str(folder / "run.json")]
    assert epochs(run("spdl_pipeline.py", *words, daemon=daemon)) == [(0, 24), (1, 24)]
    assert json.loads((folder / "run.json").read_text())["epoch"] == 1
    assert epochs(run("spdl_pipeline.py", *words, "--epochs", "3", daemon=daemon)) == [(1, 0), (2, 24)]


@pytest.mark.slow
@pytest.mark.torch
def test_webdataset_reads_all(daemon: Daemon) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: make torch")
    pytest.importorskip("braceexpand", reason="webdataset is not installed")
    words = ["s", "0.tar", "1.tar", "2.tar", "--workers", "2"]
    assert epochs(run("webdataset_loader.py", *words, "--style", "fluid", daemon=daemon)) == [(0, 24), (1, 24)]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("style", ["iterable", "map"])
def test_torch_reads_all(daemon: Daemon, style: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: make torch")
    words = ["s", "0.zip", "1.zip", "2.zip", "--workers", "2", "--mix", "2", "--style", style]
    assert epochs(run("torch_dataloader.py", *words, daemon=daemon)) == [(0, 24), (1, 24)]


@pytest.mark.slow
def test_pandas_reads_the_columns_that_it_is_asked_for(folder: Path) -> None:
    pytest.importorskip("pandas", reason="pandas and pyarrow are not installed: make frames")
    make = f"""
import pandas
for part in range(3):
    pandas.DataFrame({{"id": range(part + 5), "text": "words"}}).to_parquet({str(folder)!r} + f"/{{part}}.parquet")
"""
    readers.run(None, make)
    with Origin() as origin:
        for path in folder.glob("*.parquet"):
            origin.put(path.name, data=path.read_bytes())
        with Daemon({"s": origin.url}, max_shards=2) as running:
            keys = [f"{part}.parquet" for part in range(3)]
            ran = run("parquet_columns.py", "s", *keys, "--columns", "id", daemon=running)
            assert ran.returncode == 0, ran.stderr
            said = [f"{key}: {part + 5} rows of id" for part, key in enumerate(keys)]
            assert ran.stdout.splitlines()[:-1] == said
            assert ran.stdout.splitlines()[-1].startswith("18 rows in ")
            assert origin.gets == 3


@pytest.mark.parametrize(
    ("name", "absent", "needs"),
    [
        ("parquet_columns.py", "pandas", "pandas, pyarrow, fsspec and cachedaemon-client"),
        ("spdl_pipeline.py", "spdl", "spdl-core and cachedaemon-client"),
        ("webdataset_loader.py", "torch", "webdataset, torch and cachedaemon-client"),
    ],
)
def test_each_says_in_one_line_what_it_needs(name: str, absent: str, needs: str) -> None:
    ran = run(name, absent=absent)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.fullmatch(f"{name} needs {needs}: .*{absent}.*", ran.stderr.strip())
