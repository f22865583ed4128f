"""What a user is told of each failure of each kind of origin, by the API and by the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachedaemon.conformance import BY_DESIGN, Place, Trait, nothing
from tests.contract.origins.places import PLACES
from tests.contract.test_object_stores import Bucket
from tests.fakes.between import Between
from tests.fakes.daemon import Daemon
from tests.fakes.fusefs import FuseFs, fuse_fs

CAP = 4 << 20


def _put(key: str, data: bytes) -> Callable[[Place], None]:
    return lambda place: place.put(key, data)


def _hang(key: str) -> Callable[[Place], None]:
    def arrange(place: Place) -> None:
        place.put(key, b"data")
        place.hang(key)

    return arrange


@dataclass(frozen=True)
class Failure:
    """One kind: how it comes about, and what is said of it."""

    key: str
    status: int
    code: str
    says: str
    arrange: Callable[[Place], object] = lambda _: nothing()
    retryable: bool = False
    needs: Trait | None = None
    wait: float = 30
    source: str = "s"


FAILURES = [
    Failure("none.bin", 404, "missing", ""),
    Failure("no.bin", 502, "origin_refused", "", lambda place: place.refuse("no.bin"), needs="refusal"),
    Failure("x.bin", 503, "origin_unavailable", "", lambda place: place.down(), retryable=True, needs="outage"),
    Failure("h.bin", 503, "origin_unavailable", "", _hang("h.bin"), retryable=True, needs="silence"),
    Failure(
        "w.bin", 504, "wait_expired", "did not become local", _hang("w.bin"), retryable=True, needs="silence", wait=0.3
    ),
    Failure("big.bin", 413, "too_large", "max_bytes", _put("big.bin", bytes(CAP + 1))),
    Failure("bad.zip", 502, "bad_archive", "", _put("bad.zip", b"no archive")),
    Failure("../up.bin", 400, "bad_request", "segment"),
    Failure("bad.bin", 502, "corrupt", "sha256", _put("bad.bin", b"bad"), source="checked"),
    Failure("unlisted.bin", 502, "origin_refused", "SUMS", _put("unlisted.bin", b"x"), source="checked"),
    Failure("k.bin", 404, "unknown_source", "configured are", source="nowhere"),
]


@pytest.fixture(scope="module")
def fuse() -> Iterator[FuseFs]:
    with tempfile.TemporaryDirectory(prefix="cd-") as folder, fuse_fs(Path(folder)) as mount:
        yield mount


@pytest.fixture(params=[*PLACES, "s3"])
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    if request.param != "s3":
        with PLACES[request.param](folder, lambda: request.getfixturevalue("fuse")) as made:
            yield made
        return
    running = request.getfixturevalue("moto")
    with Between(running.url) as proxy:
        yield Bucket("moto", running, proxy)


def check(one: Failure, text: str) -> None:
    assert one.says in text
    assert one.source in text
    assert one.key in text or one.code == "unknown_source"
    assert "://" not in text


def test_each_failure_names_the_shard_and_the_cause(place: Place, request: pytest.FixtureRequest) -> None:
    """With the right status, code and `retryable`; the command ends with 1 and the same words, in one line."""
    commands = request.node.callspec.params["place"] == "http"  # it says what the daemon says, whatever the origin
    place.put("SUMS", b"00" * 32 + b"  bad.bin\n")
    settings = {"url": place.url, **place.settings}
    sources = {"s": settings, "checked": {**settings, "checksums": "SUMS"}}
    limits = {"retries": 0, "stall_timeout": "1s", "connect_timeout": "5s"}
    with Daemon(sources, fetch=limits, max_bytes=CAP, max_shards=0) as daemon:
        for one in FAILURES:
            if one.needs in place.lacks:
                continue
            one.arrange(place)
            answer = daemon.acquire(one.source, one.key, one.wait)
            ran = daemon.cli("get", one.source, one.key, "--wait", str(one.wait)) if commands else None
            place.up()
            said = answer.body["error"]
            assert (answer.status, said["code"], said["retryable"]) == (one.status, one.code, one.retryable), said
            check(one, said["message"])
            if ran:
                assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran
                check(one, ran.err)
        assert "Traceback" not in daemon.log
        assert not daemon.shards()


def test_what_a_place_lacks_has_a_reason(place: Place) -> None:
    assert all(len(why.split()) > 3 for why in place.lacks.values()), BY_DESIGN
