"""Credentials of a web source through the daemon: renewed unseen, or rejected at once."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path

from tests.fakes import content
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Object, Origin, Status

SIZE = 2 << 20


class Guard:
    """Lets one token pass; refuses others, and writes the good one into the file by then."""

    def __init__(self, file: Path) -> None:
        self.file, self.good = file, "Bearer one"
        file.write_text(self.good)

    def __call__(self, headers: dict[str, str]) -> Status | None:
        if headers["authorization"] == self.good:
            return None
        self.file.write_text(self.good)
        return Status(403, {}, b"ExpiredToken")

    def change(self, _: Object) -> None:
        self.good = "Bearer two"


def test_a_token_that_expires_in_mid_transfer_is_renewed_unseen(folder: Path) -> None:
    """C-21: the transfer is cut, and for the rest the token is refused that it began with."""
    guard = Guard(folder / "token")
    with Origin() as origin:
        shard = origin.put("k.bin", SIZE, auth=guard, cut=[SIZE // 2], change=(1 << 16, guard.change))
        settings = {"url": origin.url, "headers": {"Authorization": f"file:{guard.file}"}}
        with Daemon({"s": settings}, fetch={"retries": 1}) as daemon:
            assert content.matches(daemon.path("s", "k.bin"), "k.bin", SIZE)
            assert daemon.metric("fetch_failures_total") == 1, "the cut"
        assert [r.headers["authorization"][-3:] for r in shard.requests] == ["one", "one", "two"]
        assert shard.seen_ranges[0] is None
        assert None not in shard.seen_ranges[1:]


def test_credentials_that_are_rejected_for_good_are_told_at_once(folder: Path) -> None:
    """C-23: many cold requests, a GET each, and no ladder of tries."""
    (folder / "token").write_text("SECRET")
    keys = [f"{number}.bin" for number in range(40)]
    with Origin() as origin:
        for key in keys:
            origin.put(key, 1000, always=Status(401))
        settings = {"url": origin.url, "headers": {"Authorization": f"file:{folder}/token"}}
        with Daemon({"s": settings}, fetch={"retries": 5}) as daemon:
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
                answers = list(pool.map(lambda key: daemon.acquire("s", key, 60), keys))
            assert time.monotonic() - began < 20, "a ladder of tries takes over 30 s"
            assert {(answer.status, answer.code) for answer in answers} == {(502, "origin_refused")}
            assert "s/7.bin: the origin answered 401: credentials rejected" in answers[7].body["error"]["message"]
            assert "SECRET" not in daemon.log
        assert origin.gets == len(keys)
