"""Sources that ask their origin again: each version at a path of its own, and nobody's bytes change (C-06, C-49)."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cachedaemon_client import ShardCache, errors
from tests.fakes import content, packing, readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.waiting import until

SIZE = 50_000
LONG = "1h"
VERSION = re.compile(r"@[0-9a-f]{8}$")


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as one:
        one.put("a.bin", SIZE)
        yield one


@contextlib.contextmanager
def asking(origin: Origin, revalidate: object = "always", **cache: Any) -> Iterator[tuple[Daemon, ShardCache]]:
    """A daemon whose source "s" asks again, and a client."""
    with (
        Daemon({"s": {"url": origin.url, "revalidate": revalidate}}, **cache) as daemon,
        ShardCache("s", socket=daemon.socket, wait=20) as client,
    ):
        yield daemon, client


def is_version(path: Path, seed: int, size: int = SIZE) -> bool:
    return content.matches(path, "a.bin", size, seed)


def versions(daemon: Daemon) -> list[str]:
    return sorted(path.name for path in (daemon.cache / "shards" / "s").iterdir())


def test_what_has_not_changed_is_not_fetched_again(origin: Origin) -> None:
    with asking(origin) as (daemon, cache):
        with cache.open("a.bin") as shard:
            assert not shard.hit
            assert is_version(shard.path, 0)
            assert VERSION.search(shard.path.name)
            first = shard.path
        for _ in range(3):
            with cache.open("a.bin") as shard:
                assert shard.hit
                assert shard.path == first
        assert origin["a.bin"].sent == SIZE, "the answers to the other requests were 304"
        assert origin["a.bin"].gets == 4
        assert daemon.metric("requests_total", source="s", result="hit") == 3
        assert daemon.status()["sources"]["s"]["direct"] is False


@pytest.mark.parametrize("tagged", [True, False])
def test_a_change_is_a_new_version_and_readers_keep_the_old_one(origin: Origin, *, tagged: bool) -> None:
    """C-49: a mapping of the old version stays intact. C-06: same size, and a step back to what was before."""
    shard = origin["a.bin"]
    shard.etag, shard.modified = ("" if tagged else None), "Mon, 02 Nov 2026 10:00:00 GMT"
    with asking(origin) as (daemon, cache):
        old = cache.open("a.bin")
        with open(old.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            shard.replace(seed=2, etag=shard.etag)
            shard.modified = "Sun, 01 Nov 2026 10:00:00 GMT"  # an older date is another version all the same
            with cache.open("a.bin") as new:
                assert is_version(new.path, 2)
                assert new.path != old.path
                assert is_version(old.path, 0), "the old one keeps its path"
                assert len(versions(daemon)) == 2
            assert bytes(mapped) == b"".join(content.pieces("a.bin", 0, SIZE, 0))
            shard.replace(seed=0, etag=shard.etag)
            shard.modified = "Sat, 31 Oct 2026 10:00:00 GMT"
            with cache.open("a.bin") as again:
                assert is_version(again.path, 0)
                assert again.path == old.path, "the same bytes are the same version"
        path = old.path
        old.close()
        until(lambda: versions(daemon) == [path.name], 20, "only the version in force is left")
        assert daemon.metric("evictions_total", source="s", reason="replaced") >= 1


def test_an_old_version_goes_when_nobody_holds_it(origin: Origin) -> None:
    with asking(origin) as (daemon, cache):
        old = cache.open("a.bin")
        origin["a.bin"].replace(seed=1)
        with cache.open("a.bin") as new:
            name = new.path.name
        assert old.path.exists()
        assert daemon.status()["cache"]["shards"] == 2
        old.close()
        until(lambda: versions(daemon) == [name], 20)
        assert daemon.status()["cache"]["shards"] == 1


def test_a_killed_reader_of_the_old_version_frees_it(origin: Origin) -> None:
    hold = "shard = ShardCache('s').open('a.bin'); say(str(shard.path)); hear()"
    with asking(origin) as (daemon, cache), readers.Reader(daemon, hold) as reader:
        old = Path(reader.line())
        origin["a.bin"].replace(seed=1)
        with cache.open("a.bin") as new:
            assert is_version(new.path, 1)
        assert old.exists()
        reader.kill9()
        until(lambda: not old.exists(), 20)


def test_the_answer_of_the_origin_holds_for_a_while(origin: Origin) -> None:
    with asking(origin, LONG) as (_, cache):
        for _ in range(3):
            cache.open("a.bin").close()
        origin["a.bin"].replace(seed=1)
        with cache.open("a.bin") as shard:
            assert is_version(shard.path, 0)
        assert origin["a.bin"].gets == 1


def test_after_that_time_it_is_asked_again(origin: Origin) -> None:
    with asking(origin, "0.2s") as (_, cache):
        cache.open("a.bin").close()
        origin["a.bin"].replace(seed=1)

        def is_new() -> bool:
            with cache.open("a.bin") as shard:
                return is_version(shard.path, 1)

        until(is_new, 20)


def test_many_askers_cause_one_question_at_a_time(origin: Origin) -> None:
    """100 readers, a new version: one transfer."""
    ask = "with ShardCache('s').open('a.bin') as shard: say(content.matches(shard.path, 'a.bin', ARG, 1))"
    with asking(origin) as (daemon, cache):
        cache.open("a.bin").close()
        origin["a.bin"].replace(seed=1)
        gate = origin["a.bin"].gate = Gate(SIZE // 2)
        with readers.spawn(daemon, ask, [SIZE] * 8) as asked:
            assert gate.reached.wait(30)
            until(lambda: daemon.status()["waiters"] == 8, 30)
            gate.open()
            assert [one.rest() for one in asked] == [[True]] * 8
        assert origin["a.bin"].sent == 2 * SIZE


def test_an_origin_that_is_away(origin: Origin) -> None:
    """Where its word holds for a time, what is here is given out, and the log says so; with `always` it is an error."""
    with asking(origin, "0.1s", fetch={"retries": 0}) as (daemon, cache):
        cache.open("a.bin").close()
        origin["a.bin"].always = Status(503)
        until(lambda: origin["a.bin"].gets > 1 or cache.open("a.bin").close(), 20)
        with cache.open("a.bin") as shard:
            assert shard.hit
            assert is_version(shard.path, 0)
        assert "whether it changed cannot be asked" in daemon.log
    origin["a.bin"].always = None
    with asking(origin, "always", fetch={"retries": 0}) as (_, cache):
        cache.open("a.bin").close()
        origin["a.bin"].always = Status(503)
        with pytest.raises(errors.OriginFailed, match=r"s/a\.bin: the origin answered 503"):
            cache.open("a.bin")
        origin["a.bin"].always = None
        with cache.open("a.bin") as shard:
            assert shard.hit, "it was kept"


def test_an_object_that_was_removed_is_missing_and_its_readers_go_on(origin: Origin) -> None:
    with asking(origin) as (daemon, cache):
        old = cache.open("a.bin")
        origin["a.bin"].always = Status(404)
        with pytest.raises(errors.ShardMissing):
            cache.open("a.bin")
        assert is_version(old.path, 0)
        old.close()
        until(lambda: not versions(daemon), 20)


def test_a_cut_new_version_leaves_the_old_one(origin: Origin) -> None:
    with asking(origin, fetch={"retries": 0}) as (daemon, cache):
        cache.open("a.bin").close()
        before = versions(daemon)
        origin["a.bin"].replace(seed=1)
        origin["a.bin"].cut = [1000]
        with pytest.raises(errors.OriginFailed):
            cache.open("a.bin")
        assert versions(daemon) == before
        with cache.open("a.bin") as shard:
            assert is_version(shard.path, 1)


def test_a_cap_of_one_shard_is_enough(origin: Origin) -> None:
    """The version that is replaced makes room for its successor, unless somebody holds it."""
    with asking(origin, max_shards=1) as (_, cache):
        old = cache.open("a.bin")
        origin["a.bin"].replace(seed=1)
        with pytest.raises(errors.CacheFull), ShardCache("s", socket=cache.socket, wait=1) as hasty:
            hasty.open("a.bin")
        assert is_version(old.path, 0)
        old.close()
        with cache.open("a.bin") as shard:
            assert is_version(shard.path, 1)


def test_a_version_that_is_to_be_replaced_makes_room_for_who_asked_before() -> None:
    """Each would wait for the other: one for room, the other for its place in the queue behind it."""
    with Origin() as origin:
        old = origin.put("a.bin", SIZE)
        with asking(origin, max_shards=1, grace="50ms") as (daemon, _), ThreadPoolExecutor(2) as pool:
            daemon.path("s", "a.bin")
            old.replace(seed=1)
            old.latency = 1.0
            origin.put("b.bin", SIZE, latency=0.5)
            first = pool.submit(daemon.path, "s", "b.bin", 8)
            until(lambda: daemon.status()["waiters"] == 1, 10, "the first to wait")
            second = pool.submit(daemon.acquire, "s", "a.bin", 8)
            assert content.matches(first.result(), "b.bin", SIZE)
            assert second.result().status == 200


def test_versions_survive_a_restart(origin: Origin) -> None:
    """The latest is in force after it, and is asked for once more before it is given out."""
    with asking(origin, LONG) as (daemon, cache):
        with cache.open("a.bin") as shard:
            name = shard.path.name
        daemon.restart()
        with cache.open("a.bin") as shard:
            assert shard.hit
            assert shard.path.name == name
        assert origin["a.bin"].sent == SIZE
        daemon.restart()
        origin["a.bin"].replace(seed=1)
        with cache.open("a.bin") as shard:
            assert is_version(shard.path, 1)


def test_a_restart_with_two_versions_on_the_disk(origin: Origin) -> None:
    """A kill before the old one went: the later one is in force, the other goes."""
    with asking(origin) as (daemon, cache):
        old = cache.open("a.bin")
        origin["a.bin"].replace(seed=1)
        with cache.open("a.bin") as shard:
            name = shard.path.name
        daemon.kill9()
        assert len(versions(daemon)) == 2
        old.close()
        daemon.start()
        until(lambda: versions(daemon) == [name], 20)
        with cache.open("a.bin") as shard:
            assert (shard.hit, shard.path.name) == (True, name)


def test_members_of_a_new_version(origin: Origin) -> None:
    one, two = packing.image_like(5, 1, 3000), packing.image_like(5, 2, 3000)
    origin.put("i.zip", data=packing.zip_bytes(one))
    with asking(origin) as (_, cache):
        before = cache.open("i.zip")
        assert before.read(0) == next(iter(one.values()))
        origin["i.zip"].replace(data=packing.zip_bytes(two), etag='"2"')
        with cache.open("i.zip") as after:
            assert {name: after.read(name) for name in after.members} == two
        assert {name: before.read(name) for name in before.members} == one
        before.close()


def test_an_unpacked_archive_has_versions_too(origin: Origin) -> None:
    one, two = packing.image_like(5, 1, 3000), packing.image_like(5, 2, 3000)
    origin.put("i.zip", data=packing.zip_bytes(one))
    source = {"url": origin.url, "revalidate": "always", "archives": "unpack"}
    with Daemon({"s": source}) as daemon, ShardCache("s", socket=daemon.socket, wait=20) as cache:
        before = cache.open("i.zip")
        origin["i.zip"].replace(data=packing.zip_bytes(two), etag='"2"')
        with cache.open("i.zip") as after:
            assert {name: (after.path / name).read_bytes() for name in two} == two
            assert zipfile.is_zipfile(after.path) is False
        assert {name: (before.path / name).read_bytes() for name in one} == one
        before.close()
        with cache.open("i.zip") as after:
            assert after.hit


def test_a_file_source_asks_too(tmp_path: Path) -> None:
    """A file of another size or time is another version."""
    place = tmp_path / "a.bin"
    place.write_bytes(b"one")
    source = {"url": f"file://{tmp_path}/", "revalidate": "always", "settle": 0}
    with Daemon({"s": source}) as daemon, ShardCache("s", socket=daemon.socket, wait=20) as cache:
        with cache.open("a.bin") as shard:
            assert shard.path.read_bytes() == b"one"
        with cache.open("a.bin") as shard:
            assert shard.hit
        place.write_bytes(b"two")
        os.utime(place, ns=(1, 1))
        with cache.open("a.bin") as shard:
            assert shard.path.read_bytes() == b"two"


def test_a_prefetch_asks_again(origin: Origin) -> None:
    with asking(origin) as (daemon, cache):
        cache.open("a.bin").close()
        assert daemon.job(daemon.prefetch("s", ["a.bin"]))["state"] == "done"
        assert origin["a.bin"].sent == SIZE
        origin["a.bin"].replace(seed=1)
        assert daemon.job(daemon.prefetch("s", ["a.bin"]))["state"] == "done"
        assert origin["a.bin"].sent == 2 * SIZE


def test_with_no_time_to_ask_nothing_starts(origin: Origin) -> None:
    with asking(origin) as (daemon, cache):
        cache.open("a.bin").close()
        answer = daemon.acquire("s", "a.bin", 0)
        assert (answer.status, answer.code) == (504, "wait_expired")
        assert "has to be asked for again" in answer.body["error"]["message"]
        assert origin["a.bin"].gets == 1


def ask(daemon: Daemon, revalidate: str) -> None:
    """Reconfigure the source, and wait until it is so."""
    daemon.tables["sources"]["s"] = {**daemon.tables["sources"]["s"], "revalidate": revalidate}  # type: ignore[dict-item]
    daemon.reload()
    direct = revalidate == "never"
    until(lambda: daemon.api("GET", "/v1/hello").body["sources"]["s"]["direct"] is direct, 20)


def fresh(daemon: Daemon) -> tuple[Path, bool]:
    """What a reader gets that knows of nothing before."""
    with ShardCache("s", socket=daemon.socket, wait=20) as cache, cache.open("a.bin") as shard:
        return shard.path, shard.hit


def test_a_source_that_begins_to_ask_and_stops_again(origin: Origin) -> None:
    """A reload changes it. What is here stays; a version of before is nobody's hit, even while a reader still holds it."""
    with Daemon({"s": {"url": origin.url}}) as daemon, ShardCache("s", socket=daemon.socket, wait=20) as cache:
        old = cache.open("a.bin")
        assert not VERSION.search(old.path.name)
        ask(daemon, "always")
        assert fresh(daemon) == (old.path, True), "it has not changed"
        origin["a.bin"].replace(seed=1)
        path, hit = fresh(daemon)
        assert is_version(path, 1)
        assert not hit
        assert is_version(old.path, 0), "its reader keeps it"
        ask(daemon, "never")
        path, hit = fresh(daemon)
        assert is_version(path, 1)
        assert hit
        old.close()


def test_a_restart_that_stops_asking(origin: Origin) -> None:
    with Daemon({"s": {"url": origin.url}}) as daemon, ShardCache("s", socket=daemon.socket, wait=20) as cache:
        old = cache.open("a.bin")
        ask(daemon, "always")
        origin["a.bin"].replace(seed=1)
        fresh(daemon)
        daemon.kill9()
        assert len(versions(daemon)) == 2
        daemon.tables["sources"]["s"] = {"url": origin.url}
        daemon.start()
        path, hit = fresh(daemon)
        assert is_version(path, 1)
        assert hit
        old.close()
