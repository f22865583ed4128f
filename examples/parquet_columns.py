"""Columns of parquet shards with pandas, through the node's cache by URL.

    python examples/parquet_columns.py tables 0.parquet 1.parquet ... [--columns user time]

Needs `pandas`, `pyarrow`, `fsspec` and `cachedaemon-client`. Each shard comes once for all processes of the node, and whole; choosing
columns costs no transfer. The plan has the next ones fetched while one is read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

try:
    import fsspec
    import pandas as pd
    import pyarrow as pa

    from cachedaemon_client import ShardCache
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"parquet_columns.py needs pandas, pyarrow, fsspec and cachedaemon-client: {cause}") from None


def frames(source: str, keys: Sequence[str], columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
    """The columns of each shard, in order; all of them without `columns`. One shard is open at a time."""
    with ShardCache(source) as cache, cache.plan(keys) as plan:
        for shard in plan:
            yield pd.read_parquet(f"shardcache://{source}/{shard.key}", columns=columns)


def main() -> None:
    """Read all shards, and say how many rows each has."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", help="name of the source in the daemon's configuration")
    options.add_argument("keys", nargs="+", help="the shards")
    options.add_argument("--columns", nargs="+", help="all without it")
    chosen = options.parse_args()
    began, rows = time.perf_counter(), 0
    for key, frame in zip(chosen.keys, frames(chosen.source, chosen.keys, chosen.columns), strict=True):
        rows += len(frame)
        print(f"{key}: {len(frame)} rows of {', '.join(frame.columns)}")
    print(
        f"{rows} rows in {time.perf_counter() - began:.1f} s, by fsspec {fsspec.__version__} and pyarrow {pa.__version__}"
    )


if __name__ == "__main__":
    main()
