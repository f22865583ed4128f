"""Training data from zip shards with an SPDL pipeline.

    python examples/spdl_pipeline.py imagenet images-0.zip images-1.zip ... [--threads 4] [--mix 2] [--state FILE]

Needs `spdl-core` and `cachedaemon-client`. An epoch's order of shards and of samples is the same on every machine, however
many threads read and whatever is in the cache. With `--state`, a run that is stopped with Ctrl-C goes on there when it is
started again, sample by sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

try:
    from spdl.pipeline import PipelineBuilder

    from cachedaemon_client import Shard, ShardCache, ShardSampler
    from cachedaemon_client.spdl import Batch, Batches, ShardSource
except ModuleNotFoundError as cause:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"spdl_pipeline.py needs spdl-core and cachedaemon-client: {cause}") from None

Sample = tuple[str, bytes]
"""Where it comes from (shard and member), and its bytes."""


def decode(shard: Shard, member: str) -> Sample:
    """One sample, made in a thread of the pipeline's: here the bytes as they are, where a trainer would decode an image."""
    return f"{shard.key}/{member}", shard.read(member)


def epoch_of(source: ShardSource[Sample], threads: int) -> Iterator[Batch[Sample]]:
    """The batches of the source's next epoch, in order. When the loop breaks, the pipeline ends, and its leases with it."""
    builder = PipelineBuilder().add_source(source)
    builder.pipe(source.read, concurrency=threads, output_order="input").aggregate(Batches()).add_sink(4)
    pipeline = builder.build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline


def keep(path: Path, state: object) -> None:
    """Write a state; whoever stops the program at any moment leaves the last one whole."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)


def main() -> None:
    """Read all epochs, and say of each how long it took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("source", help="name of the source in the daemon's configuration")
    options.add_argument("keys", nargs="+", help="the shards")
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--mix", type=int, default=1, help="shards whose samples come mixed")
    options.add_argument("--threads", type=int, default=4)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--state", type=Path, help="file that says how far the run has come")
    chosen = options.parse_args()
    sampler = ShardSampler(chosen.keys, seed=chosen.seed)
    sizes = {"batch_size": chosen.batch_size, "mix": chosen.mix, "epochs": chosen.epochs}
    source = ShardSource(ShardCache(chosen.source), sampler, decode, **sizes)
    first = 0
    if chosen.state is not None and chosen.state.exists():
        saved = json.loads(chosen.state.read_text())
        first = saved["epoch"]
        source.load_state_dict(saved["source"])
    for epoch in range(first, chosen.epochs):
        source.set_epoch(epoch)
        began, seen, size = time.perf_counter(), 0, 0
        for batch in epoch_of(source, chosen.threads):
            seen, size = seen + len(batch.samples), size + sum(len(image) for _, image in batch.samples)
            if chosen.state is not None:
                keep(chosen.state, {"epoch": epoch, "source": batch.state})
        took = time.perf_counter() - began
        print(f"epoch {epoch}: {seen} samples, {size} bytes, {seen / took:,.0f} samples/s")


if __name__ == "__main__":
    main()
