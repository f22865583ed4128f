"""Parts of a version over HTTP: when there are any, what is asked for, and that nothing else is taken for one."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest

from cachedaemon.conformance import opened, read_part, stream_of
from cachedaemon.errors import CacheDaemonError, Changed, Missing, NoParts, OriginRefused, Overloaded
from cachedaemon.model import Validators
from cachedaemon.origins import Piece
from tests.fakes import content
from tests.fakes.answers import answer, answering
from tests.fakes.origin import Origin, Status, busy

pytestmark = pytest.mark.asyncio

SIZE = 300_000
DATA = content.data("k", SIZE)
WHOLE = answer('200\nETag: "1"', DATA)
DATED = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"


def part(head: str, body: bytes = DATA[10:20]) -> bytes:
    return answer(f"206\n{head}", body)


# ---- when there are any


@pytest.mark.parametrize(
    ("head", "has"),
    [
        ('ETag: "1"', True),
        ('ETag: ""', True),
        ('ETag: "ü"', True),
        ('ETag: "1"\nAccept-Ranges: bytes', True),
        ('ETag: "1"\nAccept-Ranges: none', False),
        ('ETag: "1"\nAccept-Ranges: None ', False),
        ('ETag: W/"1"', False),
        ("ETag: 1", False),
        ('ETag: "1', False),
        ('ETag: "a"b"', False),
        ("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT", False),
        ("", False),
    ],
)
async def test_only_a_strong_validator_vouches_for_parts(head: str, has: bool) -> None:  # noqa: FBT001 - a table
    async with answering(answer(f"200\n{head}", DATA)) as server, opened(server.url) as origin:
        async with stream_of(origin, "k.bin") as stream:
            assert stream.has_parts is has
            if not has:
                with pytest.raises(NoParts):
                    await read_part(stream, 10, 20)
        assert all("range" not in request.lower() for request in server.requests) or has


async def test_what_is_coded_or_has_no_length_has_no_parts() -> None:
    with Origin() as server:
        server.put("coded.tar", data=gzip.compress(DATA), extra={"Content-Encoding": "gzip"})
        server.put("chunked.bin", data=DATA, framing="chunked")
        async with opened(server.url) as origin:
            for key in ("coded.tar", "chunked.bin"):
                async with stream_of(origin, key) as stream:
                    assert (stream.size, stream.has_parts) == (None, False)


# ---- what is asked for


async def test_a_part_is_asked_for_by_its_version() -> None:
    with Origin() as server:
        shard = server.put("k.bin", data=DATA, etag='"one"')
        async with opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
            assert await read_part(stream, 0, 1) == DATA[:1]
            assert await read_part(stream, 5, SIZE) == DATA[5:]
        assert shard.seen_ranges == [None, "bytes=0-0", f"bytes=5-{SIZE - 1}"]
        assert [r.headers.get("if-range") for r in shard.requests] == [None, '"one"', '"one"']


async def test_a_part_starts_at_the_configured_url_with_its_secrets() -> None:
    """What a redirect led to may be signed for a moment; no secret follows there, for a part neither."""
    with Origin() as server, Origin() as other:
        other.put("first", data=DATA, etag='"1"')
        other.put("second", data=DATA, etag='"1"')
        server.put("k.bin", redirect=other.url + "first")
        token = {"headers": {"X-Token": "secret"}}
        async with opened(server.url, token) as origin, stream_of(origin, "k.bin") as stream:
            server["k.bin"].redirect = other.url + "second"
            assert await read_part(stream, 5, 9) == DATA[5:9]
        assert [request.headers["x-token"] for request in server.log] == ["secret"] * 2
        assert [request.target for request in other.log] == ["/first", "/second"]
        assert not any("x-token" in request.headers for request in other.log)
        assert other.log[1].headers["range"] == "bytes=5-8"


# ---- what comes instead


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (WHOLE, NoParts),
        (answer('200\nETag: "2"', DATA), Changed),
        (answer("200", DATA), Changed),
        (answer("412"), Changed),
        (answer(f"416\nContent-Range: bytes */{SIZE}"), Changed),
        (part(f'ETag: "2"\nContent-Range: bytes 10-19/{SIZE}'), Changed),
        (part(f'ETag: W/"1"\nContent-Range: bytes 10-19/{SIZE}'), Changed),
        (part(f"Content-Range: bytes 10-19/{SIZE}"), NoParts),
        (part('ETag: "1"'), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 9-18/{SIZE}'), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-18/{SIZE}', DATA[10:19]), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-20/{SIZE}', DATA[10:21]), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-19/{SIZE + 1}'), NoParts),
        (part('ETag: "1"\nContent-Range: bytes 10-19/*'), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-19/{"9" * 5000}'), NoParts),
        (part(f'ETag: "1"\nContent-Range: items 10-19/{SIZE}'), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-19/{SIZE}\nContent-Encoding: gzip'), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-19/{SIZE}', DATA[10:21]), NoParts),
        (part(f'ETag: "1"\nContent-Range: bytes 10-19/{SIZE}', DATA[10:19]), NoParts),
        (part('ETag: "1"\nContent-Type: multipart/byteranges; boundary=x', b"--x--"), NoParts),
        (answer("404"), Missing),
        (answer("403"), OriginRefused),
        (answer("429"), Overloaded),
    ],
)
async def test_nothing_else_is_taken_for_the_part(answered: bytes, kind: type[CacheDaemonError]) -> None:
    """C-03, C-04: told by the answer's head, before a byte is handed on."""
    async with answering(WHOLE, answered) as server, opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
        with pytest.raises(CacheDaemonError) as error:
            async with stream.part(10, 20):
                pass
    assert type(error.value) is kind
    assert "s/k.bin" in str(error.value)


