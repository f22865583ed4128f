"""A manifest of digests beside the shards: what its lines mean, and when it is read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cachedaemon import checksums
from cachedaemon.checksums import Vouched
from cachedaemon.config import Fetch, Source
from cachedaemon.digests import Hashes
from cachedaemon.errors import Corrupt, Missing, OriginRefused, OriginUnavailable
from cachedaemon.manifests import parse
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest
from cachedaemon.origins import origin_of
from tests.fakes import content
from tests.fakes.origin import Gate, Origin, Status, busy

DATA = b"123456789"
TOOLS = ("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum")
NAMES = ("a.bin", "a b.bin", "  x", "*star", "back\\slash", "new\nline", "ünï.bin", "d/e/f.bin", "x) = 00")


def digest(kind: str, data: bytes = DATA) -> Digest:
    return Digest(kind, hashlib.new(kind, data, usedforsecurity=False).digest())


def line(key: str, data: bytes, kind: str = "sha256") -> bytes:
    return f"{hashlib.new(kind, data).hexdigest()}  {key}\n".encode()


@pytest.mark.parametrize("form", [[], ["--binary"], ["--tag"], ["--zero"]])
@pytest.mark.parametrize("tool", TOOLS)
def test_what_the_tools_write_is_read(folder: Path, tool: str, form: list[str]) -> None:
    """With names of every kind. `--zero` is the one form that is refused."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(DATA)
    said = subprocess.run([tool, *form, "--", *NAMES], cwd=folder, capture_output=True, check=True).stdout
    if form == ["--zero"]:
        with pytest.raises(ValueError, match="line 1 "):
            parse(said)
    else:
        assert parse(said) == dict.fromkeys(NAMES, digest(tool.removesuffix("sum")))


def test_a_find_through_sha256sum_is_read(folder: Path) -> None:
    """`./` before each name."""
    (folder / "sub").mkdir()
    for name in ("a.bin", "sub/b.bin"):
        (folder / name).write_bytes(DATA)
    said = subprocess.run("find . -type f | xargs sha256sum", shell=True, cwd=folder, capture_output=True, check=True)
    assert parse(said.stdout) == dict.fromkeys(("a.bin", "sub/b.bin"), digest("sha256"))


@pytest.mark.parametrize(
    "text",
    [
        "{hex}  k\r\n",
        "\ufeff{hex}  k\n",
        "# made by hand\n\n   \n{HEX} *k",
        "{hex} k\n",
        "SHA256(k)= {hex}\n".replace(")= ", ") = "),
        "{hex}  ././/k\n{hex}  k\n",
    ],
)
def test_variants_in_the_wild(text: str) -> None:
    value = digest("sha256").value.hex()
    assert parse(text.format(hex=value, HEX=value.upper()).encode()) == {"k": digest("sha256")}


def test_xxhsum_with_tags_is_read() -> None:
    """Without a tag its lengths are those of other kinds."""
    long, short = "06a2b3c4" * 4, "06a2b3c4" * 2
    said = parse(f"XXH64 (a) = {short}\nXXH128 (b) = {long}\n".encode())
    assert said == {"a": Digest("xxh64", bytes.fromhex(short)), "b": Digest("xxh3-128", bytes.fromhex(long))}


def test_names_count_from_the_folder_of_the_manifest() -> None:
    assert set(parse(line("./a.bin", DATA) + line("b/c.bin", DATA), "train/")) == {"train/a.bin", "train/b/c.bin"}


def test_of_two_kinds_the_longer_counts() -> None:
    for kinds in (("md5", "sha512"), ("sha512", "md5")):
        assert parse(b"".join(line("k", DATA, kind) for kind in kinds)) == {"k": digest("sha512")}


