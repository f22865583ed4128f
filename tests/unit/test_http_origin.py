"""The HTTP origin beyond the suite: request lines, redirects, secrets, content codings, Retry-After, limits, words."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import socket
import threading
import time
import zlib
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read
from cachedaemon.errors import CacheDaemonError, Cut, Missing, OriginRefused, OriginUnavailable, Overloaded
from cachedaemon.origins.http import HttpOrigin
from cachedaemon.origins.refusals import BELIEVABLE, LONGEST_WAIT, retry_after
from tests.contract.origins.places import certificates
from tests.fakes import content
from tests.fakes.origin import Origin, Status

pytestmark = pytest.mark.asyncio

SIZE = 300_000
DATA = content.data("k", SIZE)


async def failure(origin: HttpOrigin | object, key: str) -> CacheDaemonError:
    with pytest.raises(CacheDaemonError) as error:
        await read(origin, key)  # type: ignore[arg-type]
    return error.value


# ---- what goes out


@pytest.mark.parametrize(
    ("configured", "key", "target"),
    [
        ("foo%27bar/{key}?sig=a%2Fb%2Bc%3D", "a.bin", "/foo%27bar/a.bin?sig=a%2Fb%2Bc%3D"),
        ("%7Euser/~user/%41/", "a.bin", "/%7Euser/~user/%41/a.bin"),
        ("x/../y/./", "a.bin", "/x/../y/./a.bin"),
        ("a//b;c=d,e/", "k'(1)*.bin", "/a//b;c=d,e/k'(1)*.bin"),
        ("", "sp ace?#%.bin", "/sp%20ace%3F%23%25.bin"),
        ("get?file={key}&x=1", "a&x=2+3;y=4/b", "/get?file=a%26x%3D2%2B3%3By%3D4/b&x=1"),
        ("get?x=%2b&file=", "a b", "/get?x=%2b&file=a%20b"),
    ],
)
async def test_the_url_goes_out_byte_for_byte(configured: str, key: str, target: str) -> None:
    """C-10; of the key only what its place cannot carry is encoded."""
    with Origin() as server:
        server.default(lambda name: None)
        async with opened(server.url + configured) as origin:
            await failure(origin, key)
        assert [request.line for request in server.log] == [f"GET {target} HTTP/1.1"]


async def test_one_get_and_no_probe() -> None:
    """C-12: HEAD may be refused, hang or lie; nobody asks it."""
    with Origin() as server:
        for head in (Status(403), Status(405), Status(501), "hang"):
            shard = server.put("k.bin", data=DATA, head=head, head_length=0)
            async with opened(server.url) as origin:
                assert await read(origin, "k.bin") == DATA
            assert (shard.gets, shard.heads) == (1, 0)
        assert server.log[-1].headers["accept-encoding"] == "identity"
        assert server.log[-1].headers["user-agent"] == "cachedaemon"


async def test_configured_headers_go_out_and_a_secret_is_read_again(folder: Path) -> None:
    secret = folder / "token"
    secret.write_text("Bearer one\n")
    with Origin() as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url, {"headers": {"Authorization": f"file:{secret}", "X-Set": "7"}}) as origin:
            await read(origin, "k.bin")
            secret.write_text("Bearer two")
            await read(origin, "k.bin")
            secret.write_text("")
            assert isinstance(said := await failure(origin, "k.bin"), OriginUnavailable), "mended, it works again"
            assert "header" in str(said)
        assert [r.headers["authorization"] for r in server.log] == ["Bearer one", "Bearer two"]
        assert {r.headers["x-set"] for r in server.log} == {"7"}


async def test_no_secret_follows_a_redirect_to_another_host() -> None:
    with Origin() as server, Origin() as other:
        other.put("there.bin", data=DATA)
        server.put("k.bin", redirect=other.at("there.bin"))
        url = server.url.replace("//", "//user:p%40ss@")
        async with opened(url, {"headers": {"X-Token": "secret"}}) as origin:
            assert await read(origin, "k.bin") == DATA
        assert server.log[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
        assert server.log[0].headers["x-token"] == "secret"
        assert not {"authorization", "x-token"} & set(other.log[0].headers)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_secrets_follow_a_redirect_on_the_same_host(code: int) -> None:
    with Origin() as server:
        server.put("there.bin", data=DATA)
        for location in ("/there.bin", "there.bin", server.at("there.bin")):
            server.put("k.bin", redirect=location, redirect_code=code)
            async with opened(server.url.replace("//", "//me:pw@"), {"headers": {"X-Token": "secret"}}) as origin:
                assert await read(origin, "k.bin") == DATA
            assert server.log[-1].headers["x-token"] == "secret"
            assert server.log[-1].headers["authorization"].startswith("Basic ")


async def test_redirects_without_end_are_refused() -> None:
    with Origin() as server:
        server.put("k.bin", redirect="/k.bin")
        async with opened(server.url) as origin:
            assert isinstance(await failure(origin, "k.bin"), OriginRefused)
        assert len(server.log) == 11


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://", "http://[", "gopher:"])
async def test_a_redirect_to_nowhere_is_refused(location: str) -> None:
    with Origin() as server:
        server.put("k.bin", redirect=location)
        async with opened(server.url) as origin:
            assert isinstance(await failure(origin, "k.bin"), OriginRefused)


# ---- what comes in


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, Missing) for code in (404, 410)),
        *((code, OriginRefused) for code in (400, 401, 402, 403, 405, 406, 407, 411, 412, 414, 416, 451)),
        *((code, OriginUnavailable) for code in (204, 206, 300, 304, 408, 425, 500, 502, 504, 507, 599)),
        *((code, Overloaded) for code in (429, 503)),
    ],
)
async def test_answers_are_told_apart(code: int, kind: type[CacheDaemonError]) -> None:
    with Origin() as server:
        server.put("k.bin", always=Status(code, {}, b""))
        async with opened(server.url) as origin:
            said = await failure(origin, "k.bin")
        assert type(said) is kind
        assert str(said).startswith(f"s/k.bin: the {'proxy' if code == 407 else 'origin'} answered {code}")


async def test_length_says_got_and_expected() -> None:
    """C-01: the body is shorter than was announced."""
    with Origin() as server:
        server.put("k.bin", data=DATA, cut=[1000])
        async with opened(server.url) as origin:
            assert "got 1000 of 300000 bytes" in str(await failure(origin, "k.bin"))


async def test_chunks_without_the_final_one_are_a_cut() -> None:
    with Origin() as server:
        server.put("k.bin", data=DATA, framing="unfinished")
        async with opened(server.url) as origin:
            assert isinstance(await failure(origin, "k.bin"), Cut)
            server.put("k.bin", data=DATA, framing="chunked")
            assert await read(origin, "k.bin") == DATA
            server.put("k.bin", data=DATA, framing="close")
            assert await read(origin, "k.bin") == DATA


async def test_a_length_beside_chunks_means_nothing() -> None:
    """RFC 9112, 6.3: some servers and proxies send both; the parser refuses, or the length is ignored, never a cut body."""
    with Origin() as server:
        server.put("k.bin", data=DATA, framing="chunked", extra={"Content-Length": "5"})
        async with opened(server.url) as origin:
            try:
                assert await read(origin, "k.bin") == DATA
            except OriginUnavailable as cause:
                assert "s/k.bin" in str(cause)  # noqa: PT017 - either is right


@pytest.mark.parametrize("ending", ["half-close", "reset", "drop"])
async def test_all_bytes_then_an_odd_end_is_a_success_with_one_get(ending: str) -> None:
    """C-01, C-02: what was announced has come; how the connection ends is of no interest."""
    with Origin() as server:
        data = content.data("k", 5 << 20)
        shard = server.put("k.bin", data=data, ending=ending)
        async with opened(server.url) as origin:
            for _ in range(5):
                got = bytearray()
                async with origin.open("k.bin") as stream:
                    async for pieces in stream.pieces():
                        got += b"".join(pieces)
                        await asyncio.sleep(0.01)  # a slow disk
                assert got == data
        assert shard.gets == 5


async def test_connections_that_close_right_after_a_reply_are_no_failure() -> None:
    """C-15, reuse race: a request on a connection that is being closed is sent again, unseen."""
    with Origin() as server:
        server.default(lambda name: None)
        for number in range(100):
            server.put(f"{number}.bin", data=b"x" * 100, ending="drop")
        async with opened(server.url) as origin:
            for number in range(100):
                assert await read(origin, f"{number}.bin") == b"x" * 100


# ---- content codings


def several(data: bytes) -> bytes:
    """Gzip of several members, as bgzip and pigz make it."""
    return b"".join(gzip.compress(data[at : at + 70_000], 1) for at in range(0, len(data), 70_000))


def coded(server: Origin, name: str, body: bytes, coding: str) -> None:
    server.put(name, data=body, extra={"Content-Encoding": coding})


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(DATA)),
        ("GZIP", gzip.compress(DATA)),
        ("x-gzip", gzip.compress(DATA)),
        ("gzip", several(DATA)),
        ("gzip", gzip.compress(DATA) + gzip.compress(b"")),
        ("gzip", gzip.compress(DATA) + b"\0" * 512),
        ("deflate", zlib.compress(DATA)),
        ("identity", DATA),
        ("", DATA),
    ],
)
async def test_a_coding_that_nobody_asked_for_is_taken_off_wholly(coding: str, body: bytes) -> None:
    """C-08: never cut at the coded length; all members."""
    with Origin() as server:
        coded(server, "k.tar", body, coding)
        async with opened(server.url) as origin:
            assert await read(origin, "k.tar") == DATA


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 5000, -9, -8, -1])
@pytest.mark.parametrize("body", [gzip.compress(DATA), several(DATA)])
async def test_a_coded_body_that_ends_early_is_a_cut(body: bytes, cut: int) -> None:
    """The server's length is that of the cut body, so that only the coding can tell."""
    with Origin() as server:
        coded(server, "k.tar", body[:cut], "gzip")
        async with opened(server.url) as origin:
            assert isinstance(said := await failure(origin, "k.tar"), Cut)
            assert "gzip coding of the body ends early" in str(said)


