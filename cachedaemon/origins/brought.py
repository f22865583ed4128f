"""Origins of other distributions, held to the contract.

What one raises besides the daemon's errors is told as a failure of its own, and what it hands on has the types that it must
have. Of a foreign exception no text is shown, which may hold a secret.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cachedaemon.config import Fetch, Source, origin_class
from cachedaemon.digests import KINDS
from cachedaemon.errors import CacheDaemonError, ConfigError, OriginRefused, OriginUnavailable
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins.base import Origin, Piece, Stream

log = logging.getLogger(__name__)

T = TypeVar("T")


def brought(scheme: str, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> Origin:
    """The origin that an entry point makes for this source. Raises ConfigError where it makes none."""
    try:
        made: Origin = origin_class(scheme)(name, source, fetch, metrics)
    except CacheDaemonError:
        raise
    except Exception as cause:
        raise ConfigError(f"sources.{name}: the origin for {scheme} cannot be made ({type(cause).__name__})") from cause
    return Brought(name, made)


class Brought:
    """An origin as it was made."""

    def __init__(self, name: str, origin: Origin) -> None:
        self._name = name
        self._origin = origin

    async def look(self) -> None:
        """As the origin's own."""
        with _told(f"source {self._name}"):
            await self._origin.look()

    def check_key(self, key: str) -> None:
        """As the origin's own."""
        with _told(Ref(self._name, key)):
            self._origin.check_key(key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[BroughtStream | None]:
        """As the origin's own."""
        ref = Ref(self._name, key)
        async with _within(ref, lambda: self._origin.open(key, known)) as stream:
            yield None if stream is None else BroughtStream(ref, stream)

    async def keys(self) -> list[str]:
        """As the origin's own."""
        with _told(Ref(self._name, "*")):
            keys: Any = await self._origin.keys()
            _must_be(isinstance(keys, list) and all(isinstance(key, str) for key in keys), "keys")
        return list[str](keys)

    async def close(self) -> None:
        """Close the origin; one that fails at that keeps nobody."""
        try:
            await self._origin.close()
        except Exception as cause:  # noqa: BLE001 - it can be anything
            log.warning("source %s: its origin fails while it is closed (%s)", self._name, _place_of(cause))


class BroughtStream:
    """A stream of such an origin."""

    def __init__(self, ref: Ref, stream: Stream) -> None:
        self._ref = ref
        self._stream = stream
        with _told(ref):
            _check(stream)
            self.size: int | None = stream.size
            self.validators = stream.validators
            self.digests: tuple[Digest, ...] = stream.digests
            self.has_parts = bool(stream.has_parts)

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """As the stream's own."""
        return _poured(self._ref, self._stream.pieces)

    @asynccontextmanager
    async def part(self, start: int, stop: int) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """As the stream's own."""
        async with _within(self._ref, lambda: self._stream.part(start, stop)) as pieces:
            yield _poured(self._ref, lambda: pieces)


async def _poured(ref: Ref, begin: Callable[[], AsyncIterator[list[Piece]]]) -> AsyncIterator[list[Piece]]:
    with _told(ref):
        pieces = begin()
        try:
            batch: Any
            async for batch in pieces:
                _must_be(isinstance(batch, list) and all(isinstance(one, _PIECES) for one in batch), "pieces")
                yield batch
        finally:
            if close := getattr(pieces, "aclose", None):
                await close()


_PIECES = (bytes, bytearray, memoryview)


def _check(stream: Any) -> None:
    size, validators, digests = stream.size, stream.validators, stream.digests
    _must_be(size is None or (type(size) is int and size >= 0), "size")
    _must_be(isinstance(validators, Validators) and _are_texts(validators), "validators")
    _must_be(
        isinstance(digests, tuple) and all(isinstance(one, Digest) and one.kind in KINDS for one in digests), "digests"
    )


def _are_texts(validators: Validators) -> bool:
    said = (validators.etag, validators.version, validators.modified)
    return all(one is None or isinstance(one, str) for one in said)


def _must_be(good: bool, what: str) -> None:  # noqa: FBT001 - it is what is asserted
    if not good:
        raise _Broken(what)


class _Broken(Exception):
    """The origin hands on something of a wrong type."""


@asynccontextmanager
async def _within(ref: Ref, begin: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
    """The origin's block. What is raised within it goes on as it is, whatever the origin makes of that."""
    passing: BaseException | None = None
    with _told(ref):
        try:
            async with begin() as given:
                try:
                    yield given
                except BaseException as cause:
                    passing = cause
                    raise
        except Exception:
            if passing is None:
                raise
    if passing is not None:
        raise passing


@contextmanager
def _told(what: Ref | str) -> Iterator[None]:
    """The daemon's errors go on; any other becomes one: an outage where it is the system's, else final."""
    try:
        yield
    except CacheDaemonError:
        raise
    except _Broken as cause:
        raise OriginRefused(f"{what}: its origin breaks the contract of origins in its {cause}") from cause
    except OSError as cause:
        raise OriginUnavailable(f"{what}: its origin fails ({_place_of(cause)})") from cause
    except Exception as cause:
        raise OriginRefused(f"{what}: its origin fails ({_place_of(cause)})") from cause


def _place_of(cause: Exception) -> str:
    """Such as `KeyError in their_origin.py, line 12`, as far as it was raised in code of theirs."""
    theirs = [at for at in traceback.extract_tb(cause.__traceback__) if at.filename not in _NOT_THEIRS]
    where = f" in {Path(theirs[-1].filename).name}, line {theirs[-1].lineno}" if theirs else ""
    return type(cause).__name__ + where


_NOT_THEIRS = (__file__, contextlib.__file__)
