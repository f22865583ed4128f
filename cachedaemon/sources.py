"""The configured sources, each with its origin."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from cachedaemon.archives import kind_of
from cachedaemon.checksums import Vouched
from cachedaemon.config import Fetch, Source
from cachedaemon.errors import BadRequest, CacheDaemonError, UnknownSource
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref, Validators
from cachedaemon.origins import Origin, Stream, origin_of
from cachedaemon.origins.base import KEY
from cachedaemon.store import SourceMark
from cachedaemon_client.names import name_of, versioned

LOOK = 10.0
"""Seconds after which a source that is looked at counts as one that does not answer."""
LONGEST_KEY = 4096
"""Bytes of a key's UTF-8."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A source in force."""

    name: str
    settings: Source
    origin: Origin

    @property
    def direct(self) -> bool:
        """Whether readers may lease without asking: its shards never change."""
        return self.settings.revalidate == "never"

    def open(self, key: str, known: Validators | None) -> AbstractAsyncContextManager[Stream | None]:
        """See `Origin.open`."""
        return self.origin.open(key, known)

    def believes(self, age: float) -> bool:
        """Whether a shard may be given out without asking the origin, which was asked so many seconds ago."""
        said = self.settings.revalidate
        return said == "never" or (isinstance(said, float) and age < said)

    @property
    def outlasts(self) -> bool:
        """Whether what is here is given out while the origin cannot be asked: its word holds for some time anyway."""
        return isinstance(self.settings.revalidate, float)

    def until(self, seconds: float) -> float:
        """How much later than now the origin would have been asked, if its word held for `seconds` from now."""
        said = self.settings.revalidate
        return seconds - said if isinstance(said, float) else 0.0

    def name_of(self, key: str, digest: str) -> str:
        """The file name of a shard, or of the version of it that has this digest."""
        return name_of(key) if self.direct else versioned(name_of(key), digest)

    @property
    def mark(self) -> SourceMark:
        """What the shards on the disk depend on."""
        said = [self.settings.url, str(self.settings.urls), self.settings.archives, self.settings.etl or ""]
        if self.settings.endpoint:  # the same bucket of another service is another place
            said.append(self.settings.endpoint)
        digest = hashlib.sha256("\n".join(said).encode()).hexdigest()
        return SourceMark(self.name, digest, self.settings.archives, self.direct)

    def doubt(self) -> str | None:
        """What is probably not meant in its settings; None: nothing."""
        end = re.split("[?&#]", self.settings.url.partition(KEY)[2], maxsplit=1)[0]
        if self.settings.archives == "opaque" or kind_of(end) is None:
            return None
        return (
            f"source {self.name}: its url has {end!r} behind {KEY}, but what a shard is, the end of its key says: those whose "
            'keys do not end so count as plain files; let keys end so, or set archives = "opaque"'
        )

    async def trouble(self) -> str | None:
        """What is wrong with it now, as far as that can be told without a key; None: nothing."""
        try:
            async with asyncio.timeout(LOOK):
                await self.origin.look()
        except TimeoutError:
            return f"source {self.name}: it does not answer for {LOOK:g} s"
        except CacheDaemonError as cause:
            return str(cause)
        return None


def _origin(name: str, settings: Source, fetch: Fetch, metrics: Metrics) -> Origin:
    """Where the shards come from, with the manifest that vouches for them where there is one."""
    origin = origin_of(name, settings, fetch, metrics)
    return Vouched(name, origin, settings.checksums, metrics) if settings.checksums else origin


async def troubles(sources: dict[str, Source], fetch: Fetch) -> list[str]:
    """What is wrong or doubtful with sources not in force. The origins are asked all at once, and let go of again."""
    looked_at = [Configured(name, one, _origin(name, one, fetch, Metrics(""))) for name, one in sources.items()]
    try:
        doubts = [one.doubt() for one in looked_at]
        return [said for said in (*doubts, *await asyncio.gather(*(one.trouble() for one in looked_at))) if said]
    finally:
        for one in looked_at:
            await one.origin.close()


class Sources:
    """All sources by name. A reload replaces those that changed; these are closed when their flights have ended."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._all: dict[str, Configured] = {}

    def made(self, sources: dict[str, Source], fetch: Fetch, *, anew: bool) -> list[Configured]:
        """These sources, for `take`: those in force that are as they were, else new ones.

        `anew`: limits that all origins know have changed.
        """
        return [self._made(name, settings, fetch, anew=anew) for name, settings in sources.items()]

    def _made(self, name: str, settings: Source, fetch: Fetch, *, anew: bool) -> Configured:
        old = self._all.get(name)
        if old is not None and old.settings == settings and not anew:
            return old
        return Configured(name, settings, _origin(name, settings, fetch, self._metrics))

    def take(self, made: list[Configured]) -> list[Configured]:
        """Take these into force, and no others; those that were replaced."""
        before, self._all = self._all, {one.name: one for one in made}
        for one in made:
            if before.get(one.name) is not one:
                self._metrics.expect(one.name)
        return [old for name, old in before.items() if self._all.get(name) is not old]

    def __getitem__(self, name: str) -> Configured:
        """A source; `UnknownSource` names those there are."""
        try:
            return self._all[name]
        except KeyError:
            allowed = ", ".join(sorted(self._all)) or "none"
            raise UnknownSource(f"no source {name!r}: configured are {allowed}") from None

    def all(self) -> list[Configured]:
        """Every source."""
        return list(self._all.values())

    def limits(self) -> dict[str, int]:
        """Transfers at once, per source."""
        return {name: source.settings.concurrency for name, source in self._all.items()}

    def rates(self) -> dict[str, int]:
        """Bytes per second, per source; 0: no limit."""
        return {name: source.settings.bandwidth for name, source in self._all.items()}

    def shard(self, source: str, key: str) -> tuple[Configured, Ref]:
        """The source and the reference of a shard that is asked for; `BadRequest` for an impossible key."""
        configured = self[source]
        try:
            name_of(key)
        except ValueError as cause:
            raise BadRequest(f"source {source!r}: {cause}") from None
        if (length := len(key.encode())) > LONGEST_KEY:
            raise BadRequest(f"source {source!r}: a key of {length} bytes; allowed are {LONGEST_KEY}")
        configured.origin.check_key(key)
        return configured, Ref(source, key)
