"""Whole URLs from a file: its forms, what it may not be, how it changes; and that no URL of it is ever shown."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read, stream_of
from cachedaemon.errors import CacheDaemonError, Missing, OriginRefused, OriginUnavailable
from cachedaemon.origins.urltable import BLOCK, Malformed, table_of
from tests.fakes import content
from tests.fakes.origin import Origin, Status

DATA = content.data("k", 100_000)


def table(folder: Path, text: str | bytes) -> dict[str, str | None]:
    """What a file of that text says."""
    file = folder / "urls"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    made = table_of(file)
    assert made.get("none such") is None
    return {key: made.get(key) for key in made.keys()}  # noqa: SIM118 - it is no mapping


def put(file: Path, text: str) -> None:
    """Put a new file in the place of the one that is there."""
    (file.parent / "new").write_text(text)
    (file.parent / "new").rename(file)


# ---- forms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a http://h/a", {"a": "http://h/a"}),
        ("a\thttp://h/a\nb\thttps://h/b?x=%2f&y=+\n", {"a": "http://h/a", "b": "https://h/b?x=%2f&y=+"}),
        ("a   http://h/a  \r\nb \t HTTPS://h/b\r\n", {"a": "http://h/a", "b ": "HTTPS://h/b"}),
        ("\n# http://h/c\n  \na b c http://h/a\n", {"a b c": "http://h/a"}),
        ("a b \thttp://h/a", {"a b ": "http://h/a"}),
        (" a http://h/a", {" a": "http://h/a"}),
        ("a\tb\thttp://h/a", {"a\tb": "http://h/a"}),
        ("a http://h/1\na http://h/2", {"a": "http://h/2"}),
        ("\ufeffa http://h/a", {"a": "http://h/a"}),
        ("ünï/日本.tar http://h/a", {"ünï/日本.tar": "http://h/a"}),
        ("../a http://h/a", {"../a": "http://h/a"}),
        (json.dumps({"a": "http://h/a", "b c\n#": "https://h"}), {"a": "http://h/a", "b c\n#": "https://h"}),
        ('\n {"a": "http://h/1",\n"a": "http://h/2"}\n', {"a": "http://h/2"}),
    ],
)
def test_forms(folder: Path, text: str, says: dict[str, str]) -> None:
    assert table(folder, text) == says


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no key"),
        ("\n# a http://h/a\n", "no key"),
        ("{}", "no key"),
        ("a http://h/a\nb\n", "line 2"),
        ("a http://h/a\nhttp://h/b\n", "line 2"),
        ("a ftp://h/SECRET", "line 1"),
        ("a http://h/ü", "line 1"),
        ("a\thttp://h/a b", "line 1"),
        ("a\0b http://h/a", "line 1"),
        (b"\xff http://h/a", "UTF-8"),
        ('{"a": "http://h/SECRET"', "JSON"),
        ('{"a": {"SECRET": 1}}', "'a'"),
        ('{"a": 7}', "'a'"),
        ('{"a", "http://h/a"}', "'a'"),
        ('{"a": "http://h/a",}', "JSON"),
        ('{"a": "http://h/a" "b": "http://h/b"}', "JSON"),
        ('{"a": "http://h/a"}, {}', "JSON"),
        ('{,"a": "http://h/a"}', "JSON"),
        ("{a http://h/a", "JSON"),
        ('{"a": "SECRET"}', "'a'"),
        ('{"a": "http://h/SECRET\\n"}', "'a'"),
        ('{"": "http://h/a"}', "''"),
        ('{"\\ud800": "http://h/a"}', "UTF-8"),
        ('{"a":' * 100_000, "JSON"),
    ],
)
def test_what_is_no_table(folder: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(Malformed) as error:
        table(folder, text)
    assert said in str(error.value)
    assert "SECRET" not in str(error.value)


def test_many_keys(folder: Path) -> None:
    """Over many blocks, in any order; the last of several counts wherever it stands."""
    chance = random.Random(3)
    keys = [f"{n}/shard.tar" for n in range(5000)] * 2
    chance.shuffle(keys)
    lines = [f"{key} https://h/{chance.randbytes(30).hex()}" for key in keys]
    assert sum(map(len, lines)) > 4 * BLOCK
    (folder / "urls").write_text("\n".join(lines))
    made, says = table_of(folder / "urls"), dict(line.split() for line in lines)
    assert made.keys() == set(says)
    for key in chance.sample(sorted(says), 100):
        assert made.get(key) == says[key]


# ---- the origin


@pytest.mark.asyncio
async def test_objects_come_from_the_urls_of_the_file(folder: Path) -> None:
    """Byte for byte; keys need not look like what they lead to."""
    with Origin() as one, Origin() as two:
        one.put("x?sig=a%2Fb%2Bc%3D", data=b"1")
        two.put("y", data=b"2")
        (folder / "urls").write_text(f"a/../é.bin {one.url}x?sig=a%2Fb%2Bc%3D\nb {two.url.replace('//', '//u:p@')}y\n")
        async with opened("", {"urls": str(folder / "urls")}) as origin:
            await origin.look()
            origin.check_key("a/../é.bin")
            assert await origin.keys() == ["a/../é.bin", "b"]
            assert [await read(origin, key) for key in ("a/../é.bin", "b")] == [b"1", b"2"]
            with pytest.raises(Missing, match=r"s/none: .* no such key"):
                await read(origin, "none")
        assert [request.target for request in (*one.log, *two.log)] == ["/x?sig=a%2Fb%2Bc%3D", "/y"]
        assert two.log[0].headers["authorization"] == "Basic dTpw"


@pytest.mark.asyncio
async def test_a_file_that_changes_is_read_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broken one, or one that has gone, leaves the one before in force, and is told of once."""
    file = folder / "urls"
    with Origin() as server:
        for name in ("one", "two"):
            server.put(name, data=name.encode())
        put(file, f"k {server.url}one")
        async with opened("", {"urls": str(file)}) as origin:
            assert await read(origin, "k") == b"one"
            put(file, f"k {server.url}two")
            assert await read(origin, "k") == b"two"
            put(file, "k SECRET")
            assert [await read(origin, "k") for _ in range(3)] == [b"two"] * 3
            (record,) = caplog.records
            assert record.getMessage().startswith(
                f"source s: the file of URLs '{file}' cannot be used: line 1: allowed"
            )
            assert record.getMessage().endswith("; the one before stays in force")
            file.unlink()
            assert [await read(origin, "k") for _ in range(3)] == [b"two"] * 3
            assert len(caplog.records) == 2
            put(file, f"new {server.url}one")
            assert await read(origin, "new") == b"one"
            with pytest.raises(Missing):
                await read(origin, "k")
            assert len(caplog.records) == 2


