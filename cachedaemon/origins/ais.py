"""Objects of an AIStore cluster, by its native API (docs/http_api.md of AIStore): a gateway and, behind it, the targets.

The checksum that the cluster keeps of an object tells its versions apart, and is checked by whoever takes the bytes. What
a transformation (ETL) makes of an object has neither checksum nor parts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp

from cachedaemon.config import Fetch, Source, ais_url
from cachedaemon.errors import CacheDaemonError, Changed, Missing, NoParts, OriginRefused, OriginUnavailable
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.aiscluster import Asked, Cluster
from cachedaemon.origins.base import Piece, is_still, refuse_dots
from cachedaemon.origins.body import Body
from cachedaemon.origins.refusals import no_answer, refusal
from cachedaemon.origins.webstream import check_range, just

PART = frozenset({200, 206, 416})
"""What a request for a part may be answered: the part, the whole, another length."""
_WHOLE = frozenset({200})
FILLING = 1.0
"""Seconds after which an object that somebody else is filling is asked for again: the target had waited already."""
_DIGESTS = {
    "xxhash": "xxh64", "xxhash2": "xxh64", "md5": "md5", "crc32c": "crc32c", "sha256": "sha256", "sha512": "sha512",
}  # fmt: skip
"""AIStore's words for checksums (cmn/cos/cksum.go); both xxhashes are XXH64, by two libraries."""
_STATUS, _FOLDER = 0x1F, 1 << 8
"""Bits of a listed name's flags: how it is misplaced, if at all, and that it is a folder (api/apc/lsmsg.go)."""
_NO_BUCKET = re.compile(r'bucket "[^"]*" (does not exist|not found)')
_MOST_SAID = 4096
"""Bytes of an error's body that are looked at."""

