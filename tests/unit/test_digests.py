"""Digests of several kinds, taken of the same bytes at once."""

from __future__ import annotations

import hashlib
import random

import pytest
import xxhash

from cachedaemon.digests import KINDS, Hashes
from cachedaemon.model import Digest

CHECK = {
    # The RevEng catalogue's check values: of the nine bytes "123456789".
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    # RFC 1321 and FIPS 180-4 tools (md5sum, sha*sum), xxhsum -H1 and -H2.
    "md5": "25f9e794323b453885f5181f1b624d0b",
    "sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "sha224": hashlib.sha224(b"123456789").hexdigest(),
    "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
    "sha384": hashlib.sha384(b"123456789").hexdigest(),
    "sha512": hashlib.sha512(b"123456789").hexdigest(),
    "xxh64": xxhash.xxh64_hexdigest(b"123456789"),
    "xxh3-128": xxhash.xxh3_128_hexdigest(b"123456789"),
}


def hashed(kinds: list[str], data: bytes) -> Hashes:
    taken = Hashes(kinds)
    taken.update(data)
    return taken


def test_every_kind_has_a_known_value() -> None:
    assert set(CHECK) == set(KINDS)
    expected = [Digest(kind, bytes.fromhex(value)) for kind, value in CHECK.items()]
    assert hashed(list(KINDS), b"123456789").mismatch(expected) is None


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_and_type_come_to_the_same(kind: str) -> None:
    rng = random.Random(7)
    data = rng.randbytes(300_000)
    pieces, start = Hashes([kind]), 0
    while start < len(data):
        stop = start + rng.choice((0, 1, 63, 4096, 65_537))
        pieces.update(rng.choice((bytes, memoryview))(data[start:stop]))
        start = stop
    whole = hashed([kind], data)
    assert pieces.mismatch([Digest(kind, whole._hashes[kind].digest())]) is None


def test_a_view_of_a_buffer_that_changes_later_is_taken_as_it_was() -> None:
    buffer = bytearray(b"123456789")
    taken = Hashes(KINDS)
    taken.update(memoryview(buffer))
    buffer[:] = bytes(9)
    assert taken.mismatch([Digest(kind, bytes.fromhex(value)) for kind, value in CHECK.items()]) is None


def test_a_mismatch_names_kind_got_and_expected() -> None:
    taken = hashed(["md5", "crc32"], b"123456789")
    right, wrong = Digest("md5", bytes.fromhex(CHECK["md5"])), Digest("crc32", bytes(4))
    assert taken.mismatch([right, wrong]) == "crc32 is cbf43926, expected 00000000"


def test_a_digest_of_another_length_never_fits() -> None:
    assert hashed(["crc32"], b"").mismatch([Digest("crc32", b"")]) == "crc32 is 00000000, expected "


def test_nothing_expected_is_no_mismatch() -> None:
    assert Hashes(()).mismatch(()) is None


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="crc16"):
        Hashes(["crc16"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_by_itself(kind: str) -> None:
    first = hashed([kind], b"12345")
    second = first.copy()
    second.update(b"6789")
    expected = [Digest(kind, bytes.fromhex(CHECK[kind]))]
    assert second.mismatch(expected) is None
    assert first.mismatch(expected) is not None
