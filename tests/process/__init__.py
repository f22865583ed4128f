"""Tests of whole processes: fork, kill, stop, restart."""
