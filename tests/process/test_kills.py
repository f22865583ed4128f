"""The short form of `bench/kills.py`: kills in random order under readers that go on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import PROJECT

KILLS = 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_in_random_order_cost_no_reader_anything() -> None:
    """C-38: no wrong byte, no failed read, no stale lease, no leaked byte, no leaked plan, nothing unusual in the log."""
    program = [sys.executable, "bench/kills.py", f"--kills={KILLS}", "--seed=7", "--audits=150"]
    ran = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, timeout=850, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counts = ran.stdout.splitlines()[-2].split()
    assert counts == [str(KILLS), *["0"] * 6], ran.stdout
