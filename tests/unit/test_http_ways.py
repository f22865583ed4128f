"""Ways to the server: proxies and what they want, TLS and whom it trusts, connections that end at the wrong moment."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cachedaemon.config import Fetch, Source
from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.errors import CacheDaemonError, Missing, OriginRefused, OriginUnavailable, Overloaded
from cachedaemon.metrics import Metrics
from cachedaemon.origins import Origin as AnyOrigin
from cachedaemon.origins import origin_of
from tests.contract.origins.places import certificates
from tests.fakes import content
from tests.fakes.origin import Origin, Status
from tests.fakes.proxy import proxying

pytestmark = pytest.mark.asyncio

DATA = content.data("k", 200_000)


async def failure(origin: AnyOrigin, key: str = "k.bin") -> CacheDaemonError:
    with pytest.raises(CacheDaemonError) as error:
        await read(origin, key)
    return error.value


# ---- proxies


async def test_a_proxy_is_asked_in_absolute_form_byte_for_byte() -> None:
    """C-10."""
    with Origin() as server:
        server.put("foo%27bar/k?sig=a%2Fb%2Bc%3D&x=+;'", data=DATA)
        async with (
            proxying() as proxy,
            opened(f"{server.url}foo%27bar/{{key}}?sig=a%2Fb%2Bc%3D&x=+;'", {"proxy": proxy.url}) as origin,
        ):
            assert await read(origin, "k") == DATA
            async with stream_of(origin, "k") as stream:
                assert await read_part(stream, 5, 9) == DATA[5:9]
        assert set(proxy.lines) == {f"GET {server.url}foo%27bar/k?sig=a%2Fb%2Bc%3D&x=+;' HTTP/1.1"}
        assert len(server.log) == len(proxy.lines) == 3


async def test_a_proxy_makes_a_way_to_a_server_with_tls(folder: Path) -> None:
    """Neither sees what is for the other."""
    authority, tls = certificates(folder)
    with Origin(tls=tls) as server:
        server.put("k.bin", data=DATA)
        async with proxying("me:p@ss/w:rd") as proxy:
            where = proxy.url.replace("//", "//me:p%40ss%2Fw%3Ard@")
            settings = {"proxy": where, "ca": str(authority), "headers": {"X-Token": "secret"}}
            async with opened(server.url, settings) as origin:
                assert await read(origin, "k.bin") == DATA
        assert proxy.lines == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
        assert "x-token" not in proxy.heads[0].lower()
        assert "proxy-authorization" not in server.log[0].headers
        assert server.log[0].headers["x-token"] == "secret"


async def test_a_proxy_with_tls_of_its_own(folder: Path) -> None:
    authority, tls = certificates(folder)
    with Origin() as server:
        server.put("k.bin", data=DATA)
        async with proxying("u:p", tls) as proxy:
            where = proxy.url.replace("http://", "https://u:p@")
            async with opened(server.url, {"proxy": where, "ca": str(authority)}) as origin:
                assert await read(origin, "k.bin") == DATA


@pytest.mark.parametrize("secure", [False, True])
async def test_what_a_proxy_refuses_is_told_of_the_proxy(folder: Path, secure: bool) -> None:  # noqa: FBT001 - a table
    """And never taken for what the origin says of an object, where that can be told."""
    authority, tls = certificates(folder)
    with Origin(tls=tls if secure else None) as server:
        server.put("k.bin", data=DATA)
        async with proxying("u:SECRET") as proxy:
            settings = {"ca": str(authority)}
            for user in ("", "u:WRONG@"):
                where = proxy.url.replace("//", f"//{user}")
                async with opened(server.url, settings | {"proxy": where}) as origin:
                    assert type(said := await failure(origin)) is OriginRefused
                assert str(said) == "s/k.bin: the proxy answered 407: user and password rejected, or none configured"
            where = proxy.url.replace("//", "//u:SECRET@")
            async with opened(server.url, settings | {"proxy": where}) as origin:
                for status, kind in (
                    (403, OriginRefused),
                    (502, OriginUnavailable),
                    (503, Overloaded),
                    (504, OriginUnavailable),
                ):
                    proxy.refuse = status
                    assert type(said := await failure(origin)) is kind
                    assert f"proxy answered {status}" in str(said) or f"proxy before it, answered {status}" in str(said)
                    assert "SECRET" not in str(said)
                proxy.refuse = 404
                assert type(await failure(origin)) is (OriginRefused if secure else Missing)
                proxy.refuse = None
                assert await read(origin, "k.bin") == DATA, "no failure is remembered"


async def test_a_proxy_that_is_not_there() -> None:
    with Origin() as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url, {"proxy": "http://u:SECRET@127.0.0.1:1"}) as origin:
            said = await failure(origin)
        assert type(said) is OriginUnavailable
        assert "the proxy cannot be reached: " in str(said)
        assert "SECRET" not in str(said)
        assert server.log == []


# ---- certificates


AUTHORITY = """
[ca]
default_ca = a
[a]
dir = .
certificate = ca.pem
private_key = ca.key
new_certs_dir = .
database = index
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = {names}
"""


def signed(folder: Path, names: str, first_day: int, last_day: int) -> ssl.SSLContext:
    """The context of a server whose certificate the folder's authority has signed for these names and days from now."""
    (folder / "index").write_text("")
    (folder / "ca.conf").write_text(AUTHORITY.format(names=names))
    now = dt.datetime.now(dt.UTC)
    days = ((now + dt.timedelta(days=day)).strftime("%Y%m%d%H%M%SZ") for day in (first_day, last_day))
    dates = [word for pair in zip(("-startdate", "-enddate"), days, strict=True) for word in pair]
    command = ["openssl", "ca", "-batch", "-config", "ca.conf", "-in", "req.pem", "-out", "odd.pem", "-notext", *dates]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "odd.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(
    ("names", "days", "trusted", "why"),
    [
        ("IP:127.0.0.1", (-1, 2), False, "certificate"),
        ("IP:127.0.0.1", (-3, -1), True, "certificate has expired"),
        ("IP:127.0.0.1", (1, 2), True, "certificate is not yet valid"),
        ("DNS:other.example", (-1, 2), True, "IP address mismatch"),
    ],
)
async def test_a_certificate_that_is_not_good_says_why(
    folder: Path,
    names: str,
    days: tuple[int, int],
    trusted: bool,  # noqa: FBT001 - a table
    why: str,
) -> None:
    """A final refusal: it does not get better by asking again."""
    authority, _ = certificates(folder)
    with Origin(tls=signed(folder, names, *days)) as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url.replace("//", "//u:SECRET@"), {"ca": str(authority)} if trusted else {}) as origin:
            said = await failure(origin)
        assert type(said) is OriginRefused
        assert str(said).startswith("s/k.bin: the origin's certificate is not trusted: ")
        assert why in str(said)
        async with opened(server.url, {"insecure": True}) as origin:
            assert await read(origin, "k.bin") == DATA


