"""Digests of the whole body that servers and stores give in an answer's head. What is malformed counts as not said.

They are those of the coded form, where a content coding is on it. An ETag is no digest: of an upload in parts, and of an
encrypted object, it is something else in the same clothes.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator

from multidict import CIMultiDictProxy

from cachedaemon.model import Digest

_BYTES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64, "crc32": 4, "crc32c": 4, "crc64nvme": 8}
_WORDS = {"md5": "md5", "sha": "sha1", "sha-256": "sha256", "sha-512": "sha512", "crc32c": "crc32c"}
"""What RFC 3230 and RFC 9530 call them."""
_ENTRY = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):")
"""One of a dictionary of byte sequences (RFC 8941, 3.2 and 3.3.5)."""
_AMAZON = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
_PLAIN = ("", "identity")


def digests_of(headers: CIMultiDictProxy[str]) -> tuple[Digest, ...]:
    """All that a `200` says, in no order."""
    said = (_digest(kind, value) for kind, value in _all(headers))
    return tuple(dict.fromkeys(digest for digest in said if digest is not None))


def _digest(kind: str, value: str) -> Digest | None:
    try:
        said = binascii.a2b_base64(value.strip(), strict_mode=True)
    except ValueError:
        return None
    return Digest(kind, said) if len(said) == _BYTES[kind] else None


def _all(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Kinds and what stands for their values."""
    yield from _md5(headers)
    yield from _of_rfc_9530(headers)
    yield from _of_rfc_3230(headers)
    yield from _of_google(headers)
    yield from _of_amazon(headers)


def _md5(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """RFC 1864, and what Azure keeps with a blob (it gives the first for parts of one too)."""
    for name in ("Content-MD5", "x-ms-blob-content-md5"):
        yield from (("md5", value) for value in headers.getall(name, ()))


def _of_rfc_9530(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Of the representation, and of the content, which in a `200` is all of it."""
    for name in ("Repr-Digest", "Content-Digest"):
        for word, value in _ENTRY.findall(", ".join(headers.getall(name, ()))):
            if word in _WORDS:
                yield _WORDS[word], value


def _of_rfc_3230(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    for word, value in _pairs(headers, "Digest"):
        if word.lower() in _WORDS:
            yield _WORDS[word.lower()], value


def _of_google(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Of the stored form: of no use where the store has taken a coding off that it keeps the object in."""
    stored, sent = (
        headers.get(name, "").strip().lower() for name in ("x-goog-stored-content-encoding", "Content-Encoding")
    )
    if stored != sent and not (stored in _PLAIN and sent in _PLAIN):
        return
    yield from ((kind, value) for kind, value in _pairs(headers, "x-goog-hash") if kind in ("crc32c", "md5"))


def _of_amazon(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Of an upload in parts it may be a digest of digests, which ends in `-` and their number."""
    if headers.get("x-amz-checksum-type", "").strip().upper() == "COMPOSITE":
        return
    for kind in _AMAZON:
        yield from ((kind, value) for value in headers.getall(f"x-amz-checksum-{kind}", ()))


def _pairs(headers: CIMultiDictProxy[str], name: str) -> Iterator[tuple[str, str]]:
    """Of a list of `word=value`."""
    for entry in ",".join(headers.getall(name, ())).split(","):
        word, _, value = entry.strip().partition("=")
        yield word, value