@pytest.mark.asyncio
async def test_a_file_that_never_could_be_used_is_an_outage(folder: Path) -> None:
    """Never `missing`; mended, it works without a word."""
    file = folder / "urls"
    with Origin() as server:
        server.put("k", data=DATA)
        put(file, "SECRET")
        async with opened("", {"urls": str(file)}) as origin:
            for ask in (origin.look(), origin.keys(), read(origin, "k")):
                with pytest.raises(OriginUnavailable, match="the file of URLs") as error:
                    await ask
                assert "SECRET" not in str(error.value)
            put(file, f"k {server.url}k")
            assert await read(origin, "k") == DATA


@pytest.mark.asyncio
async def test_a_file_that_hangs_ends_at_the_connect_limit(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "urls").write_text("k http://127.0.0.1:1/")
    async with opened("", {"urls": str(folder / "urls")}, connect_timeout="300ms") as origin:
        (folder / "pipe").rename(folder / "urls")
        with pytest.raises(OriginUnavailable, match="in time"):
            await read(origin, "k")
        with (folder / "urls").open("w") as pipe:  # lets the thread go
            pipe.write("k http://127.0.0.1:1/")


@pytest.mark.asyncio
async def test_while_a_new_file_is_read_the_one_before_is_in_force(folder: Path) -> None:
    """And what only the new one may have is waited for, never `missing`."""
    file = folder / "urls"
    with Origin() as server:
        for name in ("one", "two"):
            server.put(name, data=name.encode())
        put(file, f"k {server.url}one")
        async with opened("", {"urls": str(file)}) as origin:
            assert await read(origin, "k") == b"one"
            os.mkfifo(folder / "new")
            (folder / "new").rename(file)
            asked = [asyncio.create_task(read(origin, "new")) for _ in range(2)]
            done, _ = await asyncio.wait(asked, timeout=0.2)
            assert not done
            assert await read(origin, "k") == b"one"
            await asyncio.to_thread(file.write_text, f"new {server.url}two")
            assert await asyncio.gather(*asked) == [b"two"] * 2


@pytest.mark.asyncio
async def test_a_signature_that_has_expired_is_renewed_from_the_file(folder: Path) -> None:
    """C-21: the file has a new one by the time the old one is refused, for the whole and for a part."""
    file = folder / "urls"
    with Origin() as server:
        good = server.put("k?sig=new", data=DATA)
        old = server.put("k?sig=old", data=DATA, etag=good.tag)
        put(file, f"k {server.url}k?sig=old")

        def expire(*_: object) -> None:
            put(file, f"k {server.url}k?sig=new")

        async with opened("", {"urls": str(file)}) as origin:
            old.always, old.on_get = Status(403), expire
            assert await read(origin, "k") == DATA
            put(file, f"k {server.url}k?sig=old")
            old.always = old.on_get = None
            async with stream_of(origin, "k") as stream:
                old.always, old.on_get = Status(403), expire
                async with stream.part(5, 10) as lists:
                    assert [b"".join(pieces) async for pieces in lists] == [DATA[5:10]]
        assert (old.gets, good.gets) == (3, 2)


@pytest.mark.asyncio
async def test_no_url_of_the_file_is_in_a_message(folder: Path) -> None:
    lines = [
        "refused http://127.0.0.1:1/x?sig=SECRET", "odd http://[SECRET", "port http://127.0.0.1:SECRET/",
        "name http://u:SECRET@SECRET.invalid/", "host http:///SECRET", "range http://127.0.0.1:99999/SECRET",
    ]  # fmt: skip
    (folder / "urls").write_text("\n".join(lines))
    async with opened("", {"urls": str(folder / "urls")}, connect_timeout="1s") as origin:
        for key in (line.split()[0] for line in lines):
            with pytest.raises(CacheDaemonError) as error:
                await read(origin, key)
            assert isinstance(
                error.value, OriginRefused if key in ("odd", "port", "host", "range") else OriginUnavailable
            )
            assert f"s/{key}: " in str(error.value)
            assert "SECRET" not in str(error.value)
