"""Digests in an answer's head: which fields are read, what is not one, and what they speak of."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import zlib

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from cachedaemon.conformance import opened, read, stream_of
from cachedaemon.digests import Hashes
from cachedaemon.errors import Corrupt
from cachedaemon.model import Digest
from cachedaemon.origins.digestfields import digests_of
from tests.fakes.origin import Origin

DATA = b"the object" * 1000
MD5, SHA1, SHA256, SHA512 = (hashlib.new(kind, DATA).digest() for kind in ("md5", "sha1", "sha256", "sha512"))
CRC32 = zlib.crc32(DATA).to_bytes(4, "big")


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def of(*fields: tuple[str, str]) -> tuple[Digest, ...]:
    return digests_of(CIMultiDictProxy(CIMultiDict(fields)))


@pytest.mark.parametrize(
    ("name", "value", "kind", "digest"),
    [
        ("Content-MD5", b64(MD5), "md5", MD5),
        ("x-ms-blob-content-md5", b64(MD5), "md5", MD5),
        ("Repr-Digest", f"sha-256=:{b64(SHA256)}:", "sha256", SHA256),
        ("Repr-Digest", f"unixsum=:AAAA:, sha-512=:{b64(SHA512)}:;a=1", "sha512", SHA512),
        ("Content-Digest", f"sha-256=:{b64(SHA256)}:", "sha256", SHA256),
        ("Digest", f"SHA-256={b64(SHA256)}", "sha256", SHA256),
        ("Digest", f"adler32=03da0195, sha={b64(SHA1)}", "sha1", SHA1),
        ("x-goog-hash", f"md5={b64(MD5)}", "md5", MD5),
        ("x-amz-checksum-crc32", b64(CRC32), "crc32", CRC32),
        ("x-amz-checksum-sha1", b64(SHA1), "sha1", SHA1),
        ("x-amz-checksum-sha256", b64(SHA256), "sha256", SHA256),
        ("X-Amz-Checksum-CRC64NVME", b64(bytes(8)), "crc64nvme", bytes(8)),
        ("X-Amz-Checksum-CRC32C", b64(bytes(4)), "crc32c", bytes(4)),
    ],
)
def test_fields_that_give_a_digest(name: str, value: str, kind: str, digest: bytes) -> None:
    assert of((name, value)) == (Digest(kind, digest),)


def test_several_in_one_field_and_in_several() -> None:
    crc = bytes(4)
    both = {Digest("crc32c", crc), Digest("md5", MD5)}
    assert set(of(("x-goog-hash", f"crc32c={b64(crc)},md5={b64(MD5)}"))) == both
    assert set(of(("x-goog-hash", f"crc32c={b64(crc)}"), ("X-Goog-Hash", f"md5={b64(MD5)}"))) == both
    assert of(("Content-MD5", b64(MD5)), ("x-ms-blob-content-md5", b64(MD5))) == (Digest("md5", MD5),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ETag", f'"{MD5.hex()}"'),
        ("Content-MD5", MD5.hex()),
        ("Content-MD5", b64(MD5)[:-2]),
        ("Content-MD5", ""),
        ("Content-MD5", "ü" * 24),
        ("Repr-Digest", f"sha-256={b64(SHA256)}"),
        ("Repr-Digest", f"sha-256=:{b64(SHA1)}:"),
        ("Repr-Digest", f"sha-3-256=:{b64(SHA256)}:"),
        ("Digest", "sha-256"),
        ("Digest", f"id-sha-256={b64(SHA256)}"),
        ("x-goog-hash", "crc32c=,md5"),
        ("x-amz-checksum-crc32", b64(CRC32) + "-3"),
        ("x-amz-checksum-sha256", b64(SHA256) + "-10000"),
    ],
)
def test_what_is_malformed_or_of_something_else_counts_as_not_said(name: str, value: str) -> None:
    assert of((name, value)) == ()


def test_a_checksum_of_checksums_is_none_of_the_object() -> None:
    assert of(("x-amz-checksum-type", "COMPOSITE"), ("x-amz-checksum-crc32", b64(CRC32))) == ()
    assert of(("x-amz-checksum-type", "FULL_OBJECT"), ("x-amz-checksum-crc32", b64(CRC32))) != ()


def test_a_store_that_took_a_coding_off_speaks_of_other_bytes() -> None:
    stored = ("x-goog-stored-content-encoding", "gzip")
    assert of(("x-goog-hash", f"md5={b64(MD5)}"), stored) == ()
    assert of(("x-goog-hash", f"md5={b64(MD5)}"), stored, ("Content-Encoding", "gzip")) != ()
    assert of(("x-goog-hash", f"md5={b64(MD5)}"), ("x-goog-stored-content-encoding", "identity")) != ()


@pytest.mark.asyncio
async def test_a_stream_hands_on_what_the_head_says() -> None:
    with Origin() as server:
        server.put("k.bin", data=DATA, extra={"Content-MD5": b64(MD5), "Digest": f"sha-256={b64(SHA256)}"})
        async with opened(server.url) as origin, stream_of(origin, "k.bin") as stream:
            assert set(stream.digests) == {Digest("md5", MD5), Digest("sha256", SHA256)}
            hashes = Hashes({digest.kind for digest in stream.digests})
            hashes.update(DATA)
            assert hashes.mismatch(stream.digests) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["k.tar", "k.tar.gz"])
async def test_a_coded_body_is_checked_as_it_comes(name: str) -> None:
    """A digest speaks of the coded form, which nobody after the stream has; also where the name keeps the coding on."""
    coded = gzip.compress(DATA)
    with Origin() as server:
        good = {"Content-Encoding": "gzip", "Content-MD5": b64(hashlib.md5(coded).digest())}
        server.put(name, data=coded, extra=good)
        async with opened(server.url) as origin:
            assert await read(origin, name) == (coded if name.endswith(".gz") else DATA)
            async with stream_of(origin, name) as stream:
                assert stream.digests == ()
            server.put(name, data=coded, extra={**good, "Content-MD5": b64(MD5)})
            with pytest.raises(Corrupt, match=f"s/{name}: .*md5 is .*, expected {binascii.hexlify(MD5).decode()}"):
                await read(origin, name)
