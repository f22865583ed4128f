"""An origin whose objects a manifest of digests vouches for, which lies beside them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

from cachedaemon.digests import Hashes
from cachedaemon.errors import CacheDaemonError, Corrupt, Cut, OriginRefused, OriginUnavailable
from cachedaemon.manifests import parse
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins import Origin, Stream

MOST = 64 << 20
"""Bytes of a manifest: half a million shards."""
AGAIN = 2.0
"""Seconds for which a key that is not in the manifest counts as not listed: then it is read again."""


class Vouched:
    """An `Origin` that adds what the manifest says to the digests of each object, and refuses what is not in it.

    The manifest is an object of the same origin. It is read when it is first needed, again for a key that it does not
    list, and again after bytes that were not what it says; who needs it meanwhile waits for the same reading. The
    manifest itself can be opened too.
    """

    def __init__(self, source: str, origin: Origin, manifest: str, metrics: Metrics) -> None:
        self._source = source
        self._origin = origin
        self._key = manifest
        self._received = metrics.origin_bytes.labels(source)
        self._listed: dict[str, Digest] | None = None
        self._validators: Validators | None = None
        self._began = 0.0
        """Monotonic seconds; when the last reading began that ended well."""
        self._doubted = 0.0
        """Monotonic seconds; when an object last was not what the manifest says."""
        self._reading: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """As the origin's own."""
        await self._origin.look()

    def check_key(self, key: str) -> None:
        """As the origin's own."""
        self._origin.check_key(key)

    async def keys(self) -> list[str]:
        """All that the manifest lists, in its order: nothing else can be had."""
        listed = self._listed
        return list(await self._latest() if listed is None or self._is_old() else listed)

    @contextlib.asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[Stream | None]:
        """An object, with the listed digest among its own. Raises `OriginRefused` for a key that is not listed too."""
        digests = await self._digests(key)
        async with self._origin.open(key, known) as stream:
            if stream is not None and known is not None:
                self._doubted = time.monotonic()  # another version has come, and with it another line
                digests = await self._digests(key)
            if stream is not None:
                stream.digests = (*stream.digests, *digests)
            try:
                yield stream
            except Corrupt:
                self._doubted = time.monotonic()
                raise

    async def close(self) -> None:
        """End a reading under way, and close the origin."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._origin.close()

    async def _digests(self, key: str) -> tuple[Digest, ...]:
        """What the manifest says of an object; of itself it says nothing."""
        if key == self._key:
            return ()
        ref = Ref(self._source, key)
        listed = self._listed
        if listed is None or self._began <= self._doubted or (key not in listed and self._is_old()):
            with _of_manifest(ref):
                listed = await self._latest()
        if key not in listed:
            raise OriginRefused(
                f"{ref}: the manifest {self._key!r} does not list it: nothing says what its bytes must be"
            )
        return (listed[key],)

    def _is_old(self) -> bool:
        return time.monotonic() >= self._began + AGAIN

    async def _latest(self) -> dict[str, Digest]:
        """The manifest, read now. Whoever comes while it is read shares what becomes of that, and may leave at any time."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name=f"manifest of {self._source}")
            self._reading.add_done_callback(self._ended)
        await asyncio.shield(self._reading)
        assert self._listed is not None
        return self._listed

    def _ended(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waited has it; perhaps everybody left

    async def _read(self) -> None:
        began = time.monotonic()
        # Only these tell versions apart for certain: a manifest may be written twice within the second of a date.
        certain = self._validators is not None and (self._validators.etag or self._validators.version)
        async with self._origin.open(self._key, self._validators if certain else None) as stream:
            if stream is not None:
                self._listed = await self._parsed(await self._bytes_of(stream))
                self._validators = stream.validators
        self._began = began

    async def _bytes_of(self, stream: Stream) -> bytes:
        """The whole manifest, with what the origin says of its own bytes checked."""
        self._check_size(stream.size or 0)
        taken, hashes = bytearray(), Hashes(digest.kind for digest in stream.digests)
        async for pieces in stream.pieces():
            for piece in pieces:
                hashes.update(piece)
                taken += piece
                self._received.inc(len(piece))
            self._check_size(len(taken))
        if stream.size not in (None, len(taken)):
            raise Cut(f"{self._source}/{self._key}: got {len(taken)} of {stream.size} bytes")
        if wrong := hashes.mismatch(stream.digests):
            raise Corrupt(f"{self._source}/{self._key}: {wrong}")
        return bytes(taken)

    def _check_size(self, size: int) -> None:
        if size > MOST:
            raise OriginRefused(f"{self._source}/{self._key}: a manifest may have {MOST} bytes at most; this has more")

    async def _parsed(self, data: bytes) -> dict[str, Digest]:
        """In a thread: half a million lines take some seconds."""
        folder = self._key[: self._key.rfind("/") + 1]
        try:
            return await asyncio.to_thread(parse, data, folder)
        except ValueError as cause:
            raise Corrupt(f"{self._source}/{self._key}: {cause}") from None


@contextlib.contextmanager
def _of_manifest(ref: Ref) -> Iterator[None]:
    """What keeps the manifest from being read keeps the shard from being fetched; the shard is not missing for that."""
    try:
        yield
    except OriginUnavailable as cause:
        raise type(cause)(f"{ref}: its manifest: {cause}", retry_after=cause.retry_after) from cause
    except Corrupt as cause:
        raise Corrupt(f"{ref}: its manifest: {cause}") from cause
    except CacheDaemonError as cause:
        raise OriginRefused(f"{ref}: its manifest: {cause}") from cause
