"""Unit tests: one module each, no daemon."""
