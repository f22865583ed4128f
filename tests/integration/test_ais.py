"""The origin for AIStore against the stand-in for a cluster, where it does more than every origin does."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.conformance import opened, read, read_part, stream_of
from cachedaemon.digests import Hashes
from cachedaemon.errors import (
    CacheDaemonError,
    Changed,
    Cut,
    Missing,
    NoParts,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.model import Validators
from cachedaemon.origins.ais import FILLING
from cachedaemon.origins.base import PIECE
from tests.contract.origins.places import certificates
from tests.fakes import content
from tests.fakes.ais import Cluster
from tests.fakes.ais_object import CHECKSUMS, Bucket
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin as WebServer
from tests.fakes.origin import Status

DATA = content.data("k", 200_000)
URL = "ais://b/"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


def settings(cluster: Cluster, **more: object) -> dict[str, object]:
    return {"endpoint": cluster.url, **more}


async def failure(cluster: Cluster, url: str = URL, **more: object) -> CacheDaemonError:
    """What reading `k.bin` ends with."""
    async with opened(url, settings(cluster, **more), stall_timeout="5s") as origin:
        with pytest.raises(CacheDaemonError) as error:
            await read(origin, "k.bin")
    assert "s/k.bin: " in str(error.value)
    assert "://" not in str(error.value)
    return error.value


# --- what an object comes with ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CHECKSUMS)
async def test_the_checksum_can_be_checked(cluster: Cluster, kind: str) -> None:
    """Of each type that a bucket can have; both xxhashes are XXH64."""
    cluster.put("b", "k.bin", DATA, checksum=kind)
    async with opened(URL, settings(cluster)) as origin, stream_of(origin, "k.bin") as stream:
        (digest,) = stream.digests
        hashes = Hashes([digest.kind])
        hashes.update(DATA)
        assert hashes.mismatch(stream.digests) is None
        assert stream.validators == Validators(etag=f"{kind}:{digest.value.hex()}", version="1")
        assert stream.has_parts


@pytest.mark.asyncio
@pytest.mark.parametrize("how", [{"checksum": "none"}, {"cold": [0.01], "streaming": True}])
async def test_without_a_checksum_there_are_no_parts(cluster: Cluster, how: dict[str, object]) -> None:
    """As in a bucket without them, and while an object streams through the cluster for the first time."""
    cluster.put("b", "k.bin", DATA, **copy.deepcopy(how))
    async with opened(URL, settings(cluster)) as origin, stream_of(origin, "k.bin") as stream:
        assert (stream.digests, stream.has_parts, stream.size) == ((), False, len(DATA))
        with pytest.raises(NoParts):
            await read_part(stream, 0, 1)


# --- the way there ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_gateway_is_asked_each_time(cluster: Cluster) -> None:
    """Where it sent the last one is never remembered, for a part neither."""
    cluster.put("b", "k.bin", DATA)
    async with opened(URL, settings(cluster)) as origin:
        for _ in range(3):
            assert await read(origin, "k.bin") == DATA
        async with stream_of(origin, "k.bin") as stream:
            assert await read_part(stream, 5, 9) == DATA[5:9]
    assert [len(cluster.asked(node)) for node in ("gateway", "target-0", "target-1")] == [5, 2, 3]


@pytest.mark.asyncio
async def test_redirects_that_are_not_escaped_are_followed(cluster: Cluster) -> None:
    cluster.escapes = False
    keys = ["a b.bin", "ünï/côdé.tar", "[x]{y}|z^.bin"]
    for key in keys:
        cluster.put("b", key, DATA)
    async with opened(URL, settings(cluster)) as origin:
        for key in keys:
            assert await read(origin, key) == DATA


@pytest.mark.asyncio
async def test_the_token_goes_where_the_gateway_sends_and_no_further(cluster: Cluster) -> None:
    """A target may send on to a transformation's server: it gets none. Configured headers are for the gateway alone."""
    cluster.token, cluster.strict = "t0ken", True
    cluster.put("b", "k.bin", DATA)
    cluster.etls["turn"] = (lambda data: data[::-1], "hpull")
    more = {"credentials": "t0ken", "headers": {"X-Tenant": "me"}, "etl": "turn"}
    async with opened(URL, settings(cluster, **more)) as origin:
        assert await read(origin, "k.bin") == DATA[::-1]
    got = {
        one.node.partition("-")[0]: (one.headers.get("authorization"), one.headers.get("x-tenant"))
        for one in cluster.log
    }
    assert got == {"gateway": ("Bearer t0ken", "me"), "target": ("Bearer t0ken", None), "etl": (None, None)}


