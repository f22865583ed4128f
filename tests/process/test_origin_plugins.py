"""Origins of other distributions: the one that the documentation writes, and ones that are broken."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fakes.daemon import Daemon
from tests.fakes.waiting import until

PAGE = PROJECT / "docs/origins/writing.md"


def written(folder: Path) -> Path:
    """The files that the page shows, by the names in their first lines, installed into a folder."""
    for name, text in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    [(group, entries)] = project["entry-points"].items()
    install(folder, project["name"], group, **entries)
    return folder


def install(folder: Path, name: str, group: str = "cachedaemon.origins.v1", **entries: str) -> None:
    """What an installer leaves of a distribution's metadata (PyPA, "Recording installed projects")."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{scheme} = {value}" for scheme, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def database(path: Path, **shards: bytes) -> Path:
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE IF NOT EXISTS shards(key TEXT PRIMARY KEY, version INTEGER, data BLOB)")
        made.executemany("INSERT INTO shards VALUES(?, 1, ?)", shards.items())
    return path


def test_the_documented_origin_passes_the_suite(folder: Path) -> None:
    home = written(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "test_cachedaemon_sqlite.py"]
    ran = subprocess.run(
        command, cwd=home, env={**os.environ, "PYTHONPATH": str(home)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "a row is there or is not" in ran.stdout


def test_the_documented_origin_serves_a_daemon(folder: Path) -> None:
    home = written(folder)
    place = database(home / "set.db", a=b"a" * 5_000_000, b=b"b")
    with Daemon({"faces": f"sqlite://{place}"}, env={"PYTHONPATH": str(home)}) as daemon:
        assert daemon.path("faces", "a").read_bytes() == b"a" * 5_000_000
        answer = daemon.acquire("faces", "none")
        assert (answer.status, answer.code) == (404, "missing")
        assert daemon.cli("prefetch", "faces", "--wait").status == 0
        place.rename(home / "away.db")
        assert daemon.acquire("faces", "b").body["result"] == "hit"
        answer = daemon.acquire("faces", "c")
        assert (answer.status, answer.code) == (503, "origin_unavailable")
        assert "faces/c: the database cannot be read" in answer.body["error"]["message"]
        assert daemon.metric("origin_requests_total", source="faces", status="failed")
        assert daemon.cli("check-config", "--config", str(daemon.config)).status == 0


BROKEN = {
    "odd": ("no_such_module:Origin", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    "none": ("json:NoSuchClass", "cannot be loaded: AttributeError: "),
    "number": ("math:pi", "is no class"),
    "two": ("math:sin", "broken-two 1.0 and other 1.0 bring its origin; allowed is one"),
}


@pytest.mark.parametrize("scheme", BROKEN)
def test_a_broken_origin_ends_the_start_and_names_its_distribution(folder: Path, scheme: str) -> None:
    """In one line, in `check-config` too; and a reload that brings it changes nothing."""
    value, said = BROKEN[scheme]
    install(folder, f"broken-{scheme}", **{scheme: value})
    if scheme == "two":
        install(folder, "other", two="math:cos")
    with Daemon({"s": f"{scheme}://x"}, env={"PYTHONPATH": str(folder)}, begin=False) as daemon:
        ran = daemon.fails()
        checked = daemon.cli("check-config", "--config", str(daemon.config))
    for status, text in ((ran.status, ran.err), (checked.status, checked.err)):
        assert status == 1
        assert "sources.s.url: " in text
        assert said in text
        assert f"broken-{scheme} 1.0" in text
        assert text.count("\n") == 1


def test_an_origin_that_cannot_be_made_is_told_without_its_url(folder: Path) -> None:
    (folder / "falls.py").write_text("def origin(name, source, fetch, metrics):\n    raise KeyError(source.url)\n")
    install(folder, "falls", falls="falls:origin")
    with Daemon({"s": "falls:x?token=hush"}, env={"PYTHONPATH": str(folder)}, begin=False) as daemon:
        ran = daemon.fails()
    assert ran.status == 1
    assert "sources.s: the origin for falls cannot be made (KeyError)" in ran.err
    assert "hush" not in ran.err
    assert ran.err.count("\n") == 1


def test_an_origin_is_loaded_only_when_a_source_uses_it(folder: Path) -> None:
    """And a scheme that nobody brings is refused with those that there are."""
    (folder / "loud.py").write_text("print('loaded', flush=True)\norigin = None\n")
    install(folder, "loud", loud="loud:origin")
    (folder / "set").mkdir()
    (folder / "set/a").write_bytes(b"a")
    with Daemon({"s": f"file://{folder}/set/"}, env={"PYTHONPATH": str(folder)}) as daemon:
        assert daemon.acquire("s", "a").status == 200
        assert "loaded" not in daemon.log
        daemon.tables["sources"]["t"] = {"url": "gopher://x/"}
        ran = (daemon.write(), daemon.cli("check-config", "--config", str(daemon.config)))[1]
        assert "allowed are file://, " in ran.err
        assert ", loud:" in ran.err


BUGGY = """
from contextlib import asynccontextmanager
from cachedaemon.model import Validators

class Origin:
    def __init__(self, name, source, fetch, metrics):
        pass
    async def look(self):
        raise LookupError("hush")
    def check_key(self, key):
        pass
    @asynccontextmanager
    async def open(self, key, known=None):
        if key == "opening":
            raise RuntimeError("hush")
        yield Stream()
    async def keys(self):
        raise OSError("hush")
    async def close(self):
        raise ZeroDivisionError("hush")

class Stream:
    size, validators, digests, has_parts = 10, Validators(), (), False
    async def pieces(self):
        yield [b"12345"]
        raise IndexError("hush")
"""


def test_an_origin_with_bugs_harms_itself_only(folder: Path) -> None:
    """What it raises is told without its words; all else goes on, and the end comes in time."""
    (folder / "buggy.py").write_text(BUGGY)
    (folder / "set").mkdir()
    (folder / "set/a").write_bytes(b"a")
    install(folder, "buggy", buggy="buggy:Origin")
    sources = {"s": "buggy:", "good": {"url": f"file://{folder}/set/", "settle": 0}}
    with Daemon(sources, env={"PYTHONPATH": str(folder)}) as daemon:
        for key in ("opening", "reading"):
            answer = daemon.acquire("s", key)
            assert (answer.status, answer.code) == (502, "origin_refused")
            assert "hush" not in str(answer.body)
        assert daemon.acquire("good", "a").status == 200
        assert daemon.cli("prefetch", "s").status == 1
        daemon.audit()
        assert daemon.stop() == 0


RAISING = """
from contextlib import asynccontextmanager
from cachedaemon.model import Validators
class Stream:
    validators, digests, has_parts = Validators(), (), False
    def __init__(self, key):
        self.key, self.size = key, {"size": "3", "negative": -3}.get(key, 3)
        if key in ("digests", "validators"):
            setattr(self, key, ["hunter2"])
    async def pieces(self):
        yield "hunter2" if self.key == "text" else [b"a"]
        if self.key == "middle":
            raise RuntimeError("hunter2")
        yield [b"bc"]
class Origin:
    def __init__(self, name, source, fetch, metrics):
        pass
    async def look(self):
        raise KeyError("hunter2")
    def check_key(self, key):
        if key == "check":
            raise KeyError("hunter2")
    @asynccontextmanager
    async def open(self, key, known=None):
        if key in ("ValueError", "TimeoutError", "StopAsyncIteration"):
            raise __builtins__[key]("hunter2")
        if key == "nothing":
            return
        try:
            yield Stream(key)
        finally:
            if key == "end":
                raise KeyError("hunter2")
    async def keys(self):
        return ["a", None]
    async def close(self):
        raise KeyError("hunter2")
"""


def test_an_origin_that_breaks_the_contract_hurts_itself_only(folder: Path) -> None:
    """Its failures name shard and place, and show nothing of what it says; an outage it is only where the system says so."""
    (folder / "raising_origin.py").write_text(RAISING)
    install(folder, "raising", raising="raising_origin:Origin", straight="raising_origin:Stream")
    sources = {"s": "raising://hunter2", "straight": "straight://x"}
    with Daemon(sources, env={"PYTHONPATH": str(folder)}, fetch={"retries": 0}, begin=False) as daemon:
        daemon.tables["sources"].pop("straight")
        daemon.start()
        assert daemon.path("s", "abc").read_bytes() == b"abc"
        for key in ("ValueError", "StopAsyncIteration", "check", "nothing", "middle", "end"):
            answer = daemon.acquire("s", key)
            assert answer.code == "origin_refused", answer.body
            assert answer.body["error"]["message"].startswith(f"s/{key}: its origin fails (")
        answer = daemon.acquire("s", "TimeoutError")
        assert answer.code == "origin_unavailable"
        assert "TimeoutError in raising_origin.py, line" in answer.body["error"]["message"]
        for key in ("size", "negative", "digests", "validators", "text"):
            assert "its origin breaks the contract" in daemon.acquire("s", key).body["error"]["message"]
        assert "s/*: its origin breaks the contract of origins in its keys" in daemon.cli("prefetch", "s").err
        assert daemon.cli("check-config", "--config", str(daemon.config)).status == 0
        del daemon.tables["sources"]["s"]
        daemon.tables["sources"]["straight"] = {"url": "straight://x"}
        daemon.reload()
        until(lambda: "sources.straight: the origin for straight cannot be made (TypeError)" in daemon.log, 10)
        daemon.tables["sources"] = {"t": {"url": "raising:x"}}
        daemon.reload()
        until(lambda: daemon.acquire("s", "abc").code == "unknown_source", 10)
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
        assert "(KeyError in raising_origin.py, line" in daemon.log
        assert "KeyError: 'hunter2'" not in daemon.log
