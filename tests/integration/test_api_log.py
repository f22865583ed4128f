"""What an operator finds in the log of transfers: one line for each that failed, nothing for those that went well."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachedaemon.logs import configure, set_level
from cachedaemon.model import Ref
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
        said = r"s/a\n2026-01-01T00:00:00Z ERROR forged\x1b[2J"
        assert f'level=warning message="{said} did not become local' in line


def text_members(line: str) -> dict[str, str]:
    """Members of a line of text: `name=value`, the value in quotes where it needs them."""
    found = re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^" ]*))(?: |$)', line)
    assert " ".join(f'{name}="{quoted}"' if quoted else f"{name}={bare}" for name, quoted, bare in found) == line
    return {name: quoted or bare for name, quoted, bare in found}


def test_all_lines_of_a_flight_have_its_number(origin: Origin) -> None:
    """Those of its tries and its end, whoever asked; a request that joins it says its number."""
    origin.put("again.bin", 1000, statuses=[Status(503)])
    with Daemon({"s": origin.url}, fetch={"retries": 0}, log={"level": "debug"}) as daemon:
        assert daemon.acquire("s", "again.bin").code == "origin_unavailable"
        daemon.path("s", "again.bin")
        daemon.path("s", "1.bin")
        lines_ = [text_members(line) for line in daemon.log.splitlines()]
        flights = [
            one.get("flight")
            for one in lines_
            if "did not become local" in one["message"] or "is here" in one["message"]
        ]
        assert len(set(flights)) == 3
        assert None not in flights
        waits = [one for one in lines_ if one["message"].startswith("waiting for ")]
        assert [one["message"].split("flight ")[1].split(",")[0] for one in waits] == flights
        here = next(one for one in lines_ if "1.bin is here" in one["message"])
        assert (here["source"], here["key"], here["level"]) == ("s", "1.bin", "debug")
        given = [one["request"] for one in lines_ if one["message"].startswith("given out")]
        assert given == [one["request"] for one in waits[1:]]


def test_the_level_changes_with_a_reload(origin: Origin) -> None:
    """To all and back to little, without a restart."""
    with Daemon({"s": origin.url}) as daemon:
        daemon.path("s", "0.bin")
        assert "level=debug" not in daemon.log
        daemon.tables["log"]["level"] = "debug"
        daemon.reload()
        until(lambda: "reloaded: log.level" in daemon.log, 20, "the reload")
        daemon.path("s", "1.bin")
        assert "level=debug" in daemon.log


def test_a_line_has_a_priority_where_the_journal_reads_it(origin: Origin) -> None:
    """And nowhere else; the journal knows the time by itself (sd-daemon(3))."""
    origin.put("refused.bin", always=Status(403))
    with Daemon({"s": origin.url}, begin=False) as daemon:
        log = daemon.home / "daemon.log"
        log.touch()
        seen = log.stat()
        daemon.env["JOURNAL_STREAM"] = f"{seen.st_dev}:{seen.st_ino}"
        daemon.start()
        daemon.acquire("s", "refused.bin")
        daemon.acquire("s", "none.bin")
        first, warning, info = daemon.log.splitlines()
        assert (first[:3], warning[:3], info[:3]) == ("<6>", "<4>", "<6>")
        assert "time=" not in warning
        daemon.env["JOURNAL_STREAM"] = f"{seen.st_dev}:{seen.st_ino + 1}"
        daemon.restart()
        assert not daemon.log.splitlines()[-1].startswith("<")


def said_by(form: str, message: str, *args: object, is_journal: bool = False, **how: object) -> str:
    """What one line of a daemon's log looks like in a locale of long ago; the root logger is as it was afterwards."""
    root, own = logging.getLogger(), logging.getLogger("cachedaemon")
    before, level, own_level, error = root.handlers[:], root.level, own.level, sys.stderr
    sys.stderr = io.TextIOWrapper(written := io.BytesIO(), encoding="latin-1", errors="backslashreplace")
    try:
        configure(form, "info", is_journal=is_journal)
        own.warning(message, *args, **how)  # type: ignore[arg-type]
        return written.getvalue().decode().removesuffix("\n")
    finally:
        sys.stderr = error
        root.handlers[:] = before
        root.setLevel(level)
        own.setLevel(own_level)


@given(st.text(), st.text(min_size=1))
@example("a\u061cb\u2066", "\xe9\u20ac\U0001f600")
@example("a\u202eb\x9b2J\u2028", '"quoted" = \\ ')
def test_whatever_is_said_is_one_visible_line(text: str, key: str) -> None:
    """Text and JSON alike: no control character, no separator, nothing that turns the writing; JSON says it back whole."""
    for form in ("text", "json"):
        line = said_by(form, "%s: %s", Ref("s", key), text)
        assert line.splitlines() == [line]
        assert not {unicodedata.category(one) for one in line} & {"Cc", "Zl", "Zp"}
        assert not {unicodedata.bidirectional(one) for one in line} & {
            "LRO",
            "RLO",
            "LRE",
            "RLE",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        }
        assert "\u061c" not in line
        if form == "json":
            said = json.loads(line)
            assert (said["message"], said["key"], said["source"]) == (f"s/{key}: {text}", key, "s")


def test_json_has_a_priority_too() -> None:
    line = said_by("json", "said", is_journal=True)
    assert json.loads(line.removeprefix("<4>"))["message"] == "said"


def test_a_traceback_is_in_its_line() -> None:
    try:
        int("no number")
    except ValueError:
        line = said_by("text", "it failed", exc_info=True)
    assert len(line.splitlines()) == 1
    assert 'message="it failed" exception="Traceback (most recent call last):\\n' in line
    assert line.endswith("ValueError: invalid literal for int() with base 10: 'no number'\"")


def test_libraries_say_no_more_than_warnings() -> None:
    """What they say at lower levels may name URLs."""
    before = logging.getLogger().level
    try:
        set_level("debug")
        assert logging.getLogger("cachedaemon.cache").getEffectiveLevel() == logging.DEBUG
        assert logging.getLogger("aiohttp.client").getEffectiveLevel() == logging.WARNING
        set_level("error")
        assert logging.getLogger("aiohttp.client").getEffectiveLevel() == logging.ERROR
    finally:
        logging.getLogger("cachedaemon").setLevel(logging.NOTSET)
        logging.getLogger().setLevel(before)
