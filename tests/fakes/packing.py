"""Archives for tests: members like a shard of images, zip and tar, the same bytes each time."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import zipfile
from typing import TYPE_CHECKING

import zstandard

from tests.fakes.content import data

if TYPE_CHECKING:
    from collections.abc import Mapping


def image_like(count: int, seed: int = 0, size: int = 20_000) -> dict[str, bytes]:
    """Members like those of a shard of images: `count` names in folders, sizes of `size` +- 25 %, hard to compress."""
    sizes = random.Random(seed)
    members = {}
    for number in range(count):
        name = f"class-{number % 10}/{number:06d}.jpg"
        members[name] = data(name, int(size * sizes.uniform(0.75, 1.25)), seed)
    return members


def zip_bytes(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive of `members` in this order, the same bytes each time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, body in members.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            archive.writestr(entry, body)
    return out.getvalue()


def tar_bytes(members: Mapping[str, bytes], compression: str = "", form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive of `members` in this order; `compression` is "", "gz" or "zst"."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, body in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return _compressed(out.getvalue(), compression)


def _compressed(body: bytes, compression: str) -> bytes:
    if compression == "gz":
        return gzip.compress(body, 6, mtime=0)
    if compression == "zst":
        return zstandard.compress(body)
    return body