async def test_authorities_that_were_exchanged_are_read_again(folder: Path) -> None:
    """Once somebody's certificate is not trusted by those that were read."""
    (folder / "other").mkdir()
    (first, tls), (other, other_tls) = certificates(folder), certificates(folder / "other")
    with Origin(tls=tls) as server, Origin(tls=other_tls) as renewed:
        for one in (server, renewed):
            one.put("k.bin", data=DATA)
        server.put("moved.bin", redirect=renewed.at("k.bin"))
        async with opened(server.url, {"ca": str(first)}) as origin:
            assert await read(origin, "k.bin") == DATA
            assert type(await failure(origin, "moved.bin")) is OriginRefused
            first.write_text(first.read_text() + other.read_text())
            assert await read(origin, "moved.bin") == DATA
            assert len(renewed.log) == 1


async def test_certificates_that_have_gone_since_say_so(folder: Path) -> None:
    """And are read once they are back."""
    authority, tls = certificates(folder)
    with Origin(tls=tls) as server:
        server.put("k.bin", data=DATA)
        async with opened(server.url, {"ca": str(authority)}) as origin:
            authority.rename(folder / "away")
            said = await failure(origin)
            assert type(said) is OriginUnavailable
            assert "`ca` cannot be read" in str(said)
            (folder / "away").rename(authority)
            assert await read(origin, "k.bin") == DATA


