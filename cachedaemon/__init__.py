"""A node-local shard cache daemon: one transfer per shard and node, leases kept by the kernel."""

from importlib.metadata import version

__version__ = version("cachedaemon")