@pytest.mark.asyncio
async def test_the_token_never_leaves_tls(folder: Path) -> None:
    """A gateway with TLS that sends on to a target without."""
    _, context = certificates(folder)
    with WebServer() as target, WebServer(tls=context) as gateway:
        target.put("v1/objects/b/k.bin", data=DATA)
        gateway.put("v1/objects/b/k.bin", redirect=target.at("v1/objects/b/k.bin"), redirect_code=301)
        given = {"endpoint": gateway.url, "credentials": "t0ken", "insecure": True}
        async with opened(URL, given) as origin:
            assert await read(origin, "k.bin") == DATA
        assert gateway.log[0].headers["authorization"] == "Bearer t0ken"
        assert "authorization" not in target.log[0].headers


@pytest.mark.asyncio
async def test_redirects_come_to_an_end() -> None:
    with WebServer() as gateway:
        gateway.put("v1/objects/b/k.bin", redirect="/v1/objects/b/k.bin", redirect_code=301)
        async with opened(URL, {"endpoint": gateway.url}) as origin:
            with pytest.raises(OriginRefused, match="redirects over 10 times"):
                await read(origin, "k.bin")
        assert gateway["v1/objects/b/k.bin"].gets == 11


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["ca", "insecure"])
async def test_tls(folder: Path, how: str) -> None:
    authority, context = certificates(folder)
    with Cluster(tls=context) as cluster:
        cluster.put("b", "k.bin", DATA)
        trust = {"ca": str(authority)} if how == "ca" else {"insecure": True}
        async with opened(URL, settings(cluster, **trust)) as origin:
            assert await read(origin, "k.bin") == DATA
        assert isinstance(await failure(cluster), OriginRefused)


@pytest.mark.asyncio
async def test_a_token_that_changed_is_sent_anew_once(cluster: Cluster, folder: Path) -> None:
    """Also in the JSON that `ais auth login` writes; one that has not changed is not sent twice."""
    cluster.put("b", "k.bin", DATA)
    cluster.token = "new"
    file = folder / "auth.token"
    file.write_text(json.dumps({"token": "old"}, indent=2))
    async with opened(URL, settings(cluster, credentials=f"file:{file}")) as origin:
        with pytest.raises(OriginRefused, match="401"):
            await read(origin, "k.bin")
        assert len(cluster.log) == 1
        cluster.on_asked = lambda _: file.write_text('{"token": "new!"}') and None
        cluster.token = "new!"
        assert await read(origin, "k.bin") == DATA
        assert [one.headers["authorization"] for one in cluster.log[1:3]] == ["Bearer old", "Bearer new!"]


@pytest.mark.asyncio
async def test_other_buckets_are_named_in_the_query(cluster: Cluster) -> None:
    cluster.put(Bucket("b", "aws"), "x/k.bin", b"of amazon")
    cluster.put(Bucket("b", "ais", "@remote#"), "x/k.bin", b"of another cluster")
    cluster.put(Bucket("b", "gcp", "@#mine"), "x/k.bin", b"of a namespace")
    asked = {"provider=s3": b"of amazon", "namespace=@remote": b"of another cluster"}
    for query, data in (asked | {"namespace=%23mine&provider=gs": b"of a namespace"}).items():
        async with opened(f"ais://b/x/{{key}}.bin?{query}", settings(cluster)) as origin:
            assert await read(origin, "k") == data
            assert await origin.keys() == ["k"]
            await origin.look()


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind", "wait"),
    [
        (404, Missing, None),
        (410, Missing, None),
        (409, OriginUnavailable, FILLING),
        (429, Overloaded, 7.0),
        (503, Overloaded, 7.0),
        (507, OriginUnavailable, 7.0),
        (500, OriginUnavailable, 7.0),
        (403, OriginRefused, None),
        (400, OriginRefused, None),
    ],
)
async def test_answers_that_are_no_object(cluster: Cluster, status: int, kind: type, wait: float | None) -> None:
    """409: somebody else is filling a cold object; the target has waited already, so it is asked again a little later."""
    cluster.put("b", "k.bin", DATA, always=status, retry_after="7")
    cause = await failure(cluster)
    assert type(cause) is kind
    assert getattr(cause, "retry_after", None) == wait


