"""Tests over real sockets and real servers."""
