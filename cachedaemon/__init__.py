"""A node-local shard cache daemon: one transfer per shard and node, leases kept by the kernel."""

__version__ = "0.1.0"
