"""What a stand-in for an AIStore cluster keeps: buckets, objects and how they misbehave, and the words of its API.

Headers, names of parameters and members are those of AIStore's sources (api/apc, cmn/objattrs.go, cmn/objlist.go).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anycrc
import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKSUMS: Mapping[str, Callable[[bytes], str]] = {
    "xxhash": lambda data: xxhash.xxh64(data).hexdigest(),
    "xxhash2": lambda data: xxhash.xxh64(data).hexdigest(),
    "md5": lambda data: hashlib.md5(data).hexdigest(),
    "crc32c": lambda data: f"{anycrc.Model('CRC32C').calc(data):08x}",
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
    "sha512": lambda data: hashlib.sha512(data).hexdigest(),
}
"""The checksums that a bucket can have, besides `none`."""


class Bucket(NamedTuple):
    """A bucket as requests name it."""

    name: str
    provider: str = "ais"
    namespace: str = ""

    def __str__(self) -> str:
        """As AIStore's messages name it."""
        return f"{self.provider}://{self.namespace and self.namespace + '/'}{self.name}"


@dataclass(eq=False, slots=True)
class Stored:
    """One object. Every attribute may be changed while requests run; lists are used up one entry a GET."""

    data: bytes
    version: str = ""
    checksum: str = "xxhash2"
    """Its type; `none` gives none."""
    range_checksum: bool = False
    """As with `checksum.enable_read_range`: a part comes with the checksum of the part."""
    etag: str = ""
    """Of the backend, for an object of a remote bucket."""
    cold: list[float] = field(default_factory=list)
    """Seconds before the first byte, while it comes from its backend; then it is present."""
    streaming: bool = False
    """As with the feature Streaming-Cold-GET: while it is cold there is no checksum yet."""
    statuses: list[int] = field(default_factory=list)
    """Answers instead of the object: 409 while somebody else fills it, 429, 503."""
    always: int | None = None
    retry_after: str | None = None
    cut: list[int | None] = field(default_factory=list)
    """Close after so many body bytes (None: do not)."""
    bps: float | None = None
    ranges: str = "yes"
    """no: the whole object with 200; shift: a part that begins a byte earlier, and says so."""
    served: bytes | None = None
    """Content that is sent in place of `data`, with the checksum of `data`: a damaged disk."""

    def headers(self, part: bytes | None = None) -> dict[str, str]:
        """What describes it in every answer; of a part, where parts have checksums of their own."""
        said = {"Ais-Atime": "1700000000000000000"}
        if self.checksum != "none" and not (self.streaming and self.cold):
            summed = part if part is not None and self.range_checksum else self.data
            said |= {"Ais-Checksum-Type": self.checksum, "Ais-Checksum-Value": CHECKSUMS[self.checksum](summed)}
        if self.version:
            said["Ais-Version"] = self.version
        if self.etag:
            said |= {"ETag": self.etag, "Ais-Custom-Md": f"ETag={self.etag}"}
        return said

    def body(self) -> bytes:
        """The bytes that go out."""
        return self.data if self.served is None else self.served


class Refusal(Exception):
    """An answer that is an error, as AIStore writes it: JSON, with the message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """`headers` besides the content's type."""
        super().__init__(message)
        self.status = status
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self.body = json.dumps({"status": status, "message": message, "method": "GET"}).encode()


def asked_range(header: str, size: int) -> slice:
    """What a `Range` of one part asks for; 416 for what is not there."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if found is None or not any(found.groups()):
        raise Refusal(416, f"invalid range {header!r}")
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise Refusal(416, f"range {header!r} of {size} bytes", {"Content-Range": f"bytes */{size}"})
    return slice(start, stop)


def page_of(names: list[str], message: Mapping[str, object], most: int) -> dict[str, Any]:
    """A page of a listing; the names are in order."""
    prefix, after = str(message.get("prefix") or ""), str(message.get("continuation_token") or "")
    size = min(int(str(message.get("pagesize") or 0)) or most, most)
    left = [name for name in names if name.startswith(prefix) and name > after]
    return {
        "uuid": message.get("uuid") or "list-1",
        "continuation_token": left[size - 1] if len(left) > size else "",
        "entries": left[:size],
        "flags": 0,
    }