async def take(lists: AsyncIterator[list[Piece]], got: bytearray) -> None:
    """Add to `got` what comes, as far as it comes."""
    async for pieces in lists:
        got += b"".join(pieces)


async def test_more_bytes_than_asked_for_are_never_handed_on() -> None:
    """In chunks only the end tells."""
    head = f'206\nETag: "1"\nContent-Range: bytes 10-19/{SIZE}\nTransfer-Encoding: chunked'
    chunked = answer(head).replace(b"Content-Length: 0\r\n", b"")
    got = bytearray()
    answers = (WHOLE, chunked + b"a\r\n" + DATA[10:20] + b"\r\n1\r\nx\r\n0\r\n\r\n")
    async with (
        answering(*answers) as server,
        opened(server.url) as origin,
        stream_of(origin, "k.bin") as stream,
        stream.part(10, 20) as lists,
    ):
        with pytest.raises(NoParts):
            await take(lists, got)
    assert len(got) <= 10


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (answer(f'200\nETag: "2"\n{DATED}', DATA), NoParts),
        (answer(f'200\nETag: "2"\n{DATED}', DATA[1:]), Changed),
        (answer(f'200\nETag: "2"\n{DATED.replace("37", "38")}', DATA), Changed),
        (part(f'ETag: "2"\n{DATED}\nContent-Range: bytes 10-19/{SIZE}'), Changed),
    ],
)
async def test_servers_of_a_farm_that_name_one_version_differently(
    answered: bytes, kind: type[CacheDaemonError]
) -> None:
    """It comes whole from one of them; as `Changed` it would begin again and again."""
    whole = answer(f'200\nETag: "1"\n{DATED}', DATA)
    async with answering(whole, answered) as server, opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
        with pytest.raises(CacheDaemonError) as error:
            await read_part(stream, 10, 20)
    assert type(error.value) is kind