@pytest.mark.parametrize("name", [b"\xff\xfe", b"../up", b"a/../b", b"./", b"."])
def test_a_name_that_can_be_no_key_harms_no_other(name: bytes) -> None:
    assert parse(line("a", DATA) + line("bad", DATA).replace(b"bad", name)) == {"a": digest("sha256")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"<html>\n", "line 1 is not that of a checksum: '<html>'"),
        (line("a", DATA) + b"{}\n", "line 2 is not that of a checksum"),
        (b"abc  k\n", "line 1 has a digest that cannot be: 'abc  k'; allowed are MD5 (32), SHA1 (40)"),
        (b"SHA256 (k) = abcd\n", "line 1 has a digest that cannot be"),
        (b"BLAKE2b (k) = " + b"0" * 128, "line 1 has a digest that cannot be"),
        (b"0" * 64 + b"\n", "line 1 is not that of a checksum"),
        (b"\\" + line("a\\tb", DATA), "line 1: the escape \\t in the name is not known"),
        (line("k", DATA) + line("k", b""), "line 2 gives another sha256 for 'k' than a line before"),
        ("0  k\n".encode("utf-16"), "line 1 is not that of a checksum"),
        (b"x" * 1000, "line 1 is not that of a checksum: '" + "x" * 57 + "...'"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_line(text: bytes, said: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text)
    assert said in str(error.value)


# ---- as an origin


@contextlib.asynccontextmanager
async def vouched(origin: Origin, manifest: str = "SHA256SUMS") -> AsyncIterator[Vouched]:
    """An HTTP source whose shards the manifest vouches for."""
    source = Source(url=origin.url)
    fetch = Fetch(connect_timeout=2, stall_timeout=2)
    metrics = Metrics("")
    one = Vouched("s", origin_of("s", source, fetch, metrics), manifest, metrics)
    try:
        yield one
    finally:
        await one.close()


async def fetched(one: Vouched, key: str) -> bytes:
    """As a transfer does it."""
    async with one.open(key) as stream:
        assert stream is not None
        hashes, data = Hashes(digest.kind for digest in stream.digests), b""
        async for pieces in stream.pieces():
            for piece in pieces:
                hashes.update(piece)
                data += piece
        if wrong := hashes.mismatch(stream.digests):
            raise Corrupt(f"s/{key}: {wrong}")
        return data


def offer(origin: Origin, **shards: bytes) -> None:
    """Shards, and a manifest of them."""
    for key, data in shards.items():
        origin.put(key, data=data)
    origin.put(
        "SHA256SUMS", data=b"".join(line(key, data) for key, data in shards.items()), etag=f'"{len(origin.log)}"'
    )


def readings(origin: Origin) -> int:
    """How often the manifest was asked for."""
    return sum(request.target == "/SHA256SUMS" for request in origin.log)


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        yield made


on_both_loops = pytest.mark.asyncio


@on_both_loops
async def test_the_listed_digest_is_among_those_of_the_object(origin: Origin) -> None:
    offer(origin, a=b"aa", b=b"bb")
    async with vouched(origin) as one:
        async with one.open("a") as stream:
            assert stream is not None
            assert digest("sha256", b"aa") in stream.digests
        assert await fetched(one, "b") == b"bb"
    assert readings(origin) == 1, "it is read once"


@on_both_loops
async def test_the_manifest_itself_can_be_fetched(origin: Origin) -> None:
    offer(origin, a=b"aa")
    async with vouched(origin) as one:
        assert await fetched(one, "SHA256SUMS") == line("a", b"aa")


@on_both_loops
async def test_many_that_need_it_at_once_share_one_reading(origin: Origin) -> None:
    keys = {f"k{n}": b"%d" % n for n in range(20)}
    offer(origin, **keys)
    gate = origin["SHA256SUMS"].gate = Gate(10)
    async with vouched(origin) as one:
        tasks = [asyncio.create_task(fetched(one, key)) for key in keys]
        await asyncio.to_thread(gate.reached.wait, 10)
        tasks[0].cancel()  # whoever was first may leave
        gate.open()
        assert await asyncio.gather(*tasks[1:]) == list(keys.values())[1:]
    assert readings(origin) == 1


@on_both_loops
async def test_nobody_waits_for_a_reading_that_everybody_left(origin: Origin) -> None:
    offer(origin, a=b"aa")
    gate = origin["SHA256SUMS"].gate = Gate(10)
    async with vouched(origin) as one:
        task = asyncio.create_task(fetched(one, "a"))
        await asyncio.to_thread(gate.reached.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.open()


@on_both_loops
async def test_what_is_not_listed_is_refused_and_not_missing(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the origin has it or not; the manifest is read again for it, but not each time."""
    offer(origin, a=b"aa")
    origin.put("new", data=b"new")
    async with vouched(origin) as one:
        for key in ("new", "none"):
            with pytest.raises(OriginRefused, match=f"s/{key}: the manifest 'SHA256SUMS' does not list it"):
                await fetched(one, key)
        assert readings(origin) == 1
        monkeypatch.setattr(checksums, "AGAIN", 0.0)
        offer(origin, a=b"aa", new=b"new")
        assert await fetched(one, "new") == b"new"
        assert await fetched(one, "a") == b"aa"
        assert readings(origin) == 2


@on_both_loops
async def test_a_manifest_that_did_not_change_is_not_sent_again(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "AGAIN", 0.0)
    offer(origin, a=b"aa")
    async with vouched(origin) as one:
        await fetched(one, "a")
        sent = origin["SHA256SUMS"].sent
        for _ in range(3):
            with pytest.raises(OriginRefused, match="does not list it"):
                await fetched(one, "b")
        assert readings(origin) == 4
        assert origin["SHA256SUMS"].sent == sent


@on_both_loops
async def test_after_wrong_bytes_the_manifest_is_read_again(origin: Origin) -> None:
    """Shard and manifest were exchanged together: the next try knows."""
    offer(origin, a=b"aa", b=b"bb")
    async with vouched(origin) as one:
        await fetched(one, "a")
        offer(origin, a=b"other", b=b"bb")
        with pytest.raises(Corrupt, match=r"s/a: sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
            await fetched(one, "a")
        assert readings(origin) == 1
        assert await fetched(one, "a") == b"other"
        assert readings(origin) == 2
        assert await fetched(one, "b") == b"bb"
        assert readings(origin) == 2


@on_both_loops
async def test_another_version_of_a_shard_has_another_line(origin: Origin) -> None:
    """Who asks whether a shard changed, and hears so, has it checked by the manifest as it is then."""
    offer(origin, a=b"aa")
    async with vouched(origin) as one:
        async with one.open("a") as stream:
            assert stream is not None
            known = stream.validators
        async with one.open("a", known) as stream:
            assert stream is None
        offer(origin, a=b"other")
        origin["a"].etag = '"2"'
        async with one.open("a", known) as stream:
            assert stream is not None
            assert stream.digests == (digest("sha256", b"other"),)


@on_both_loops
async def test_the_keys_are_those_of_the_manifest(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the origin can list or not, and in the order of the lines."""
    offer(origin, b=b"bb", a=b"aa")
    async with vouched(origin) as one:
        assert await one.keys() == ["b", "a"]
        await fetched(one, "a")
        assert readings(origin) == 1
        monkeypatch.setattr(checksums, "AGAIN", 0.0)
        offer(origin, c=b"cc")
        assert await one.keys() == ["c"]
        origin.remove("SHA256SUMS")
        with pytest.raises(Missing, match="s/SHA256SUMS"):
            await one.keys()


@on_both_loops
async def test_empty_where_bytes_are_expected_is_corrupt(origin: Origin) -> None:
    """C-37: an empty answer with status 200; a shard that is empty by the manifest is a shard."""
    offer(origin, full=content.data("full", 5_000_000), empty=b"")
    origin["full"].replace(data=b"")
    async with vouched(origin) as one:
        with pytest.raises(Corrupt, match="sha256 is e3b0c442"):
            await fetched(one, "full")
        assert await fetched(one, "empty") == b""


@on_both_loops
async def test_a_manifest_that_is_missing_makes_no_shard_missing(origin: Origin) -> None:
    origin.put("a", data=b"aa")
    async with vouched(origin) as one:
        with pytest.raises(OriginRefused, match=r"s/a: its manifest: s/SHA256SUMS"):
            await fetched(one, "a")
        with pytest.raises(Missing):
            await fetched(one, "SHA256SUMS")
        offer(origin, a=b"aa")
        assert await fetched(one, "a") == b"aa", "no failure is remembered"


@on_both_loops
async def test_a_manifest_that_is_unavailable_leaves_the_shard_unavailable(origin: Origin) -> None:
    """And what the origin asks for by `Retry-After` is handed on."""
    offer(origin, a=b"aa")
    origin["SHA256SUMS"].statuses = [busy(3), Status(403)]
    async with vouched(origin) as one:
        with pytest.raises(OriginUnavailable, match=r"s/a: its manifest: s/SHA256SUMS") as error:
            await fetched(one, "a")
        assert error.value.retry_after == 3
        with pytest.raises(OriginRefused, match="403"):
            await fetched(one, "a")
        assert await fetched(one, "a") == b"aa"


@on_both_loops
async def test_a_manifest_that_is_cut_or_none_at_all(origin: Origin) -> None:
    offer(origin, a=b"aa")
    origin["SHA256SUMS"].cut = [20]
    async with vouched(origin) as one:
        with pytest.raises(OriginUnavailable, match="its manifest"):
            await fetched(one, "a")
        origin.put("SHA256SUMS", data=b"<html>Please log in</html>")
        with pytest.raises(Corrupt, match=r"s/a: its manifest: s/SHA256SUMS: line 1 is not that of a checksum"):
            await fetched(one, "a")
        offer(origin, a=b"aa")
        assert await fetched(one, "a") == b"aa"


@on_both_loops
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_manifest_that_is_too_large(origin: Origin, monkeypatch: pytest.MonkeyPatch, framing: str) -> None:
    monkeypatch.setattr(checksums, "MOST", 100_000)
    origin.put("SHA256SUMS", 5_000_000, framing=framing)
    async with vouched(origin) as one:
        with pytest.raises(OriginRefused, match="a manifest may have 100000 bytes at most"):
            await fetched(one, "a")


@on_both_loops
async def test_a_manifest_in_a_folder_of_the_source(origin: Origin) -> None:
    origin.put("train/a", data=b"aa")
    origin.put("train/sums", data=line("a", b"aa"))
    async with vouched(origin, "train/sums") as one:
        assert await fetched(one, "train/a") == b"aa"
