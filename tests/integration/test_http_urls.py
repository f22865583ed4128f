"""A source whose URLs are in a file, through the daemon: what users see of it, and what nobody sees."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until


def put(file: Path, urls: dict[str, str]) -> None:
    """Put a file in the place of the one that is there."""
    (file.parent / "new").write_text(json.dumps(urls))
    (file.parent / "new").rename(file)


def test_urls_from_a_file(folder: Path) -> None:
    """Fetched, listed, renewed without a reload; and shown neither in answers, nor in the log, nor by commands."""
    file = folder / "urls.json"
    with Origin() as origin:
        for name in ("a", "b", "c"):
            origin.put(f"{name}?sig=SECRET%2F{name}", data=name.encode() * 1000)
        url = {name: f"{origin.url.replace('//', '//user:SECRET@')}{name}?sig=SECRET%2F{name}" for name in "abc"}
        put(file, {"set/a.bin": url["a"], "b.bin": url["b"]})
        with Daemon({"s": {"urls": str(file)}}, log={"level": "debug"}) as daemon:
            assert daemon.path("s", "set/a.bin").read_bytes() == b"a" * 1000
            missing = daemon.acquire("s", "c.bin")
            assert (missing.status, missing.code) == (404, "missing")
            ran = daemon.cli("prefetch", "s", "--wait")
            assert ran.status == 0, ran
            assert {shard["key"] for shard in daemon.shards("s")} == {"set/a.bin", "b.bin"}
            put(file, {"b.bin": url["b"], "c.bin": url["c"]})
            assert daemon.path("s", "c.bin").read_bytes() == b"c" * 1000
            put(file, {})
            daemon.evict("s", "b.bin")
            assert daemon.path("s", "b.bin").read_bytes() == b"b" * 1000
            until(lambda: "the one before stays in force" in daemon.log, 20, "the warning")
            said = [
                json.dumps(daemon.status()),
                json.dumps(daemon.api("GET", "/v1/hello").body),
                daemon.log,
                ran.out,
                ran.err,
            ]
            put(file, {"b.bin": url["b"]})
            assert f"URLs of {file}" in daemon.cli("status").out
            checked = daemon.cli("check-config", "--config", str(daemon.config))
            assert f"source s: URLs of {file}" in checked.out
            said += [checked.out, checked.err]
            assert "SECRET" not in "".join(said)
            assert daemon.acquire("s", "set/a.bin").body["result"] == "hit", "what is here stays, in the file or not"
        assert all(request.headers["authorization"] for request in origin.log)