@pytest.mark.parametrize("body", [b"not gzip at all", gzip.compress(DATA)[:-1] + b"?", gzip.compress(DATA) + b"junk"])
async def test_a_damaged_coding_is_an_error(body: bytes) -> None:
    with Origin() as server:
        coded(server, "k.tar", body, "gzip")
        async with opened(server.url) as origin:
            assert "damaged" in str(await failure(origin, "k.tar"))


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "aes128gcm"])
async def test_a_coding_that_cannot_be_taken_off_is_refused(coding: str) -> None:
    with Origin() as server:
        coded(server, "k.tar", DATA, coding)
        async with opened(server.url) as origin:
            assert isinstance(said := await failure(origin, "k.tar"), OriginRefused)
            assert repr(coding) in str(said)


@pytest.mark.parametrize("name", ["k.tar.gz", "k.tgz", "K.TAR.GZ"])
async def test_a_name_that_says_gzip_gets_gzip(name: str) -> None:
    """Servers mark a stored .gz file by its suffix; one that coded it once more meant the file inside."""
    stored = several(DATA)
    with Origin() as server:
        async with opened(server.url) as origin:
            coded(server, name, stored, "gzip")
            assert await read(origin, name) == stored
            coded(server, name, gzip.compress(stored), "gzip")
            assert await read(origin, name) == stored