@pytest.mark.asyncio
async def test_a_bucket_or_transformation_that_is_not_there_makes_nothing_missing(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    for url in ("ais://none/", "ais://none/?provider=aws"):
        cause = await failure(cluster, url)
        assert isinstance(cause, OriginRefused)
        assert "no bucket 'none'" in str(cause)
    cause = await failure(cluster, etl="none")
    assert isinstance(cause, OriginRefused)
    assert "the transformation 'none'" in str(cause)


@pytest.mark.asyncio
async def test_a_refusal_that_is_cut_off_is_an_outage() -> None:
    """What is missing is not certain then: it could be the bucket."""
    with WebServer(keep_alive=False) as gateway:
        gateway.put("v1/objects/b/k.bin", 100, always=Status(404, {"Content-Length": "500"}, b'{"mess'))
        async with opened(URL, {"endpoint": gateway.url}) as origin:
            with pytest.raises(OriginUnavailable, match=r"s/k\.bin: "):
                await read(origin, "k.bin")


@pytest.mark.asyncio
async def test_a_target_that_is_down_is_an_outage(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    cluster.down(*cluster.targets)
    assert isinstance(await failure(cluster), OriginUnavailable)


@pytest.mark.asyncio
async def test_a_cold_object_may_take_longer_than_the_stall_limit(cluster: Cluster) -> None:
    """To begin: its target fetches all of it first. A body that stalls is still cut off, and so is a silent gateway."""
    cluster.put(Bucket("b", "aws"), "k.bin", DATA, cold=[0.6])
    async with opened("ais://b/?provider=aws", settings(cluster), stall_timeout="0.1s", connect_timeout="1s") as origin:
        assert await read(origin, "k.bin") == DATA
        cluster.put(Bucket("b", "aws"), "k.bin", DATA, bps=1)
        with pytest.raises(Cut, match="in time"):
            await read(origin, "k.bin")
        cluster.freeze("gateway")
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(Overloaded, match="in time"):
            await read(origin, "k.bin")
        assert now() - began < 1


@pytest.mark.asyncio
async def test_a_silent_target_is_given_up_in_the_end(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    cluster.freeze()
    async with opened(URL, settings(cluster), stall_timeout="0.02s", connect_timeout="5s") as origin:
        with pytest.raises(Overloaded, match="in time"):
            await read(origin, "k.bin")


@pytest.mark.asyncio
async def test_looking_tells_what_is_wrong_without_a_key(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    async with opened(URL, settings(cluster)) as origin:
        await origin.look()
        cluster.token = "t0ken"
        with pytest.raises(OriginRefused, match="source s: the origin answered 401"):
            await origin.look()
        cluster.down()
        with pytest.raises(OriginUnavailable, match="source s: the origin cannot be reached"):
            await origin.look()
    cluster.up()
    async with opened("ais://none/", settings(cluster, credentials="t0ken")) as origin:
        with pytest.raises(OriginRefused, match="source s: the cluster has no bucket 'none'"):
            await origin.look()


# --- parts and versions ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("becomes", "cause"),
    [
        ({"version": "2"}, Changed),
        ({"version": ""}, Changed),
        ({"data": DATA[::-1], "version": "2"}, Changed),
        ({"data": DATA[:10]}, Changed),
        ({"data": DATA[::-1]}, NoParts),
        ({"range_checksum": True}, NoParts),
        ({"ranges": "no"}, NoParts),
        ({"ranges": "no", "data": DATA[::-1]}, Changed),
        ({"ranges": "shift"}, NoParts),
        ({"always": 410}, Missing),
    ],
)
async def test_a_part_of_anything_else_is_refused(cluster: Cluster, becomes: dict[str, object], cause: type) -> None:
    """C-03, C-04. A bucket with checksums of parts cannot say of which version they are, so it has none."""
    stored = cluster.put("b", "k.bin", DATA)
    async with opened(URL, settings(cluster)) as origin, stream_of(origin, "k.bin") as stream:
        for name, value in becomes.items():
            setattr(stored, name, value)
        with pytest.raises(cause):
            await read_part(stream, 100, 110)


@pytest.mark.asyncio
async def test_a_version_that_is_known_costs_a_head(cluster: Cluster) -> None:
    """With the question whether the backend has a later one, which only sources that revalidate ask."""
    cluster.put("b", "k.bin", DATA)
    async with opened(URL, settings(cluster, revalidate="always")) as origin:
        async with stream_of(origin, "k.bin") as stream:
            known = stream.validators
        async with origin.open("k.bin", known) as same:
            assert same is None
    assert [one.method for one in cluster.asked("target", "HEAD") + cluster.asked("target")] == ["HEAD", "GET"]
    assert {one.query["latest-ver"] for one in cluster.log} == {"true"}
    async with opened(URL, settings(cluster)) as origin:
        assert await read(origin, "k.bin") == DATA
    assert "latest-ver" not in cluster.log[-1].query


# --- transformations -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["hpush", "hpull"])
async def test_a_transformation(cluster: Cluster, way: str) -> None:
    """Its bytes are not those that the checksum is of, and come in one piece."""
    cluster.put("b", "k.bin", DATA)
    cluster.etls["turn"] = (lambda data: data[::-1] + b"!", way)
    async with opened(URL, settings(cluster, etl="turn")) as origin:
        async with stream_of(origin, "k.bin") as stream:
            assert (stream.digests, stream.has_parts, stream.validators) == ((), False, Validators())
        assert await read(origin, "k.bin") == DATA[::-1] + b"!"
        assert await origin.keys() == ["k.bin"]
    assert not cluster.asked("target", "HEAD")


@pytest.mark.asyncio
async def test_a_transformed_object_has_the_versions_of_its_source(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    cluster.etls["turn"] = (lambda data: data[::-1], "hpush")
    async with opened(URL, settings(cluster, etl="turn", revalidate="always")) as origin:
        async with stream_of(origin, "k.bin") as stream:
            known = stream.validators
        assert known.version == "1"
        async with origin.open("k.bin", known) as same:
            assert same is None
        cluster.put("b", "k.bin", DATA + b"more")
        async with origin.open("k.bin", known) as other:
            assert other is not None
            assert other.validators.version == "2"


# --- listing ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_listing_comes_in_pages(cluster: Cluster) -> None:
    """Without folders, names that do not end as the source's do, and what stands in no key's place."""
    cluster.page = 7
    names = [f"set/{number:03}.tar" for number in range(50)]
    for name in (*names, "set/.tar", "set/x.zip", "settle.tar", "other/1.tar"):
        cluster.put("b", name, b"x")
    cluster.folders = {"set/folder.tar", "set/010"}
    async with opened("ais://b/set/{key}.tar", settings(cluster)) as origin:
        assert await origin.keys() == [f"{number:03}" for number in range(50)]
    assert len(cluster.asked("gateway")) == 8


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "page",
    [b"", b"no JSON", b"[]", b"null", b'{"entries": [{}], "uuid": "u", "continuation_token": ""}', b'{"entries": []}'],
)
async def test_what_is_no_page_ends_a_listing(page: bytes) -> None:
    with WebServer(keep_alive=False) as gateway:
        gateway.put("v1/buckets/b", data=page)
        async with opened(URL, {"endpoint": gateway.url}) as origin:
            with pytest.raises(OriginUnavailable, match="source s: what the cluster sends is no page"):
                await origin.keys()


@pytest.mark.asyncio
async def test_a_listing_that_goes_round_in_circles_is_ended() -> None:
    with WebServer(keep_alive=False) as gateway:
        page = {"entries": [{"name": "k"}], "uuid": "u", "continuation_token": "k"}
        gateway.put("v1/buckets/b", data=json.dumps(page).encode())
        async with opened(URL, {"endpoint": gateway.url}) as origin:
            with pytest.raises(OriginUnavailable, match="the same page again"):
                await origin.keys()


# --- through the daemon ----------------------------------------------------------------------------------------------


def test_a_daemon_resumes_checks_and_refuses(cluster: Cluster) -> None:
    """A cut transfer goes on from its byte; bytes that are not what the checksum says are never published."""
    large = content.data("k", 3 * PIECE)
    cluster.put("b", "k.bin", large, cut=[3 * PIECE - 1000])
    cluster.put("b", "damaged.bin", DATA, served=DATA[::-1])
    cluster.token = "t0ken"
    source = {"url": URL, "endpoint": cluster.url, "credentials": "env:THE_TOKEN"}
    with Daemon({"s": source}, env={"THE_TOKEN": "t0ken"}) as daemon:
        assert Path(daemon.path("s", "k.bin")).read_bytes() == large
        first, last = (one.headers.get("range") for one in cluster.asked("target"))
        assert first is None
        assert PIECE <= int(last.removeprefix("bytes=").partition("-")[0]) < 3 * PIECE - 1000
        answer = daemon.acquire("s", "damaged.bin")
        assert (answer.status, answer.code) == (502, "corrupt")
        assert "xxh64" in answer.body["error"]["message"]


def test_the_endpoint_may_stand_in_the_environment(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    with Daemon({"s": URL}, env={"AIS_ENDPOINT": cluster.url + "/"}) as daemon:
        assert Path(daemon.path("s", "k.bin")).read_bytes() == DATA
