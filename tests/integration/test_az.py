"""Sources of Azure's blob storage: Azurite, behind a proxy that can misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.errors import CacheDaemonError, Changed, Missing, OriginRefused, OriginUnavailable, Overloaded
from tests.fakes import content, stores
from tests.fakes.between import Between, Rule, answer
from tests.fakes.daemon import Daemon
from tests.fakes.stores import ACCOUNT, ACCOUNT_KEY, Running

SIZE = 2 << 20
URL = "az://shards/a/"
WRONG_KEY = "aHVudGVyMg=="


@pytest.fixture
def proxy(azurite: Running) -> Iterator[Between]:
    azurite.put("a/k", content.data("k", SIZE))
    with Between(azurite.url) as made:
        yield made


def at(proxy: Between, credentials: object) -> dict[str, object]:
    return {"endpoint": f"{proxy.url}/{ACCOUNT}", "credentials": credentials}


def signature(azurite: Running, seconds: int) -> str:
    """A shared access signature for the one object."""
    return urlsplit(obstore.sign(azurite.store, "GET", "a/k", timedelta(seconds=seconds))).query


@pytest.mark.asyncio
async def test_forms_of_credentials(azurite: Running, proxy: Between, folder: Path) -> None:
    (folder / "connection").write_text(
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={proxy.url}/{ACCOUNT};\n"
    )
    for credentials in (ACCOUNT_KEY, signature(azurite, 600), "?" + signature(azurite, 600)):
        async with opened(URL, at(proxy, credentials)) as origin:
            assert await read(origin, "k") == content.data("k", SIZE)
    async with opened(URL, {"credentials": f"file:{folder}/connection"}) as origin:
        assert await read(origin, "k") == content.data("k", SIZE)
        assert await origin.keys() == ["k"]


@pytest.mark.asyncio
async def test_a_part_is_asked_for_on_a_condition(azurite: Running, proxy: Between) -> None:
    async with opened(URL, at(proxy, ACCOUNT_KEY)) as origin, stream_of(origin, "k") as stream:
        assert await read_part(stream, 3, SIZE) == content.data("k", SIZE)[3:]
        assert proxy.log[-1].headers["if-match"] == stream.validators.etag
        async with origin.open("k", stream.validators) as same:
            assert same is None
        azurite.put("a/k", content.data("other", SIZE))
        with pytest.raises(Changed):
            await read_part(stream, 3, SIZE)


@pytest.mark.asyncio
async def test_refusals_are_told_apart(proxy: Between) -> None:
    """Azurite's own, and others as Azure gives them."""
    await fails(proxy, ACCOUNT_KEY, Missing, "404 BlobNotFound", key="none")
    await fails(proxy, ACCOUNT_KEY, OriginRefused, "no such bucket or container", url="az://none/")
    await fails(proxy, WRONG_KEY, OriginRefused, "the store answered 403")
    for status, code, kind, says in (
        (
            403,
            "AuthenticationFailed",
            OriginRefused,
            "credentials rejected: the store answered 403 AuthenticationFailed",
        ),
        (403, "AuthorizationPermissionMismatch", OriginRefused, "no right to read it"),
        (409, "BlobArchived", OriginRefused, "409 BlobArchived"),
        (503, "ServerBusy", Overloaded, "503 ServerBusy"),
        (500, "OperationTimedOut", Overloaded, "500 OperationTimedOut"),
    ):
        proxy.rule("k", answer=answer(status, code), times=1)
        await fails(proxy, ACCOUNT_KEY, kind, says)


@pytest.mark.asyncio
async def test_a_signature_that_has_expired_is_refused_and_never_shown(azurite: Running, proxy: Between) -> None:
    """C-23."""
    signed = signature(azurite, 0)
    cause = await fails(proxy, signed, OriginRefused, "the store answered 403")
    assert "sig=" not in str(cause)
    proxy.down()
    cause = await fails(proxy, signed, CacheDaemonError, "cannot be reached")
    assert "sig=" not in str(cause)


async def fails(
    proxy: Between, credentials: str, kind: type[CacheDaemonError], says: str, *, key: str = "k", url: str = URL
) -> CacheDaemonError:
    async with opened(url, at(proxy, credentials)) as origin:
        with pytest.raises(kind, match=says) as error:
            await read(origin, key)
    return error.value


@pytest.mark.asyncio
async def test_an_account_that_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    async with opened(URL, {"credentials": ACCOUNT_KEY}) as origin:
        with pytest.raises(OriginRefused, match="source s: the store cannot be asked as configured: Account must be"):
            await origin.look()


@pytest.mark.asyncio
async def test_a_secret_that_gets_no_token_is_refused(proxy: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-23: it is the authority that refuses, before the store is asked."""
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", proxy.url)
    for name in ("CLIENT_ID", "CLIENT_SECRET", "TENANT_ID"):
        monkeypatch.setenv(f"AZURE_{name}", "hunter2")
    async with opened(URL, {"endpoint": f"{proxy.url}/{ACCOUNT}"}) as origin:
        for status, kind, says in (
            (401, OriginRefused, "credentials rejected: whoever exchanges them for a token answered 401"),
            (500, OriginUnavailable, "whoever gives them out to this machine answered 500"),
        ):
            proxy.rules[:] = [Rule(lambda request: request.method == "POST", answer=answer(status))]
            with pytest.raises(kind, match=says):
                await read(origin, "k")
    assert {request.method for request in proxy.log} == {"POST"}


@pytest.mark.slow
def test_through_the_daemon(azurite: Running, proxy: Between) -> None:
    data = content.data("big", 5 * SIZE)
    azurite.put("a/b/big.bin", data)
    settings = {"endpoint": f"{proxy.url}/{ACCOUNT}", **stores.SETTINGS["az"]}
    with Daemon({"s": {"url": URL + "b/", **settings}}) as daemon:
        proxy.rule("big.bin", cut=4 * SIZE, times=1)
        assert daemon.path("s", "big.bin").read_bytes() == data
        assert daemon.acquire("s", "none.bin").code == "missing"
        assert "1 of 1 shard here" in daemon.cli("prefetch", "s", "--wait").out
        assert ACCOUNT_KEY not in daemon.log