async def test_a_coded_bomb_comes_in_small_pieces() -> None:
    with Origin() as server:
        coded(server, "k.tar", gzip.compress(bytes(200 << 20), 9), "gzip")
        async with opened(server.url) as origin, origin.open("k.tar") as stream:
            sizes = [sum(map(len, pieces)) async for pieces in stream.pieces()]
        assert sum(sizes) == 200 << 20
        assert max(sizes) <= 1 << 20


# ---- limits


async def test_a_black_hole_ends_at_the_connect_limit() -> None:
    with Origin() as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url, connect_timeout="500ms", stall_timeout="60s") as origin:
            server.black_hole()
            async with asyncio.timeout(20):
                said = await failure(origin, "k.bin")
            assert isinstance(said, OriginUnavailable)
            assert "in time" in str(said)
            server.up()
            assert await read(origin, "k.bin") == DATA


async def test_a_name_server_that_hangs_ends_at_the_connect_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are the source's own: another source looks names up meanwhile."""
    real, let_go = socket.getaddrinfo, threading.Event()

    def lookup(host: str, *args: object, **how: object) -> object:
        if host == "hangs.invalid":
            let_go.wait(30)
        return real(host, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with Origin() as server:
        server.put("k.bin", data=DATA)
        async with (
            opened("http://hangs.invalid/", connect_timeout="300ms") as dead,
            opened(server.url.replace("127.0.0.1", "localhost")) as origin,
        ):
            tasks = [asyncio.create_task(failure(dead, f"{n}.bin")) for n in range(20)]
            async with asyncio.timeout(20):
                assert await read(origin, "k.bin") == DATA
                for said in await asyncio.gather(*tasks):
                    assert isinstance(said, OriginUnavailable)
            let_go.set()


async def test_messages_hold_no_url(folder: Path) -> None:
    """Whatever fails: source, key and cause, and neither query, user nor password."""
    _, tls = certificates(folder)
    with Origin() as server, Origin(tls=tls) as secure:
        server.put("redirected.bin", redirect="http://u:SECRET@127.0.0.1:1/x?sig=SECRET")
        server.put("cut.bin", data=DATA, cut_always=10)
        server.put("refused.bin", always=Status(403))
        server.put("odd.bin", redirect="http://[SECRET")
        where = f"user:SECRET@127.0.0.1:{server.port}/{{key}}?sig=SECRET"
        tls_where = f"user:SECRET@127.0.0.1:{secure.port}/{{key}}?sig=SECRET"
        urls = [f"http://{where}"] * 5 + [f"https://{where}", f"https://{tls_where}", "http://SECRET.invalid/{key}"]
        keys = ["redirected.bin", "cut.bin", "refused.bin", "odd.bin", "none.bin", "plain.bin", "tls.bin", "name.bin"]
        for url, key in zip(urls, keys, strict=True):
            async with opened(url, connect_timeout="1s") as origin:
                said = str(await failure(origin, key))
            assert said.startswith(f"s/{key}: "), said
            assert "SECRET" not in said, said
            assert "://" not in said, said


async def test_a_certificate_that_nobody_vouches_for_is_refused(folder: Path) -> None:
    _, tls = certificates(folder)
    with Origin(tls=tls) as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url) as origin:
            assert isinstance(said := await failure(origin, "k.bin"), OriginRefused)
            assert "certificate" in str(said)
        async with opened(server.url, {"insecure": True}) as origin:
            assert await read(origin, "k.bin") == DATA


# ---- Retry-After


def _date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_retry_after_in_all_its_forms() -> None:
    """C-15: odd values mean the usual pause, long ones are cut to a bearable length."""
    assert retry_after("3") == retry_after(" 3 ") == 3
    assert retry_after("0") == 0
    assert 8 < (retry_after(_date(10)) or 0) <= 10
    assert retry_after(_date(-100)) == 0
    assert retry_after("Sunday, 06-Nov-94 08:49:37 GMT") == 0
    assert retry_after("600") == LONGEST_WAIT
    assert retry_after(_date(3600)) == LONGEST_WAIT
    assert BELIEVABLE < 10**9
    for odd in ("soon", "", "-5", "3.5", "1e3", "10" * 200, "1000000000", "٣", "Fri, 99 Foo 2099", _date(10**9)):
        assert retry_after(odd) is None, odd
    assert retry_after(None) is None
