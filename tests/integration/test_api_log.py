"""What an operator finds in the log of transfers: one line for each that failed, nothing for those that went well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.packing import zip_bytes
from tests.fakes.waiting import until

NOISE = ("ready:", "stopped")


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(6):
            one.put(f"{number}.bin", 10_000)
        yield one


def url(origin: Origin) -> str:
    return origin.url.replace("//", "//user:SECRET@") + "{key}?sig=SECRET"


REJECTED = "the origin answered 403: credentials rejected, or they do not allow it"


def lines(daemon: Daemon) -> list[tuple[str, str]]:
    """Level and message of each line but those of start and stop; the log is JSON."""
    said: list[dict[str, Any]] = [json.loads(line) for line in daemon.log.splitlines()]
    return [(one["level"], one["message"]) for one in said if not one["message"].startswith(NOISE)]


def test_a_failure_is_one_line_with_its_cause(origin: Origin) -> None:
    """Whoever and how many ask; never the URL."""
    origin.put("refused.bin", always=Status(403))
    origin.put("down.bin", always=Status(500))
    origin.put("huge.bin", 50_000_000)
    log = {"format": "json"}
    with Daemon({"s": url(origin)}, max_bytes="30MB", fetch={"retries": 1}, log=log) as daemon:
        for key in ("refused.bin", "down.bin", "huge.bin"):
            assert daemon.acquire("s", key).status >= 400
        assert lines(daemon) == [
            ("warning", f"s/refused.bin did not become local (origin_refused): {REJECTED}"),
            ("warning", "s/down.bin did not become local (origin_unavailable): the origin answered 500"),
            ("warning", lines(daemon)[2][1]),
        ]
        assert lines(daemon)[2][1].startswith("s/huge.bin did not become local (too_large): ")
        assert "SECRET" not in daemon.log
        assert origin.url.split("//")[1].strip("/") not in daemon.log


def test_a_failed_prefetch_is_told_likewise(origin: Origin) -> None:
    origin.put("refused.bin", always=Status(403))
    with Daemon({"s": origin.url}, log={"format": "json"}) as daemon:
        assert daemon.job(daemon.prefetch("s", ["0.bin", "refused.bin"]))["failed"] == 1
        assert lines(daemon) == [("warning", f"s/refused.bin did not become local (origin_refused): {REJECTED}")]


def test_what_the_origin_has_wrong_is_no_warning(origin: Origin) -> None:
    """A key that is not there is the asker's; an archive that is refused is named with its reason and member."""
    origin.put("bad.zip", data=zip_bytes({"fine": b"1", "../out": b"2"}))
    with Daemon({"s": origin.url}, log={"format": "json"}) as daemon:
        assert daemon.acquire("s", "none.bin").code == "missing"
        assert daemon.acquire("s", "bad.zip").code == "bad_archive"
        missing, bad = lines(daemon)
        assert missing == ("info", "s/none.bin did not become local (missing): the origin answered 404")
        assert bad[0] == "info"
        assert bad[1].startswith("s/bad.zip did not become local (bad_archive, ")
        assert "../out" in bad[1]


def test_all_is_quiet_while_all_goes_well(origin: Origin) -> None:
    """Hits, transfers, evictions, retries that help and askers that leave: nothing at level info."""
    origin.put("again.bin", 1000, statuses=[Status(503)])
    origin.put("slow.bin", 1000, gate=(gate := Gate(0)))
    with Daemon({"s": origin.url}, max_shards=2, grace="0s", log={"format": "json"}) as daemon:
        for number in (0, 1, 2, 0, 0):
            daemon.path("s", f"{number}.bin")
        daemon.path("s", "again.bin")
        assert daemon.acquire("s", "slow.bin", wait=0.3).code == "wait_expired"
        assert daemon.job(daemon.prefetch("s", [f"{number}.bin" for number in range(6)]))["state"] == "partial"
        gate.open()
        assert lines(daemon) == []


def test_debug_tells_the_rest(origin: Origin) -> None:
    origin.put("again.bin", 1000, statuses=[Status(503)])
    log = {"format": "json", "level": "debug"}
    with Daemon({"s": url(origin)}, max_shards=1, grace="0s", log=log) as daemon:
        daemon.path("s", "again.bin")
        daemon.path("s", "1.bin")
        said = [message for level, message in lines(daemon) if level == "debug" and message.startswith("s/")]
        assert said[0].startswith("s/again.bin goes on in ")
        assert said[1].startswith("s/again.bin is here: 1000 bytes, ")
        until(lambda: ("debug", "s/again.bin is evicted: room") in lines(daemon))
        assert "SECRET" not in daemon.log


def test_a_line_stays_one_line_whatever_a_key_holds(origin: Origin) -> None:
    origin.default(lambda name: origin.put(name, always=Status(403)))
    with Daemon({"s": origin.url}) as daemon:
        assert daemon.acquire("s", "a\n2026-01-01T00:00:00Z ERROR forged\x1b[2J").code == "origin_refused"
        [line] = [line for line in daemon.log.splitlines() if "forged" in line]
        assert "WARNING s/a\\x0a2026-01-01T00:00:00Z ERROR forged\\x1b[2J did not become local" in line
