"""The demo: a small data set, an origin as slow as a remote store, the daemon, and trainers that read through it.

Everything that it prints was counted in that run. The same trainers read the same samples in the same order three times:
through the daemon, with whole shards fetched by each worker, and with one request per sample.
"""

from cachedaemon.demo.play import Shape, run

__all__ = ["Shape", "run"]
