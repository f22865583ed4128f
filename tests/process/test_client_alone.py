"""The client's wheel, installed alone into empty environments of every Python that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
MEMBERS = packing.image_like(3, 1, 2000)


def found() -> dict[str, str]:
    """An interpreter for each version: pyenv's, or one on the path; this one in any case."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    here = {}
    for version in VERSIONS:
        own = sorted(root.glob(f"{version}.*/bin/python")) if root.is_dir() else []
        if path := str(own[-1]) if own else shutil.which(f"python{version}"):
            here[version] = path
    return here or {"this": sys.executable}


PYTHONS = found()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Origin() as origin:
        origin.put("a.bin", 12345)
        origin.put("images.zip", data=packing.zip_bytes(MEMBERS))
        with Daemon({"s": origin.url}) as one:
            yield one


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the tree stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(readers.ROOT / "client", folder / "client", ignore=ignored)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    try:
        subprocess.run(
            [*command, "--no-build-isolation", "-w", str(folder), str(folder / "client")],
            check=True,
            timeout=120,
            capture_output=True,
        )
    except subprocess.CalledProcessError:  # without setuptools here, pip gets it for the build
        subprocess.run([*command, "-w", str(folder), str(folder / "client")], check=True, timeout=300)
    (made,) = folder.glob("*.whl")
    return made


USE = """
import asyncio, json, os, sys, warnings
warnings.simplefilter("error")
from importlib.metadata import requires
import cachedaemon_client
from cachedaemon_client import ShardCache, ShardMissing, aio
def say(value): print(json.dumps(value), flush=True)
async def ask():
    async with aio.ShardCache("s", wait=20) as cache, cache.open("a.bin") as shard:
        async with cache.plan(["a.bin"]) as plan:
            return [shard.size, [one.key async for one in plan]]
if __name__ == "__main__":
    say(list(sys.version_info[:2]))
    say([sys.prefix != sys.base_prefix, sys.prefix in cachedaemon_client.__file__, requires("cachedaemon-client")])
    with ShardCache("s", wait=20) as cache:
        with cache.open("a.bin") as shard, cache.open("images.zip") as archive:
            say([shard.size, len(shard.path.read_bytes()), {name: len(archive.read(name)) for name in archive.members}])
            if (pid := os.fork()) == 0:
                shard.close()
                os._exit(0)
            os.waitpid(pid, 0)
            input()
        try:
            cache.open("none.bin")
        except FileNotFoundError as cause:
            say([type(cause).__name__, cause.code])
        with cache.plan(["a.bin", "images.zip"], holds=2) as plan:
            say([one.key for one in plan])
    say(asyncio.run(ask()))
    say(sorted(name for name in {n.partition(".")[0] for n in sys.modules} - sys.stdlib_module_names - {"cachedaemon_client"}
               if not name.startswith(("__", "_distutils", "_virtualenv", "cython_runtime"))))
"""


@pytest.mark.parametrize("version", list(PYTHONS))
def test_the_client_alone(daemon: Daemon, wheel: Path, tmp_path: Path, version: str) -> None:
    """It imports, leases, reads, plans, forks and runs under asyncio, with warnings as errors."""
    subprocess.run([PYTHONS[version], "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=120)
    python = tmp_path / "env/bin/python"
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "-q"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    with readers.Reader(daemon, USE, python=str(python), prelude=False, env={"PYTHONPATH": ""}) as reader:
        if version != "this":
            assert reader.line() == [int(part) for part in version.split(".")]
        else:
            reader.line()
        assert reader.line() == [True, True, None]
        assert reader.line() == [12345, 12345, {name: len(body) for name, body in MEMBERS.items()}]
        assert daemon.evict("s", "a.bin").code == "leased"
        reader.tell()
        assert reader.rest() == [
            ["ShardMissing", "missing"],
            ["a.bin", "images.zip"],
            [12345, ["a.bin"]],
            [],
        ]
    assert daemon.evict("s", "a.bin").status == 204
