"""Origins as a transfer uses them."""

from cachedaemon.conformance import opened, read

__all__ = ["opened", "read"]
