"""Sources of S3: moto's server, behind a proxy that can misbehave, and s3rver, which knows no conditions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.errors import (
    BadRequest,
    CacheDaemonError,
    Changed,
    Missing,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.model import Validators
from tests.contract.origins.places import certificates
from tests.fakes import content, stores
from tests.fakes.between import Between, answer
from tests.fakes.daemon import Daemon
from tests.fakes.stores import Running

SIZE = 3 << 20


@pytest.fixture
def proxy(moto: Running) -> Iterator[Between]:
    with Between(moto.url) as made:
        yield made


def settings(url: str, **more: object) -> dict[str, object]:
    return {**stores.SETTINGS["s3"], "endpoint": url, **more}


async def failure(proxy: Between, key: str, url: str = "s3://shards/f/", **more: Any) -> CacheDaemonError:
    """What reading this ends with; it shows no URL and no secret."""
    async with opened(url, settings(proxy.url, **more), stall_timeout="1s") as origin:
        with pytest.raises(CacheDaemonError) as error:
            await read(origin, key)
    said = str(error.value)
    assert key in said
    assert "://" not in said
    assert stores.SECRET not in said
    assert error.value.__cause__ is None, "a traceback would show the library's dump, with its URLs"
    return error.value


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (404, "NoSuchKey", Missing, "404 NoSuchKey"),
        (404, "NoSuchBucket", OriginRefused, "no such bucket"),
        (403, "AccessDenied", OriginRefused, "no right to read it"),
        (403, "InvalidObjectState", OriginRefused, "403 InvalidObjectState"),
        (403, "RequestTimeTooSkewed", OriginRefused, "the clock of this machine is wrong"),
        (403, "", OriginRefused, "403"),
        (400, "InvalidRequest", OriginRefused, "400 InvalidRequest"),
        (301, "PermanentRedirect", OriginRefused, "another region"),
        (429, "", Overloaded, "429"),
        (503, "SlowDown", Overloaded, "503 SlowDown"),
        (400, "RequestTimeout", Overloaded, "400 RequestTimeout"),
        (500, "InternalError", OriginUnavailable, "500 InternalError"),
        (502, "", OriginUnavailable, "502"),
    ],
)
async def test_refusals_are_told_apart(
    proxy: Between, status: int, code: str, kind: type[CacheDaemonError], says: str
) -> None:
    proxy.rule("k", answer=answer(status, code))
    cause = await failure(proxy, "k")
    assert type(cause) is kind
    assert says in str(cause)
    assert len(proxy.asked("k")) == 1, "the library's own retries are off"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        (("Last-Modified: yesterday",), OriginRefused),
        (("Last-Modified: Fri, 31 Dec 99999 23:59:59 GMT",), OriginRefused),
        (("Last-Modified: Fri, 31 Dec 9999 23:59:59 GMT",), None),
        (("ETag: \x80",), OriginRefused),
    ],
)
async def test_a_head_that_says_what_cannot_be(
    proxy: Between, headers: tuple[str, ...], kind: type[CacheDaemonError] | None
) -> None:
    proxy.rule("k", answer=answer(200, "", *headers))
    if kind is not None:
        assert type(await failure(proxy, "k")) is kind
        return
    async with opened("s3://shards/f/", settings(proxy.url)) as origin:
        assert await read(origin, "k") == b""


@pytest.mark.asyncio
async def test_a_refusal_in_words_that_are_no_text(proxy: Between) -> None:
    proxy.rule("k", answer=b"HTTP/1.1 403 Status\r\nContent-Length: 1\r\n\r\n\xff")
    assert "words are no text" in str(await failure(proxy, "k"))


@pytest.mark.asyncio
async def test_a_panic_of_the_library_is_a_refusal(proxy: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "no region")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    async with opened("s3://shards/", {"anonymous": True}) as origin:
        with pytest.raises(OriginRefused, match="cannot be asked"):
            await read(origin, "k")


@pytest.mark.asyncio
async def test_what_a_key_says_is_not_taken_for_the_stores_answer(proxy: Between) -> None:
    key = 'status: 404, <Code>ExpiredToken<Code> "kind: Timeout,'
    proxy.rule(key, answer=answer(500))
    assert type(await failure(proxy, key)) is OriginUnavailable
    assert len(proxy.asked(key)) == 1


@pytest.mark.asyncio
async def test_a_bucket_that_is_not_there_is_a_fault_of_the_configuration(proxy: Between) -> None:
    cause = await failure(proxy, "k", url="s3://none/")
    assert type(cause) is OriginRefused
    assert "no such bucket" in str(cause)


@pytest.mark.asyncio
async def test_no_connection_and_silence(proxy: Between) -> None:
    """C-13: an outage is never missing; silence shows that the store is asked for too much."""
    proxy.freeze()
    assert type(await failure(proxy, "k")) is Overloaded
    proxy.down()
    cause = await failure(proxy, "k")
    assert type(cause) is OriginUnavailable
    assert "Connection refused" in str(cause)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_librarys_own_limit_of_a_whole_transfer_is_off(moto: Running, proxy: Between) -> None:
    """C-13: it is 30 s."""
    data = content.data("k", 36_000)
    moto.put("f/slow", data)
    proxy.rule("slow", bps=1000)
    async with opened("s3://shards/f/", settings(proxy.url), stall_timeout="2s") as origin:
        began = asyncio.get_running_loop().time()
        assert await read(origin, "slow") == data
        assert asyncio.get_running_loop().time() - began > 31


@pytest.mark.asyncio
async def test_an_answer_that_is_not_http(proxy: Between) -> None:
    proxy.rule("k", answer=b"\0rubbish\r\n\r\n")
    assert type(await failure(proxy, "k")) is OriginUnavailable


@pytest.mark.asyncio
async def test_a_known_version_costs_no_body(moto: Running, proxy: Between) -> None:
    moto.put("v/k", b"one")
    async with opened("s3://shards/v/", settings(proxy.url)) as origin:
        async with stream_of(origin, "k") as stream:
            known = stream.validators
        assert known.etag
        assert known.modified
        async with origin.open("k", known) as same:
            assert same is None
        assert proxy.asked("k")[-1].headers["if-none-match"] == known.etag
        async with origin.open("k", Validators(modified=known.modified)) as other:
            assert other is not None, "an ETag less is a difference"
        moto.put("v/k", b"two")
        async with origin.open("k", known) as other:
            assert other is not None


@pytest.mark.asyncio
async def test_a_part_is_asked_for_on_a_condition(moto: Running, proxy: Between) -> None:
    data = content.data("k", SIZE)
    moto.put("p/k", data)
    async with opened("s3://shards/p/", settings(proxy.url)) as origin, stream_of(origin, "k") as stream:
        assert await read_part(stream, 5, SIZE - 7) == data[5 : SIZE - 7]
        last = proxy.asked("k")[-1].headers
        assert last["range"] == f"bytes=5-{SIZE - 8}"
        assert last["if-match"] == stream.validators.etag
        moto.put("p/k", content.data("other", SIZE))
        with pytest.raises(Changed):
            await read_part(stream, 0, 100)
        moto.put("p/k", b"short")
        with pytest.raises(Changed):
            await read_part(stream, SIZE - 100, SIZE)
        moto.delete("p/k")
        with pytest.raises(Missing):
            await read_part(stream, 0, 100)


@pytest.mark.asyncio
async def test_a_server_that_ignores_conditions_mixes_nothing(s3rver: Running) -> None:
    data = content.data("k", SIZE)
    s3rver.put("p/k", data)
    async with opened("s3://shards/p/", settings(s3rver.url)) as origin, stream_of(origin, "k") as stream:
        assert await read_part(stream, 1, 100) == data[1:100]
        s3rver.put("p/k", content.data("other", SIZE))
        with pytest.raises(Changed):
            await read_part(stream, 1, 100)


@pytest.mark.asyncio
async def test_listing_takes_all_pages_and_no_folders(moto: Running, proxy: Between) -> None:
    """The empty objects that consoles make for folders are no shards; others are."""
    names = [f"train-{number:04d}" for number in range(2 * stores.PAGE + 1)]
    for name in [*names, "empty", "train-x/1", "tail-1"]:
        moto.put(f"l/{name}", b"" if name == "empty" else b"x")
    moto.make_folder("l/train-x")
    async with opened("s3://shards/l/", settings(proxy.url)) as origin:
        assert await origin.keys() == sorted([*names, "empty", "train-x/1", "tail-1"])
    async with opened("s3://shards/l/train-", settings(proxy.url)) as origin:
        assert await origin.keys() == [*(name.removeprefix("train-") for name in names), "x/1"]
        assert await read(origin, "0007") == b"x"
    async with opened("s3://shards/l/train-{key}/1", settings(proxy.url)) as origin:
        assert await read(origin, "x") == b"x"
        with pytest.raises(BadRequest, match="cannot list"):
            await origin.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["/a", "a/", "a//b", "a\tb", "a\x7f"])
async def test_names_that_would_ask_for_another_object_are_refused(proxy: Between, key: str) -> None:
    async with opened("s3://shards/p/", settings(proxy.url)) as origin:
        with pytest.raises(BadRequest, match="makes an object's name that"):
            origin.check_key(key)
    async with opened("s3://shards/p/x-{key}-y", settings(proxy.url)) as origin:
        origin.check_key("a/")


@pytest.mark.asyncio
async def test_certificates(moto: Running, folder: Path) -> None:
    moto.put("t/k", b"data")
    authority, context = certificates(folder)
    with Between(moto.url, tls=context) as proxy:
        cause = await failure(proxy, "k", url="s3://shards/t/")
        assert type(cause) is OriginRefused
        assert "certificate is not trusted" in str(cause)
        for more in ({"ca": str(authority)}, {"insecure": True}):
            async with opened("s3://shards/t/", settings(proxy.url, **more)) as origin:
                assert await read(origin, "k") == b"data"


@pytest.mark.asyncio
async def test_a_proxy_is_gone_through(moto: Running, proxy: Between) -> None:
    moto.put("x/k", b"data")
    async with opened("s3://shards/x/", settings(moto.url, proxy=proxy.url)) as origin:
        assert await read(origin, "k") == b"data"
    assert proxy.asked("x/k")[0].target.startswith(moto.url)


@pytest.mark.asyncio
async def test_plain_http_is_never_a_surprise(moto: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint of the environment has TLS; without it secrets could go out to anybody."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    async with opened("s3://shards/x/", stores.SETTINGS["s3"]) as origin:
        with pytest.raises(OriginRefused, match=r"plain http:// is allowed in the setting endpoint only"):
            await read(origin, "k")


def test_a_shard_comes_through_the_daemon_and_goes_on_where_it_was_cut(moto: Running, proxy: Between) -> None:
    data = content.data("big", 5 * SIZE)
    moto.put("d/big.bin", data)
    moto.put("d/a b+%.bin", b"odd")
    with Daemon({"s": {"url": "s3://shards/d/", **settings(proxy.url)}}, http=True) as daemon:
        proxy.rule("big.bin", cut=2 * SIZE, times=1)
        assert daemon.path("s", "big.bin").read_bytes() == data
        second = proxy.asked("big.bin")[1].headers
        assert second["range"].startswith("bytes=")
        assert second["range"] != f"bytes=0-{5 * SIZE - 1}"
        assert second["if-match"]
        assert daemon.path("s", "a b+%.bin").read_bytes() == b"odd"
        assert daemon.acquire("s", "none.bin").code == "missing"
        assert daemon.cli("prefetch", "s", "--wait").status == 0
        assert "2 of 2 shards here" in daemon.cli("prefetch", "s", "--wait").out
        assert daemon.metric("origin_requests_total", source="s", status="206") == 1
        assert daemon.metric("origin_requests_total", source="s", status="404") == 1


def test_an_unused_library_is_not_loaded() -> None:
    """Idle memory: 5 MB and some threads that other sources do without."""
    code = "import sys, cachedaemon.daemon; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