async def test_servers_that_lie_about_ranges() -> None:
    """C-03: ranges advertised and not given, given from elsewhere, or without saying which."""
    with Origin() as server:
        for ranges in ("no", "lie", "shift", "bare"):
            server.put("k.bin", data=DATA)
            async with opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
                server["k.bin"].ranges = ranges
                with pytest.raises(NoParts):
                    await read_part(stream, 1000, 2000)


@pytest.mark.parametrize("if_range", ["strict", "ignore"])
@pytest.mark.parametrize("size", [SIZE, 1000])
async def test_a_part_of_what_was_replaced_is_a_change(if_range: str, size: int) -> None:
    """C-02, C-04: by another version of the same size, or by a smaller one (416); also where `If-Range` is ignored."""
    with Origin() as server:
        shard = server.put("k.bin", data=DATA, if_range=if_range)
        async with opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
            shard.replace(seed=2, size=size, etag='"2"')
            with pytest.raises(Changed):
                await read_part(stream, 2000, 3000)


# ---- what is known already


async def test_a_version_with_an_etag_is_asked_for_by_it() -> None:
    with Origin() as server:
        shard = server.put("k.bin", data=DATA, etag='"one"', modified="Sun, 06 Nov 1994 08:49:37 GMT")
        async with opened(server.url) as origin:
            async with stream_of(origin, "k.bin") as stream:
                known = stream.validators
            async with origin.open("k.bin", known) as still:
                assert still is None
            assert shard.requests[-1].headers["if-none-match"] == '"one"'
            assert "if-modified-since" not in shard.requests[-1].headers
        assert shard.sent < 2 * SIZE


async def test_a_date_is_compared_and_not_asked_with() -> None:
    """C-06: `If-Modified-Since` orders versions, and one that is put back is older than the one that is known."""
    new, old = "Mon, 07 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT"
    with Origin() as server:
        shard = server.put("k.bin", data=DATA, etag=None, modified=new)
        async with opened(server.url) as origin:
            known = Validators(modified=new)
            async with origin.open("k.bin", known) as still:
                assert still is None
            shard.modified = old
            async with origin.open("k.bin", known) as other:
                assert other is not None
                assert other.validators == Validators(modified=old)
        assert not any(name.startswith("if-") for request in server.log for name in request.headers)


async def test_servers_that_do_not_know_conditions_are_compared_with() -> None:
    """A 200 with the validators that are known; and any difference in them is another version."""
    async with answering(WHOLE) as server, opened(server.url) as origin:
        async with origin.open("k.bin", Validators(etag='"1"')) as still:
            assert still is None
        for known in (Validators(etag='W/"1"'), Validators(etag='"1"', modified="x"), Validators(etag='"0"')):
            async with origin.open("k.bin", known) as other:
                assert other is not None


async def test_a_tag_that_is_no_text_is_compared_only() -> None:
    """Bytes that are not UTF-8 cannot be sent back."""
    whole = WHOLE.replace(b'"1"', b'"\xff"')
    async with answering(whole) as server, opened(server.url) as origin:
        async with stream_of(origin, "k.bin") as stream:
            assert not stream.has_parts
            known = stream.validators
        assert known.etag
        async with origin.open("k.bin", known) as still:
            assert still is None
        assert not any("if-" in request.lower() for request in server.requests)


async def test_what_is_unchanged_for_nobody_who_asked_is_a_failure() -> None:
    async with answering(answer("304")) as server, opened(server.url) as origin:
        for known in (None, Validators(), Validators(modified="x")):
            with pytest.raises(CacheDaemonError, match="304"):
                async with origin.open("k.bin", known):
                    pass


async def test_failures_of_a_conditional_request_are_failures() -> None:
    with Origin() as server:
        async with opened(server.url) as origin:
            for instead, kind in ((Status(412), OriginRefused), (busy(), Overloaded), (Status(410), Missing)):
                server.put("k.bin", always=instead)
                with pytest.raises(kind):
                    async with origin.open("k.bin", Validators(etag='"1"')):
                        pass
