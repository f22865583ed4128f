"""The safety nets of conftest.py catch what they are there for: each is shown a test that must fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import OrdinaryUser

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(CONFTEST.parent.parent / "pyproject.toml"), "-q"]


def pytest_of(folder: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one test file beside a copy of conftest.py."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, "--rootdir", folder, folder],
        env={k: v for k, v in os.environ.items() if k != "CACHEDAEMON_CI"} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
    )


SKIPS = """
import pytest
def test_skip(): pytest.skip("no such tool")
def test_by_design(): pytest.skip("not here by design: another machine")
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
"""


def test_skip_is_a_skip_on_a_developers_machine(folder: Path) -> None:
    assert "2 skipped, 1 xfailed" in pytest_of(folder, SKIPS).stdout


def test_skip_fails_in_ci_unless_it_is_by_design(folder: Path) -> None:
    done = pytest_of(folder, SKIPS, CACHEDAEMON_CI="1")
    assert "1 failed, 1 skipped, 1 xfailed" in done.stdout
    assert "no such tool" in done.stdout


def test_skip_of_a_whole_module_fails_in_ci(folder: Path) -> None:
    done = pytest_of(folder, "import pytest\npytest.importorskip('no_such_module')\n", CACHEDAEMON_CI="1")
    assert done.returncode != 0
    assert "a skip is a failure in CI" in done.stdout


def test_process_left_behind_fails_the_run(folder: Path) -> None:
    text = """
import subprocess
def test_leaves():
    subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], check=True)
"""
    done = pytest_of(folder, text)
    assert "1 passed, 1 error" in done.stdout
    assert "sleep 300" in done.stdout


def test_every_async_test_runs_on_both_loops(folder: Path) -> None:
    text = """
import asyncio, pytest
@pytest.mark.asyncio
async def test_it(request):
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop") == ("uvloop" in request.node.name)
"""
    assert "2 passed" in pytest_of(folder, text).stdout


@pytest.mark.asyncio
async def test_blocking_call_of_the_daemon_is_caught(folder: Path) -> None:
    from blockbuster import BlockingError

    from cachedaemon.config.values import readable

    os.close(os.open(folder, os.O_RDONLY))  # the test's own call is none of the daemon's
    with pytest.raises(BlockingError):
        readable(str(folder))


@pytest.mark.root
def test_ordinary_user_has_no_rights_of_root(as_user: OrdinaryUser, folder: Path) -> None:
    (folder / "secret").write_text("x")
    (folder / "secret").chmod(0o600)
    done = as_user.run([sys.executable, "-c", f"open({str(folder / 'secret')!r})"])
    assert "PermissionError" in done.stderr
    as_user.own(folder)
    assert as_user.run([sys.executable, "-c", f"open({str(folder / 'secret')!r})"]).returncode == 0