Again = Callable[[Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]
"""Asks for the object once more, from the gateway on, with further request headers; lets statuses of `PART` pass."""


class AisOrigin:
    """Objects of one bucket, whose names begin and end as the source's URL says."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._url = ais_url(source.url)
        self._etl = source.etl
        self._revalidates = source.revalidate != "never"
        self._cluster = Cluster(name, source, fetch, metrics)

    async def look(self) -> None:
        """Whether the gateway knows the bucket, and the token is good for it."""
        what = f"source {self._name}"
        async with self._cluster.answer(what, Asked(self._bucket(), "HEAD")) as response:
            if response.status == 404:
                raise OriginRefused(f"{what}: the cluster has no bucket {self._url.bucket!r}")
            if response.status != 200:
                raise refusal(what, response.status, response.headers)

    def check_key(self, key: str) -> None:
        """No key climbs out of the names that begin as the source's."""
        refuse_dots(self._name, key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[AisStream | None]:
        """A GET; where a version is known, a HEAD before it, since a GET has no condition here."""
        ref = Ref(self._name, key)
        now = await self._described(ref) if known is not None or (self._etl and self._revalidates) else Validators()
        if is_still(known, now):
            yield None
        elif self._etl:
            async with self._got(ref, Asked(self._object(key, etl_name=self._etl))) as response:
                yield AisStream(ref, response, self._again(ref), self._cluster.stall).transformed(now)
        else:
            async with self._got(ref, Asked(self._object(key))) as response:
                stream = AisStream(ref, response, self._again(ref), self._cluster.stall)
                yield None if is_still(known, stream.validators) else stream

    def _again(self, ref: Ref) -> Again:
        return lambda headers: self._got(ref, Asked(self._object(ref.key), headers=headers), good=PART)

    async def _described(self, ref: Ref) -> Validators:
        """Of the object as it is stored; none where the cluster cannot say. The GET that follows tells why."""
        async with self._cluster.answer(ref, Asked(self._object(ref.key), "HEAD")) as response:
            return validators_of(response) if response.status == 200 else Validators()

    @asynccontextmanager
    async def _got(
        self, ref: Ref, asked: Asked, *, good: frozenset[int] = _WHOLE
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._cluster.answer(ref, asked) as response:
            if response.status not in good:
                raise await self._refusal(ref, response)
            yield response

    async def _refusal(self, ref: Ref, response: aiohttp.ClientResponse) -> CacheDaemonError:
        """What the answer says; a bucket or a transformation that is not there does not make the object missing."""
        if response.status == 409:
            return OriginUnavailable(f"{ref}: somebody is filling the object", retry_after=FILLING)
        known = refusal(ref, response.status, response.headers)
        if not isinstance(known, Missing):
            return known
        try:
            async with asyncio.timeout(self._cluster.stall):
                said = await _words(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            return no_answer(ref, cause)
        if _NO_BUCKET.search(said):
            return OriginRefused(f"{ref}: the cluster has no bucket {self._url.bucket!r}")
        if self._etl and "etl" in said.lower():
            return OriginRefused(f"{ref}: the cluster does not run the transformation {self._etl!r}")
        return known

    async def keys(self) -> list[str]:
        """All keys, page after page; what the cluster keeps out of its place is left out."""
        before, after = self._url.before, self._url.after
        found = [
            name[len(before) : len(name) - len(after)]
            async for name in self._names()
            if name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
        ]
        return sorted(found)

    async def _names(self) -> AsyncIterator[str]:
        what, uuid, token = f"source {self._name}", "", ""
        while True:
            value = {"prefix": self._url.before, "props": "name", "uuid": uuid, "continuation_token": token}
            message = json.dumps({"action": "list", "name": "", "value": {**value, "pagesize": 0, "flags": "0"}})
            page = await self._page(what, message.encode())
            for name in page.names:
                yield name
            last, uuid, token = token, page.uuid, page.token
            if not token:
                return
            if token == last:
                raise OriginUnavailable(f"{what}: the cluster lists the same page again and again")

    async def _page(self, what: str, message: bytes) -> Page:
        async with self._cluster.answer(what, Asked(self._bucket(), body=message)) as response:
            if response.status != 200:
                raise refusal(what, response.status, response.headers)
            try:
                return page_of(await response.json(content_type=None))
            except (aiohttp.ClientError, TimeoutError, OSError) as cause:
                raise no_answer(what, cause) from cause
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
                raise OriginUnavailable(f"{what}: what the cluster sends is no page of a listing") from cause

    def _bucket(self) -> str:
        return f"buckets/{self._url.bucket}?{urlencode(self._named())}"

    def _object(self, key: str, **more: str) -> str:
        """Who revalidates asks for the backend's latest version."""
        name = quote(f"{self._url.before}{key}{self._url.after}", safe="/")
        latest = {"latest-ver": "true"} if self._revalidates else {}
        return f"objects/{self._url.bucket}/{name}?{urlencode(self._named() | latest | more)}"

    def _named(self) -> dict[str, str]:
        """What a bucket is named by, besides its name."""
        namespace = {"namespace": self._url.namespace} if self._url.namespace else {}
        return {"provider": self._url.provider, **namespace}

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()


async def _words(response: aiohttp.ClientResponse) -> str:
    """The beginning of an error's body, quotes as they were before they were put into JSON."""
    said = b""
    while len(said) < _MOST_SAID and (piece := await response.content.read(_MOST_SAID - len(said))):
        said += piece
    return said.decode(errors="replace").replace('\\"', '"')


class AisStream:
    """The object of a `200`. `stall`: seconds that bytes may be waited for, None for no limit."""

    def __init__(self, ref: Ref, response: aiohttp.ClientResponse, again: Again, stall: float | None) -> None:
        self._ref = ref
        self._again = again
        self._stall = stall
        self._body = Body(ref, response, stall)
        self.size = self._body.length
        self.validators = validators_of(response)
        self.digests = digests_of(response)
        self.has_parts = self.size is not None and self.validators.etag is not None

    def transformed(self, source: Validators) -> AisStream:
        """The same as what was made of a stored object with these validators."""
        self.validators, self.digests, self.has_parts = source, (), False
        return self

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The object's bytes."""
        return self._body.pieces()

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """These bytes, by a request from the gateway on; they come with the checksum of the whole object."""
        if not self.has_parts:
            raise NoParts(f"{self._ref}: the cluster gives no parts of this version")
        async with self._again({"Range": f"bytes={start}-{stop - 1}"}) as response:
            self._check_part(response, start, stop)
            yield just(self._ref, Body(self._ref, response, self._stall), stop - start)

    def _check_part(self, response: aiohttp.ClientResponse, start: int, stop: int) -> None:
        """`Changed` or `NoParts` unless this is that part of this version.

        In a bucket with `checksum.enable_read_range` a part comes with a checksum of its own, which says nothing of the
        version; the number of the version alone is none, since it begins anew when an object is deleted and put again.
        """
        now = validators_of(response)
        if response.status == 416 or now.version != self.validators.version:
            raise Changed(f"{self._ref}: the cluster has another version by now")
        check_whole = now.etag == self.validators.etag
        if not check_whole and (response.status == 200 or now.version is None):
            raise Changed(f"{self._ref}: the cluster has another version by now")
        if not check_whole:
            raise NoParts(f"{self._ref}: the cluster sends a part without the checksum of the whole")
        check_range(self._ref, response, (start, stop - 1, self.size))


class Page(NamedTuple):
    """Some of the names that a cluster lists, and what the next page is asked for with; no token: there is none."""

    names: list[str]
    uuid: str
    token: str


def page_of(said: dict[str, Any]) -> Page:
    """A page as its JSON says it (cmn/objlist.go), without folders and what is not in its place.

    ValueError, KeyError, TypeError or AttributeError where it says nothing of the kind.
    """
    entries = said.get("entries") or []
    names = [str(entry["name"]) for entry in entries if not int(entry.get("flags", 0)) & (_STATUS | _FOLDER)]
    return Page(names, str(said["uuid"]), str(said["continuation_token"]))


def validators_of(response: aiohttp.ClientResponse) -> Validators:
    """The checksum, with its type, and the version; None for what the object has not."""
    said = _checksum(response)
    return Validators(etag=said and ":".join(said), version=response.headers.get("Ais-Version") or None)


def digests_of(response: aiohttp.ClientResponse) -> tuple[Digest, ...]:
    """The checksum as something that can be checked; none for a type that is not known."""
    kind, value = _checksum(response) or ("", "")
    if kind not in _DIGESTS or not re.fullmatch("(?:[0-9a-f]{2})+", value):
        return ()
    return (Digest(_DIGESTS[kind], bytes.fromhex(value)),)


def _checksum(response: aiohttp.ClientResponse) -> tuple[str, str] | None:
    kind = response.headers.get("Ais-Checksum-Type", "").strip().lower()
    value = response.headers.get("Ais-Checksum-Value", "").strip().lower()
    return (kind, value) if value and kind not in ("", "none") else None
