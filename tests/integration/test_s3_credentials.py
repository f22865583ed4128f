"""Credentials of S3 sources: where they come from, how they are renewed, and that they are never shown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.errors import OriginRefused, OriginUnavailable
from cachedaemon.origins import Origin
from tests.fakes import content
from tests.fakes.between import Between, Request, Rule, answer
from tests.fakes.daemon import Daemon
from tests.fakes.stores import Running

SIZE = 2 << 20
MANY = 100
URL = "s3://shards/c/"
DEAD = ["ExpiredToken", "SignatureDoesNotMatch"]


@pytest.fixture
def proxy(moto: Running) -> Iterator[Between]:
    moto.put("c/k", content.data("k", SIZE))
    for number in range(3):
        moto.put(f"c/{number}", b"small")
    with Between(moto.url) as made:
        yield made


@pytest.fixture
def provider() -> Iterator[Between]:
    """Gives credentials over HTTP, as containers get theirs; there is no server behind it."""
    with Between("http://127.0.0.1:9") as made:
        yield made


@pytest.fixture
def file(folder: Path) -> Path:
    """A file of credentials, with those of OLD in it."""
    write(folder / "credentials", "OLD")
    return folder / "credentials"


def document(name: str, **more: str) -> str:
    secrets = {"access_key_id": name, "secret_access_key": f"hunter2-{name}", "session_token": f"t0ken-{name}"}
    return json.dumps(secrets | more, indent=1)


def write(path: Path, name: str, **more: str) -> None:
    """As whoever renews them does it."""
    (path.parent / "part").write_text(document(name, **more))
    (path.parent / "part").rename(path)


def spoil(path: Path) -> None:
    path.write_text('{"access_key_id": "hunter2')


def settings(proxy: Between, credentials: object) -> dict[str, object]:
    return {"endpoint": proxy.url, "region": "us-east-1", "credentials": credentials}


def source(proxy: Between, credentials: object, **more: object) -> AbstractAsyncContextManager[Origin]:
    """An origin that is patient: the server may have a hundred requests before it."""
    return opened(URL, settings(proxy, credentials) | more, stall_timeout="30s")


def signs(name: str) -> Callable[[Request], bool]:
    """Whether a request is signed with the credentials of that name."""
    return lambda request: f"Credential={name}/" in request.headers.get("authorization", "")


def refuse(proxy: Between, name: str, code: str = "ExpiredToken", then: Callable[[], None] = lambda: None) -> None:
    """Have the store refuse these credentials; `then` comes before it says so."""

    def fits(request: Request) -> bool:
        if signs(name)(request):
            then()
            return True
        return False

    proxy.rules.append(Rule(fits, answer=answer(403, code)))


def signed(proxy: Between, name: str) -> int:
    return len([request for request in proxy.log if signs(name)(request)])


async def all_of(origin: Origin) -> list[bytes | BaseException]:
    return await asyncio.gather(*(read(origin, str(n % 3)) for n in range(MANY)), return_exceptions=True)


# ---- C-23


@pytest.mark.asyncio
@pytest.mark.parametrize("code", DEAD)
async def test_what_is_refused_for_good_is_said_at_once(proxy: Between, file: Path, code: str) -> None:
    """C-23: once for each request, and none is repeated."""
    refuse(proxy, "OLD", code)
    async with source(proxy, f"file:{file}") as origin:
        got = await all_of(origin)
        assert all(isinstance(one, OriginRefused) for one in got)
        assert {str(one).partition(": ")[2] for one in got} == {f"credentials rejected: the store answered 403 {code}"}
        assert len(proxy.log) == MANY
        write(file, "NEW")
        assert await read(origin, "1") == b"small"
    assert signed(proxy, "OLD") == MANY


def test_through_the_daemon_nobody_waits_for_what_will_not_come(proxy: Between, file: Path) -> None:
    """C-23: one request a shard and no ladder of tries; and nothing shows a secret."""
    refuse(proxy, "OLD", "InvalidAccessKeyId")
    with Daemon({"s": {"url": URL, **settings(proxy, f"file:{file}")}}, log={"level": "debug"}) as daemon:
        with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            answers = list(pool.map(lambda n: daemon.acquire("s", f"cold-{n}"), range(MANY)))
        assert {(one.status, one.code) for one in answers} == {(502, "origin_refused")}
        assert len(proxy.log) == MANY
        shown = daemon.log + str([one.body for one in answers])
        for path in ("/v1/hello", "/v1/status", "/metrics"):
            shown += str(daemon.api("GET", path).body)
        assert "credentials rejected: the store answered 403 InvalidAccessKeyId" in shown
        assert "hunter2" not in shown
        assert "t0ken" not in shown
        assert "OLD" not in shown


# ---- C-21


@pytest.mark.asyncio
async def test_what_has_expired_is_renewed_and_the_request_repeated_once(
    proxy: Between, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C-21: nobody sees anything of it, and many at once renew once."""
    refuse(proxy, "OLD", then=lambda: write(file, "NEW"))
    with caplog.at_level(logging.INFO, "cachedaemon"):
        async with source(proxy, f"file:{file}") as origin:
            assert await all_of(origin) == [b"small"] * MANY
    assert signed(proxy, "NEW") == MANY
    assert caplog.text.count("others are tried") <= 1
    assert "hunter2" not in caplog.text


@pytest.mark.asyncio
async def test_in_mid_transfer_too(proxy: Between, file: Path) -> None:
    """C-21: what is under way goes on, and its next part is asked for with the new credentials."""
    data = content.data("k", SIZE)
    async with source(proxy, f"file:{file}") as origin, stream_of(origin, "k") as stream:
        refuse(proxy, "OLD", then=lambda: write(file, "NEW"))
        assert await read_part(stream, 10, SIZE - 10) == data[10 : SIZE - 10]
        assert b"".join([bytes(piece) async for pieces in stream.pieces() for piece in pieces]) == data
    assert (signed(proxy, "OLD"), signed(proxy, "NEW")) == (2, 1)


