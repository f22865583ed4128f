"""Real stand-ins that tests and benches run: an origin that lies on request, a daemon's harness, readers, disks that fail."""
