"""Conformance suites: one a plug-in point."""
