"""Bytes that are not the object are never published, whoever knows it: the answer's head, or a manifest beside the shards."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachedaemon.digests import KINDS
from tests.fakes import content, disk, packing
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Object, Origin, Request
from tests.fakes.waiting import until

MIB = 1 << 20
SIZE = 300_000


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, SIZE) if name.endswith(".bin") else None)
        yield made


def taken(kind: str, data: bytes) -> bytes:
    """A digest, by the code that is tested elsewhere."""
    one = KINDS[kind]()
    one.update(data)
    return one.digest()


def coded(kind: str, data: bytes) -> str:
    """In base64, as most headers have it."""
    return base64.b64encode(taken(kind, data)).decode()


HEADS: dict[str, Callable[[bytes], dict[str, str]]] = {
    "md5": lambda data: {"Content-MD5": coded("md5", data)},
    "sha256": lambda data: {"Repr-Digest": f"sha-256=:{coded('sha256', data)}:"},
    "sha512": lambda data: {"Repr-Digest": f"sha-512=:{coded('sha512', data)}:"},
    "crc32c": lambda data: {"x-goog-hash": f"crc32c={coded('crc32c', data)}"},
    "crc32": lambda data: {"x-amz-checksum-crc32": coded("crc32", data)},
    "crc64nvme": lambda data: {"x-amz-checksum-crc64nvme": coded("crc64nvme", data)},
    "sha1": lambda data: {"x-amz-checksum-sha1": coded("sha1", data)},
}
"""A header of each kind that stores give, by what the bytes are."""


def sums(**shards: bytes) -> bytes:
    """A manifest."""
    return b"".join(
        b"%s  %s\n" % (hashlib.sha256(data).hexdigest().encode(), key.encode()) for key, data in shards.items()
    )


def nothing_of_it(daemon: Daemon, key: str) -> None:
    """It is neither published nor lies anywhere."""
    assert key not in {shard["key"] for shard in daemon.shards()}
    until(lambda: not disk.leftovers(daemon.cache), 10, "staging and trash are empty")
    assert not [path for path in daemon.cache.rglob("*") if path.is_file() and key in path.name]


def test_digests_of_every_kind(origin: Origin) -> None:
    """Wrong ones are tried again, then told with kind, got and expected; nothing is published and nothing is left."""
    for kind, head in HEADS.items():
        origin.put(f"{kind}.bin", SIZE, extra=head(content.data(f"{kind}.bin", SIZE)))
        origin.put(f"not-{kind}.bin", SIZE, extra=head(b"something else"))
    with Daemon({"s": origin.url}, fetch={"retries": 1}) as daemon:
        for kind in HEADS:
            key, other = f"{kind}.bin", f"not-{kind}.bin"
            assert content.matches(daemon.path("s", key), key, SIZE)
            answer = daemon.acquire("s", other)
            assert (answer.status, answer.code) == (502, "corrupt")
            got, expected = (taken(kind, data).hex() for data in (content.data(other, SIZE), b"something else"))
            said = answer.body["error"]["message"]
            assert said == f"s/{other}: the bytes that came are not the object: {kind} is {got}, expected {expected}"
            assert (origin[key].gets, origin[other].gets) == (1, 2)
            nothing_of_it(daemon, other)
        assert daemon.metric("fetch_failures_total", source="s", reason="corrupt") == 2 * len(HEADS)


def test_bytes_that_are_wrong_once(origin: Origin) -> None:
    """One flipped bit, the length right: only the digest shows it. The next try is right.

    And a transfer that was cut, and goes on with other bytes under the same ETag: the whole is wrong, and begins anew.
    """
    once, rest = content.data("once.bin", SIZE), content.data("rest.bin", 4 * MIB)

    def flip(shard: Object, _: Request) -> None:
        shard.data = bytes([once[0] ^ (shard.gets == 1)]) + once[1:]

    def other(shard: Object, request: Request) -> None:
        is_rest = shard.gets == 2 and "range" in request.headers
        shard.data = rest[:-1] + bytes([rest[-1] ^ is_rest])

    origin.put("once.bin", data=once, extra=HEADS["md5"](once), on_get=flip)
    origin.put("rest.bin", data=rest, etag='"1"', extra=HEADS["md5"](rest), cut=[2 * MIB], on_get=other)
    with Daemon({"s": origin.url}) as daemon:
        assert content.matches(daemon.path("s", "once.bin"), "once.bin", SIZE)
        assert origin["once.bin"].gets == 2
        assert content.matches(daemon.path("s", "rest.bin"), "rest.bin", 4 * MIB)
        assert [one is not None for one in origin["rest.bin"].seen_ranges] == [False, True, False]


def test_parts_that_come_side_by_side(origin: Origin) -> None:
    """The digest is of the whole, in whatever order its parts came."""
    size = 40 * MIB
    for key, data in (("right.bin", content.data("right.bin", size)), ("wrong.bin", b"other")):
        origin.put(key, size, bps=12 * MIB, extra=HEADS["sha256"](data))
    with Daemon({"s": origin.url}, fetch={"retries": 0}) as daemon:
        assert content.matches(daemon.path("s", "right.bin"), "right.bin", size)
        answer = daemon.acquire("s", "wrong.bin")
        assert answer.code == "corrupt"
        assert "sha256 is " + content.sha256("wrong.bin", size) in answer.body["error"]["message"]
        assert min(origin["right.bin"].gets, origin["wrong.bin"].gets) > 1, "they came in parts"
        nothing_of_it(daemon, "wrong.bin")


def test_an_archive_is_checked_before_anybody_looks_into_it(origin: Origin) -> None:
    members = {f"{n}.jpg": content.data(f"{n}", 20_000) for n in range(5)}
    data = packing.zip_bytes(members)
    origin.put("good.zip", data=data, extra=HEADS["md5"](data))
    origin.put("bad.zip", data=data, extra=HEADS["md5"](data[:-1]))
    sources = {"s": {"url": origin.url}, "u": {"url": origin.url, "archives": "unpack"}}
    with Daemon(sources, fetch={"retries": 0}) as daemon:
        assert daemon.path("s", "good.zip").read_bytes() == data
        assert {one.name: one.read_bytes() for one in daemon.path("u", "good.zip").iterdir()} == members
        for source in sources:
            assert daemon.acquire(source, "bad.zip").code == "corrupt"
            nothing_of_it(daemon, "bad.zip")


# ---- a manifest


def vouched(origin: Origin, **more: object) -> dict[str, dict[str, object]]:
    return {"s": {"url": origin.url, "checksums": "SHA256SUMS", **more}}


def test_sizes_around_the_blocks_and_nothing_where_bytes_are_expected(origin: Origin) -> None:
    """C-37: all of them are published, with the right bytes; an empty answer to a shard that has bytes is not.

    The manifest is read once, and again for what is wrong.
    """
    sizes = [0, 1, *(size + more for size in (65_536, MIB, 8 * MIB) for more in (-1, 0, 1))]
    shards = {f"{size}.bin": content.data(f"{size}.bin", size) for size in sizes}
    origin.put("SHA256SUMS", data=sums(**shards, **{"full.bin": content.data("full.bin", 5 * 10**6)}))
    for key, data in shards.items():
        origin.put(key, data=data)
    origin.put("full.bin", data=b"")
    with Daemon(vouched(origin), max_shards=len(sizes), fetch={"retries": 1}) as daemon:
        for key, data in shards.items():
            assert daemon.path("s", key).read_bytes() == data
        assert origin["SHA256SUMS"].gets == 1
        answer = daemon.acquire("s", "full.bin")
        assert (answer.status, answer.code) == (502, "corrupt")
        assert f"sha256 is {hashlib.sha256().hexdigest()}" in answer.body["error"]["message"]
        assert (origin["full.bin"].gets, origin["SHA256SUMS"].gets) == (2, 2)
        nothing_of_it(daemon, "full.bin")


def test_what_is_not_listed_is_refused_and_comes_once_it_is(origin: Origin) -> None:
    origin.put("SHA256SUMS", data=sums(**{"a.bin": content.data("a.bin", SIZE)}), etag='"1"')
    with Daemon(vouched(origin)) as daemon:
        daemon.path("s", "a.bin")
        answer = daemon.acquire("s", "b.bin")
        assert (answer.status, answer.code) == (502, "origin_refused")
        assert "s/b.bin: the manifest 'SHA256SUMS' does not list it" in answer.body["error"]["message"]
        assert not [request for request in origin.log if request.target == "/b.bin"]
        listed = {key: content.data(key, SIZE) for key in ("a.bin", "b.bin")}
        origin.put("SHA256SUMS", data=sums(**listed), etag='"2"')
        until(lambda: daemon.acquire("s", "b.bin").status == 200, 10, "the manifest is read again")
        assert daemon.path("s", "SHA256SUMS").read_bytes() == sums(**listed)


def test_a_manifest_that_is_not_there(origin: Origin) -> None:
    """Missing, unavailable, and no manifest: the shard is neither missing nor served, and comes once all is well."""
    with Daemon(vouched(origin), fetch={"retries": 0}) as daemon:
        answer = daemon.acquire("s", "a.bin")
        assert (answer.code, "its manifest" in answer.body["error"]["message"]) == ("origin_refused", True)
        origin.put("SHA256SUMS", data=b"<html>")
        answer = daemon.acquire("s", "a.bin")
        assert (answer.code, "line 1 is not that of a checksum" in answer.body["error"]["message"]) == ("corrupt", True)
        origin["SHA256SUMS"].cut_always = 2
        assert daemon.acquire("s", "a.bin").code == "origin_unavailable"
        origin.put("SHA256SUMS", data=sums(**{"a.bin": content.data("a.bin", SIZE)}))
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", SIZE)


def test_a_reload_with_and_without_a_manifest(origin: Origin) -> None:
    """It is asked for from then on; shards that are here stay."""
    with Daemon({"s": {"url": origin.url}}) as daemon:
        daemon.path("s", "a.bin")
        for number, (settings, code) in enumerate(
            ((vouched(origin), "origin_refused"), ({"s": {"url": origin.url}}, None)), 1
        ):
            daemon.tables["sources"] = settings
            daemon.reload()
            until(lambda n=number: daemon.log.count("reloaded: ") == n, 20, "the reload")  # type: ignore[misc]
            assert daemon.acquire("s", "b.bin").code == code
            assert daemon.acquire("s", "a.bin").body["result"] == "hit"


def test_a_manifest_in_a_folder(folder: Path) -> None:
    """As sha256sum(1) wrote it there."""
    for key in ("a.bin", "b.bin"):
        content.write(folder / key, key, SIZE)
    listed = sums(**{"a.bin": content.data("a.bin", SIZE), "b.bin": b"another"})
    (folder / "SHA256SUMS").write_bytes(listed)
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    with Daemon({"s": {"url": f"file://{folder}/", "checksums": "SHA256SUMS"}}, fetch={"retries": 0}) as daemon:
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", SIZE)
        answer = daemon.acquire("s", "b.bin")
        assert answer.code == "corrupt"
        assert f"expected {hashlib.sha256(b'another').hexdigest()}" in answer.body["error"]["message"]
        nothing_of_it(daemon, "b.bin")
