"""The stand-in for an AIStore cluster, driven by AIStore's own client: what is tested with it is close to the real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aistore.sdk import Client
from aistore.sdk.errors import AISError, ErrBckNotFound, ErrGETConflict, ErrObjNotFound
from aistore.sdk.etl import ETLConfig
from aistore.sdk.namespace import Namespace
from aistore.sdk.retry_config import RetryConfig
from tenacity import Retrying, stop_after_attempt
from urllib3.util.retry import Retry

from tests.contract.origins.places import certificates
from tests.fakes import content
from tests.fakes.ais import Cluster
from tests.fakes.ais_object import CHECKSUMS, Bucket

ONCE = RetryConfig(http_retry=Retry(0), network_retry=Retrying(stop=stop_after_attempt(1), reraise=True))
DATA = content.data("k", 300_000)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@contextmanager
def connected(cluster: Cluster, **how: object) -> Iterator[Client]:
    client = Client(cluster.url, **({"retry_config": ONCE, "timeout": 10} | how))
    try:
        yield client
    finally:
        client.cluster().client.session_manager.session.close()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connected(cluster) as made:
        yield made


def test_put_head_get_and_delete(cluster: Cluster, client: Client) -> None:
    bucket = client.bucket("b").create()
    shard = bucket.object("deep/er/a b%.bin")
    shard.get_writer().put_content(DATA)
    shard.get_writer().put_content(DATA[::-1])
    reader = shard.get_reader()
    assert reader.read_all() == DATA[::-1]
    assert reader.attributes.checksum_type == "xxhash2"
    assert reader.attributes.checksum_value == CHECKSUMS["xxhash2"](DATA[::-1])
    assert shard.head("size,version,checksum").size == len(DATA)
    assert (shard.props.obj_version, shard.props.present) == ("2", True)
    shard.delete()
    with pytest.raises(ErrObjNotFound):
        shard.get_reader().read_all()


def test_every_get_is_sent_on_to_another_target(cluster: Cluster, client: Client) -> None:
    cluster.put("b", "k.bin", DATA)
    for _ in range(4):
        assert client.bucket("b").object("k.bin").get_reader().read_all() == DATA
    assert [len(cluster.asked(node)) for node in ("gateway", *cluster.targets)] == [4, 2, 2]


def test_a_redirect_holds_once(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    import requests

    with requests.Session() as session:
        sent_on = session.get(f"{cluster.url}/v1/objects/b/k.bin?provider=ais", allow_redirects=False)
        assert sent_on.status_code == 301
        assert session.get(sent_on.headers["Location"]).content == DATA
        assert session.get(sent_on.headers["Location"]).status_code == 400
        head = session.head(f"{cluster.url}/v1/objects/b/k.bin?provider=ais", allow_redirects=False)
        assert head.status_code == 307


def test_parts_have_the_checksum_of_the_whole(cluster: Cluster, client: Client) -> None:
    cluster.put("b", "k.bin", DATA)
    shard = client.bucket("b").object("k.bin")
    for asked, part in (("bytes=5-9", DATA[5:10]), ("bytes=299990-", DATA[299_990:]), ("bytes=-7", DATA[-7:])):
        reader = shard.get_reader(byte_range=asked)
        assert reader.read_all() == part
        assert reader._object_client.get(stream=False).headers["ais-checksum-value"] == CHECKSUMS["xxhash2"](DATA)


def test_a_listing_comes_in_pages(cluster: Cluster, client: Client) -> None:
    cluster.page = 3
    names = sorted(f"train/{number}" for number in range(10))
    for name in ["other", *names]:
        cluster.put("b", name, b"x")
    assert [entry.name for entry in client.bucket("b").list_objects_iter(prefix="train/")] == names
    assert len(cluster.asked("gateway")) == 4


@pytest.mark.parametrize("way", ["hpush", "hpull"])
def test_a_transformation_gives_its_own_bytes(cluster: Cluster, client: Client, way: str) -> None:
    cluster.put("b", "k.bin", DATA)
    cluster.etls["turn"] = (lambda data: data[::-1], way)
    reader = client.bucket("b").object("k.bin").get_reader(etl=ETLConfig("turn"))
    assert reader.read_all() == DATA[::-1]
    assert len(cluster.asked("etl")) == (way == "hpull")


def test_buckets_of_other_providers_and_namespaces_are_others(cluster: Cluster, client: Client) -> None:
    cluster.put(Bucket("b", "aws"), "k.bin", b"aws")
    cluster.put(Bucket("b", "ais", "@u#n"), "k.bin", b"there")
    assert client.bucket("b", provider="s3").object("k.bin").get_reader().read_all() == b"aws"
    there = client.bucket("b", namespace=Namespace(uuid="u", name="n"))
    assert there.object("k.bin").get_reader().read_all() == b"there"
    with pytest.raises(ErrBckNotFound):
        client.bucket("b").object("k.bin").get_reader().read_all()


def test_the_token(cluster: Cluster) -> None:
    cluster.put("b", "k.bin", DATA)
    cluster.token = "s3cret"
    for token, status in (("s3cret", None), ("wrong", 401)):
        with connected(cluster, token=token) as client:
            if status is None:
                assert client.bucket("b").object("k.bin").get_reader().read_all() == DATA
            else:
                with pytest.raises(AISError) as error:
                    client.bucket("b").object("k.bin").get_reader().read_all()
                assert error.value.status_code == status


def test_an_object_that_is_being_filled(cluster: Cluster, client: Client) -> None:
    cluster.put(Bucket("b", "aws"), "k.bin", DATA, statuses=[409], cold=[0.05])
    shard = client.bucket("b", provider="aws").object("k.bin")
    assert not shard.head().present
    with pytest.raises(ErrGETConflict):
        shard.get_reader().read_all()
    assert shard.get_reader().read_all() == DATA
    assert shard.head().present


def test_tls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they would win over the client's own certificates
        monkeypatch.delenv(name, raising=False)
    authority, context = certificates(folder)
    with Cluster(tls=context) as cluster, connected(cluster, ca_cert=str(authority)) as client:
        client.bucket("b").create().object("k.bin").get_writer().put_content(DATA)
        assert client.bucket("b").object("k.bin").get_reader().read_all() == DATA