@pytest.mark.asyncio
async def test_a_listing_is_renewed_likewise(proxy: Between, file: Path) -> None:
    refuse(proxy, "OLD", then=lambda: write(file, "NEW"))
    async with source(proxy, f"file:{file}") as origin:
        assert await origin.keys() == ["0", "1", "2", "k"]


@pytest.mark.asyncio
async def test_others_that_are_refused_too_end_it(proxy: Between, file: Path) -> None:
    refuse(proxy, "OLD", then=lambda: write(file, "NEW"))
    refuse(proxy, "NEW", "InvalidAccessKeyId")
    async with source(proxy, f"file:{file}") as origin:
        with pytest.raises(OriginRefused, match="credentials rejected: the store answered 403 InvalidAccessKeyId"):
            await read(origin, "1")
    assert len(proxy.log) == 2


@pytest.mark.asyncio
async def test_a_right_that_is_missing_renews_nothing(proxy: Between, file: Path) -> None:
    refuse(proxy, "OLD", "AccessDenied", then=lambda: write(file, "NEW"))
    async with source(proxy, f"file:{file}") as origin:
        with pytest.raises(OriginRefused, match="no right to read it"):
            await read(origin, "1")
    assert len(proxy.log) == 1


@pytest.mark.asyncio
async def test_what_says_itself_that_it_has_expired_is_waited_for(proxy: Between, file: Path) -> None:
    """Whoever renews the file comes a little late: that is worth another try."""
    write(file, "OLD", expiration="2020-01-31T12:00:00Z")
    refuse(proxy, "OLD")
    async with source(proxy, f"file:{file}") as origin:
        with pytest.raises(OriginUnavailable, match="have expired, and no others are there yet"):
            await read(origin, "1")
        write(file, "NEW", expiration="2099-01-31T12:00:00Z")
        assert await read(origin, "1") == b"small"


@pytest.mark.asyncio
async def test_a_file_that_cannot_be_understood_is_worth_another_try(proxy: Between, file: Path) -> None:
    async with source(proxy, f"file:{file}") as origin:
        spoil(file)
        with pytest.raises(OriginUnavailable, match="credentials cannot be read: allowed is JSON with") as error:
            await read(origin, "1")
        assert "hunter2" not in str(error.value)
        write(file, "NEW")
        assert await read(origin, "1") == b"small"


# ---- what the library finds by itself


def offer(provider: Between, name: str, times: int | None = None) -> None:
    secrets = {"AccessKeyId": name, "SecretAccessKey": f"hunter2-{name}", "Token": "t"}
    body = json.dumps(secrets | {"Expiration": "2099-01-31T12:00:00Z"}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    provider.rule("/of-this-container", answer=head.encode() + b"\r\n\r\n" + body, times=times)


@pytest.fixture
def in_a_container(provider: Between, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "token").write_text("for the provider")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{provider.url}/of-this-container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(folder / "token"))


@pytest.mark.asyncio
@pytest.mark.usefixtures("in_a_container")
async def test_a_token_that_is_revoked_early_is_dropped_and_another_fetched(proxy: Between, provider: Between) -> None:
    """C-23: one at a time, however many ask."""
    offer(provider, "OLD", times=1)
    offer(provider, "NEW")
    async with source(proxy, None) as origin:
        assert await read(origin, "1") == b"small"
        refuse(proxy, "OLD")
        assert await all_of(origin) == [b"small"] * MANY
    assert len(provider.log) == 2
    assert signed(proxy, "NEW") == MANY


@pytest.mark.asyncio
@pytest.mark.usefixtures("in_a_container")
async def test_a_provider_that_gives_no_other_is_not_asked_by_each(proxy: Between, provider: Between) -> None:
    """C-23: one renewal, and each request that was refused before it is repeated once."""
    offer(provider, "OLD")
    refuse(proxy, "OLD")
    async with source(proxy, None) as origin:
        got = await all_of(origin)
    assert all(isinstance(one, OriginRefused) for one in got)
    assert len(provider.log) == 2
    assert len(proxy.log) <= 2 * MANY


@pytest.mark.asyncio
@pytest.mark.usefixtures("in_a_container")
@pytest.mark.parametrize("status", [404, 500])
async def test_a_provider_that_fails_is_an_outage(proxy: Between, provider: Between, status: int) -> None:
    """Above all it does not say that the object is missing."""
    provider.rule("/of-this-container", answer=answer(status))
    async with source(proxy, None) as origin:
        with pytest.raises(OriginUnavailable):
            await read(origin, "1")
        with pytest.raises(OriginUnavailable):
            await origin.keys()
        provider.up()
        offer(provider, "GOOD")
        assert await read(origin, "1") == b"small"


@pytest.mark.asyncio
async def test_forms(proxy: Between, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = "[other]\naws_access_key_id = X\n[default]\naws_access_key_id = INI\naws_secret_access_key = s%c/ret+\n"
    (folder / "ini").write_text(profile)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for credentials, name in ((f"file:{folder}/ini", "INI"), (document("TEXT"), "TEXT"), (None, "ENV")):
        async with source(proxy, credentials) as origin:
            assert await read(origin, "1") == b"small"
        assert signs(name)(proxy.log[-1])
    async with source(proxy, None, anonymous=True) as origin:
        with pytest.raises(OriginRefused, match="no right to read it"):
            await read(origin, "1")  # moto's objects are private
    assert "authorization" not in proxy.log[-1].headers
