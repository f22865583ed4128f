"""Sources of Google Cloud Storage: fake-gcs-server, behind a proxy that can misbehave."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.errors import Changed, Missing, OriginRefused, Overloaded
from tests.fakes import content
from tests.fakes.between import Between, Request, Rule, answer
from tests.fakes.daemon import Daemon
from tests.fakes.stores import Running

SIZE = 2 << 20
URL = "gs://shards/g/"


@pytest.fixture
def proxy(fake_gcs: Running) -> Iterator[Between]:
    fake_gcs.put("g/k", content.data("k", SIZE))
    with Between(fake_gcs.url, renames=True) as made:
        yield made


def token(path: Path, name: str) -> str:
    """A file with an access token, as `credentials` names it."""
    path.write_text(json.dumps({"access_token": name, "expiration": "2099-01-31T12:00:00Z"}))
    return f"file:{path}"


def bears(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


@pytest.mark.asyncio
async def test_versions_are_generations(fake_gcs: Running, proxy: Between) -> None:
    """The server ignores conditions: what it sends is looked at."""
    async with opened(URL, {"endpoint": proxy.url, "anonymous": True}) as origin, stream_of(origin, "k") as stream:
        assert stream.validators.version
        assert await read_part(stream, 3, SIZE) == content.data("k", SIZE)[3:]
        async with origin.open("k", stream.validators) as same:
            assert same is None
        fake_gcs.put("g/k", content.data("k", SIZE))
        with pytest.raises(Changed):
            await read_part(stream, 3, SIZE)
        async with origin.open("k", stream.validators) as other:
            assert other is not None
        with pytest.raises(Missing):
            await read(origin, "none")
    assert "authorization" not in proxy.log[-1].headers


@pytest.mark.asyncio
async def test_refusals_are_told_apart(proxy: Between) -> None:
    async with opened(URL, {"endpoint": proxy.url, "anonymous": True}) as origin:
        for status, code, kind, says in (
            (404, "NoSuchBucket", OriginRefused, "no such bucket"),
            (403, "AccessDenied", OriginRefused, "no right to read it"),
            (429, "", Overloaded, "429"),
            (503, "ServiceUnavailable", Overloaded, "503"),
        ):
            proxy.rule("k", answer=answer(status, code), times=1)
            with pytest.raises(kind, match=says):
                await read(origin, "k")


@pytest.mark.asyncio
async def test_a_token_that_has_expired_is_renewed(proxy: Between, folder: Path) -> None:
    """C-21."""
    credentials = token(folder / "token", "OLD")

    def is_old(request: Request) -> bool:
        if bears(request) == "OLD":
            token(folder / "token", "NEW")
            return True
        return False

    async with opened(URL, {"endpoint": proxy.url, "credentials": credentials}) as origin:
        proxy.rules.append(Rule(is_old, answer=answer(401)))
        assert await read(origin, "k") == content.data("k", SIZE)
        assert [bears(request) for request in proxy.log] == ["OLD", "NEW"]
        proxy.rule("k", answer=answer(401))
        with pytest.raises(OriginRefused, match="credentials rejected: the store answered 401"):
            await read(origin, "k")


@pytest.mark.asyncio
async def test_a_service_accounts_key_signs_by_itself(proxy: Between, folder: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    account = service_account(folder)
    async with opened(URL, {"endpoint": proxy.url, "credentials": f"file:{account}"}) as origin:
        assert await read(origin, "k") == content.data("k", SIZE)
    assert bears(proxy.log[-1]).startswith("eyJ"), "a JSON web token (RFC 7519)"


def service_account(folder: Path) -> Path:
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        capture_output=True,
        text=True,
        check=True,
    )
    said = {
        "type": "service_account",
        "private_key": made.stdout,
        "private_key_id": "1",
        "client_email": "trainer@project.iam.gserviceaccount.com",
    }
    (folder / "account.json").write_text(json.dumps(said, indent=2))
    return folder / "account.json"


@pytest.mark.slow
def test_through_the_daemon(fake_gcs: Running, proxy: Between) -> None:
    data = content.data("big", 5 * SIZE)
    fake_gcs.put("g/b/big.bin", data)
    with Daemon({"s": {"url": URL + "b/", "endpoint": proxy.url, "anonymous": True}}) as daemon:
        proxy.rule("big.bin", cut=4 * SIZE, times=1)
        assert daemon.path("s", "big.bin").read_bytes() == data
        assert daemon.acquire("s", "none.bin").code == "missing"
        assert "1 of 1 shard here" in daemon.cli("prefetch", "s", "--wait").out
