"""pandas, pyarrow, zarr and datasets read through the cache: one transfer a shard, leased while a reader has it open."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

LIBRARIES = ("pandas", "pyarrow", "zarr", "datasets")
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in LIBRARIES),
        reason="pandas, pyarrow, zarr and datasets are not installed: make frames",
    ),
]
ROWS, PARTS = 2000, 6
QUIET = "import warnings\nwarnings.simplefilter('error')\n"
MAKE = (
    QUIET
    + f"""
import pyarrow, pyarrow.parquet
for part in range({PARTS}):
    table = pyarrow.table({{"id": range(part * {ROWS}, (part + 1) * {ROWS}), "text": ["words " * 20] * {ROWS}}})
    pyarrow.parquet.write_table(table, f"{{ARG}}/{{part}}.parquet", row_group_size={ROWS // 4})
    with open(f"{{ARG}}/{{part}}.csv", "w") as file:
        print("id,text", *(f"{{row}},some text" for row in range({ROWS})), sep="\\n", file=file)
"""
)


def put(origin: Origin, snippet: str, folder: Path) -> None:
    """Have the origin offer what the snippet makes in the folder."""
    readers.run(None, snippet, str(folder))
    for path in folder.rglob("*"):
        if path.is_file():
            origin.put(str(path.relative_to(folder)), data=path.read_bytes())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    with Origin() as one:
        put(one, MAKE, tmp_path_factory.mktemp("tables"))
        yield one


@pytest.fixture(scope="module")
def running(served: Origin) -> Iterator[Daemon]:
    with Daemon({"s": served.url}, max_shards=20) as one:
        yield one


@pytest.fixture
def origin(served: Origin) -> Origin:
    """The origin, with nothing counted yet."""
    served.zero()
    return served


@pytest.fixture
def daemon(running: Daemon) -> Daemon:
    """A daemon with nothing local yet."""
    for row in running.shards():
        running.evict(row["source"], row["key"])
    return running


def leased(daemon: Daemon) -> list[str]:
    return [row["key"] for row in daemon.shards() if row["leased"]]


def transfers(origin: Origin) -> dict[str, int]:
    """GETs of each object that was asked for."""
    return {name: one.gets for name, one in origin.shared.objects.items() if one.gets}


PANDAS = (
    QUIET
    + """
import pandas
with pandas.read_csv("shardcache://s/0.csv", chunksize=100) as chunks:
    first = next(chunks)
    say(len(first))
    hear()
    rest = sum(len(chunk) for chunk in chunks)
say([rest, pandas.read_csv("shardcache://s/0.csv").shape])
say(pandas.read_parquet("shardcache://s/0.parquet", columns=["id"]).shape)
hear()
"""
)


def test_pandas(daemon: Daemon, origin: Origin) -> None:
    """A CSV file is leased from its first chunk to its last."""
    with readers.Reader(daemon, PANDAS) as reader:
        assert reader.line() == 100
        assert leased(daemon) == ["0.csv"]
        assert daemon.evict("s", "0.csv").code == "leased"
        reader.tell()
        assert reader.line() == [ROWS - 100, [ROWS, 2]]
        assert reader.line() == [ROWS, 1]
        until(lambda: not leased(daemon), 10, "pandas's threads to drop what they read")
    assert transfers(origin) == {"0.csv": 1, "0.parquet": 1}


ARROW = (
    QUIET
    + """
import fsspec, pyarrow.dataset, pyarrow.parquet
files = fsspec.filesystem("shardcache", wait=30)
with files.open("s/0.parquet") as opened:
    file = pyarrow.parquet.ParquetFile(opened)
    say([file.num_row_groups, file.read_row_group(1, columns=["id"]).num_columns])
    hear()
say(pyarrow.parquet.read_table("s/0.parquet", filesystem=files, columns=["id"]).num_rows)
parts = pyarrow.dataset.dataset([f"s/{part}.parquet" for part in range(ARG)], filesystem=files, format="parquet")
wanted = pyarrow.dataset.field("id") >= 1000
say([parts.to_table(columns=["id"], filter=wanted).num_rows, parts.count_rows()])
say(sum(part.to_table().num_rows for part in parts.get_fragments()))
hear()
"""
)


def test_pyarrow(daemon: Daemon, origin: Origin) -> None:
    """Columns and row groups are chosen locally: each shard is transferred once, whole."""
    with readers.Reader(daemon, ARROW, PARTS) as reader:
        assert reader.line() == [4, 1]
        assert leased(daemon) == ["0.parquet"]
        reader.tell()
        assert reader.line() == ROWS
        assert reader.line() == [ROWS * PARTS - 1000, ROWS * PARTS]
        assert reader.line() == ROWS * PARTS
        until(lambda: not leased(daemon), 10, "pyarrow's threads to drop what they read")
    assert transfers(origin) == {f"{part}.parquet": 1 for part in range(PARTS)}


SCAN = (
    QUIET
    + """
import fsspec, pyarrow.dataset
files = fsspec.filesystem("shardcache", wait=30)
parts = pyarrow.dataset.dataset([f"s/{part}.parquet" for part in range(ARG)], filesystem=files, format="parquet")
say(sum(batch.num_rows for batch in parts.to_batches(fragment_readahead=1)))
say(sum(part.to_table().num_rows for part in parts.get_fragments()))
"""
)


@pytest.mark.slow
def test_a_scan_under_a_cap_that_the_data_set_does_not_fit(origin: Origin) -> None:
    """What pyarrow opens ahead is leased: with a readahead of 1 that is 2 shards, or 3 where one is dropped late."""
    with Daemon({"s": origin.url}, max_shards=3) as daemon:
        assert readers.run(daemon, SCAN, PARTS) == [ROWS * PARTS] * 2


STORES = (
    QUIET
    + """
import numpy, zarr
group = zarr.open_group(f"{ARG}/grid.zarr", mode="w")
grid = group.create_array("grid", shape=(100, 100), chunks=(50, 50), dtype="f4")
grid[:50] = numpy.arange(5000).reshape(50, 100)
with zarr.storage.ZipStore(f"{ARG}/line.zarr.zip", mode="w") as store:
    zarr.create_array(store, data=numpy.arange(10), chunks=(5,))
"""
)
ZARR = (
    QUIET
    + """
import zarr
grid = zarr.open_group("shardcache://s/grid.zarr", mode="r")["grid"]
say([float(grid[:].sum()), float(grid[10, 20])])
line = zarr.open_array("zip://::shardcache://s/line.zarr.zip", mode="r")
say(line[:].tolist())
hear()
"""
)


@pytest.mark.slow
def test_zarr(daemon: Daemon, origin: Origin, tmp_path: Path) -> None:
    """Of a folder each chunk is a shard, and one that the origin does not have is empty; of a zip all are one."""
    put(origin, STORES, tmp_path)
    with readers.Reader(daemon, ZARR) as reader:
        assert reader.line() == [sum(range(5000)), 1020]
        assert reader.line() == list(range(10))
        assert leased(daemon) == ["line.zarr.zip"]
    stored = ["grid/c/0/0", "grid/c/0/1", "grid/zarr.json", "zarr.json"]
    assert transfers(origin) == {f"grid.zarr/{name}": 1 for name in stored} | {"line.zarr.zip": 1}


DATASETS = """
import datasets
datasets.disable_progress_bars()
read = {"data_files": ["shardcache://s/0.csv", "shardcache://s/1.csv"], "split": "train"}
stream = iter(datasets.load_dataset("csv", streaming=True, **read))
say(next(stream)["text"])
hear()
say(1 + sum(1 for row in stream))
say(datasets.load_dataset("csv", **read).num_rows)
hear()
"""


@pytest.mark.slow
def test_datasets(daemon: Daemon, origin: Origin, tmp_path: Path) -> None:
    """A stream reads in place, leased; without one, datasets makes a copy first."""
    env = {"HF_HOME": str(tmp_path), "USE_TORCH": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with readers.Reader(daemon, DATASETS, env=env) as reader:
        assert reader.line() == "some text"
        assert leased(daemon) == ["0.csv"]
        reader.tell()
        assert reader.line() == 2 * ROWS
        assert reader.line() == 2 * ROWS
        assert leased(daemon) == []
    assert transfers(origin) == {"0.csv": 1, "1.csv": 1}