async def test_a_server_without_tls_is_no_server_with_it() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, opened(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as origin:
        said = await failure(origin)
    assert isinstance(said, OriginUnavailable)
    assert "no TLS with the origin: " in str(said)


# ---- connections that end at the wrong moment


class Fickle:
    """Answers the first request of each connection, and closes it without a word when a second one comes."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.tasks: set[object] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await self.hold.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()


@contextlib.asynccontextmanager
async def fickle() -> AsyncIterator[Fickle]:
    made = Fickle()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield made
    finally:
        server.close()
        await asyncio.gather(*made.tasks, return_exceptions=True)  # type: ignore[call-overload]


async def test_however_many_connections_end_unseen() -> None:
    """C-15: the pool holds ten connections that will all be closed; a request goes through them, and is one request."""
    metrics = Metrics("test")
    async with fickle() as server:
        source = await asyncio.to_thread(Source.model_validate, {"url": server.url})
        origin = origin_of("s", source, Fetch.model_validate({}), metrics)
        server.hold.clear()
        first = [asyncio.create_task(read(origin, f"{n}")) for n in range(10)]
        async with asyncio.timeout(20):
            while server.connections < 10:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        server.hold.set()
        assert await asyncio.gather(*first) == [b"x"] * 10
        assert await read(origin, "k") == b"x"
        assert server.connections == 11
        counted = {labels["status"]: value for labels, value in samples(metrics)}
        assert counted == {"200": 11}
        await origin.close()


def samples(metrics: Metrics) -> list[tuple[dict[str, str], float]]:
    """Requests of the origin that were counted, by their labels."""
    (family,) = metrics.origin_requests.collect()
    return [(dict(one.labels), one.value) for one in family.samples if one.name.endswith("_total") and one.value]


async def test_a_new_connection_that_ends_without_an_answer_is_a_failure() -> None:
    """Once: nothing was in its way."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            requests += 1
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as origin:
        said = await failure(origin)
    assert type(said) is OriginUnavailable
    assert "closed the connection without an answer" in str(said)
    assert requests == 1


# ---- credentials


async def test_credentials_that_were_renewed_meanwhile_are_sent_once_more(folder: Path) -> None:
    """C-21, C-23: also in mid-transfer, for a part."""
    token = folder / "token"
    token.write_text("old")
    with Origin() as server:

        def check(headers: dict[str, str]) -> Status | None:
            if headers["authorization"] == "new":
                return None
            token.write_text("new")
            return Status(401)

        server.put("k.bin", data=DATA, auth=check)
        async with opened(server.url, {"headers": {"Authorization": f"file:{token}"}}) as origin:
            assert await read(origin, "k.bin") == DATA
            assert [request.headers["authorization"] for request in server.log] == ["old", "new"]
            token.write_text("old")
            server["k.bin"].auth = None
            async with stream_of(origin, "k.bin") as stream:
                server["k.bin"].auth = check
                assert await read_part(stream, 5, 9) == DATA[5:9]


@pytest.mark.parametrize("code", [401, 403])
async def test_credentials_that_are_rejected_for_good_are_one_clear_error(folder: Path, code: int) -> None:
    """C-23: a hundred at once, one request each, and final."""
    (folder / "token").write_text("SECRET")
    with Origin() as server:
        shard = server.put("k.bin", always=Status(code))
        async with opened(server.url, {"headers": {"Authorization": f"file:{folder}/token"}}) as origin:
            said = await asyncio.gather(*(failure(origin) for _ in range(100)))
        assert {type(one) for one in said} == {OriginRefused}
        assert f"s/k.bin: the origin answered {code}: credentials rejected" in str(said[0])
        assert "SECRET" not in str(said[0])
        assert shard.gets == 100
