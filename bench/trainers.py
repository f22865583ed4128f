"""Trainers of the benches of plans: processes of their own, which open shards in a known order and work on each for a while.

A side is an origin, perhaps a daemon, and its trainers. Sides run at once, each with an origin of its own: nearly all of
their time is sleep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from side_by_side import Daemon, NotMeasured, cpu

from cachedaemon_client import ShardSampler
from tests.fakes.origin import OriginProcess, shard_name
from tests.fakes.readers import Reader

START = """
import http.client, collections
from concurrent.futures import ThreadPoolExecutor
keys, step, lag = ARG["keys"], ARG["step"], ARG["lag"]
say("ready")
hear()
time.sleep(lag)
clock = time.monotonic
uses = []
began = clock()
def worked(asked, is_hit):
    # A step ends when it is due, not later for the machine's other work: what it took is what is counted.
    got = clock()
    time.sleep(step)
    uses.append((asked - began, got - asked, clock() - got, is_hit))
"""
PLANNED = (
    START
    + """
with ShardCache("s") as cache, cache.plan(keys) as plan:
    shards, asked = iter(plan), clock()
    for _ in keys:
        shard = next(shards)
        worked(asked, shard.hit)
        asked = clock()
    shards.close()
say([began, uses])
"""
)
DIRECT = (
    START
    + """
links = threading.local()
def get(key):
    if not hasattr(links, "one"):
        links.one = http.client.HTTPConnection("127.0.0.1", ARG["port"])
    links.one.request("GET", "/" + key)
    return links.one.getresponse().read()
with ThreadPoolExecutor(ARG["ahead"]) as pool:
    begun = collections.deque()
    coming = iter(keys)
    for _ in keys:
        asked = clock()
        while len(begun) < ARG["ahead"] and (key := next(coming, None)) is not None:
            begun.append(pool.submit(get, key))
        begun.popleft().result()
        worked(asked, False)
say([began, uses])
"""
)


@dataclass(frozen=True)
class Link:
    """What lies between the origin and this node."""

    size: int
    """Bytes of each shard."""
    latency: float = 0.0
    """Seconds before each answer."""
    rate: float | None = None
    """Bytes a second over all connections."""

    def origin(self, shards: int) -> OriginProcess:
        """An origin behind it."""
        limits = {} if self.rate is None else {"link_bps": self.rate}
        return OriginProcess(objects=shards, size=self.size, latency=self.latency, **limits)


@dataclass(frozen=True)
class Use:
    """One shard that a trainer asked for. Times in seconds."""

    at: float
    """On the clock that all processes of the machine share."""
    waited: float
    worked: float
    is_hit: bool
    key: str


@dataclass
class Ran:
    """What came of a side."""

    jobs: list[list[Use]]
    """By trainer, in the order of its plan."""
    transfers: int
    sent: int
    """Bytes of bodies."""
    busy: float = 0.0
    """Seconds of the daemon's CPU."""

    @property
    def uses(self) -> int:
        """Of all trainers."""
        return sum(len(job) for job in self.jobs)

    @property
    def hits(self) -> float:
        """The part of the uses that found their shard local."""
        return sum(use.is_hit for job in self.jobs for use in job) / self.uses

    def utilisation(self, first: int = 0) -> float:
        """The part of its time that the first trainer worked, from its use number `first` on."""
        uses = self.jobs[0][first:]
        worked = sum(use.worked for use in uses)
        return worked / (worked + sum(use.waited for use in uses))


@dataclass
class Side:
    """How trainers get their shards; `cap` None: straight from the origin, `ahead` requests at once."""

    name: str
    shards: int
    link: Link
    orders: Sequence[Sequence[str]]
    """The keys of each trainer."""
    step: float
    """Seconds that a trainer works on one shard."""
    cap: int | None = None
    policy: str = "auto"
    ahead: int = 1
    lag: float = 0.0
    """Seconds by which each trainer begins later than the one before."""
    _readers: list[Reader] = field(default_factory=list)
    _daemon: Daemon | None = None
    _origin: OriginProcess | None = None

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Everything started, the trainers wait for the word."""
        with contextlib.ExitStack() as stack:
            self._origin = stack.enter_context(self.link.origin(self.shards))
            if self.cap is not None:
                how = {"max_shards": self.cap, "policy": self.policy, "scan": "1h", "check": False}
                self._daemon = stack.enter_context(Daemon({"s": self._origin.url}, **how))
            for number, keys in enumerate(self.orders):
                arg = {"keys": keys, "step": self.step, "lag": number * self.lag}
                arg |= {"port": self._origin.port, "ahead": self.ahead}
                snippet = DIRECT if self.cap is None else PLANNED
                self._readers.append(stack.enter_context(Reader(self._daemon, snippet, arg)))
            for reader in self._readers:
                reader.line()
            yield

    def go(self) -> None:
        """The word."""
        for reader in self._readers:
            reader.tell()

    def ended(self, seconds: float) -> Ran:
        """What came of it, once all trainers are done; NotMeasured when something was not as it must be."""
        jobs = []
        for keys, reader in zip(self.orders, self._readers, strict=True):
            began, uses = reader.line(seconds)
            jobs.append([Use(began + use[0], *use[1:], key) for use, key in zip(uses, keys, strict=True)])
        if self._origin is None:
            raise NotMeasured(f"{self.name} did not begin")
        said = self._origin.stats()
        return Ran(jobs, said["gets"], said["sent"], cpu(self._daemon.pid) if self._daemon else 0.0)


def play(sides: Sequence[Side]) -> list[Ran]:
    """All sides at once, from start to end."""
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.enter_context(side.ready())
        for side in sides:
            side.go()
        longest = max(len(keys) * side.step for side in sides for keys in side.orders)
        return [side.ended(60 + 20 * longest) for side in sides]


def epochs(shards: int, count: int, seed: int = 0) -> list[str]:
    """The keys of so many shuffled epochs, as the client's sampler has them."""
    keys = [shard_name(number) for number in range(shards)]
    return ShardSampler(keys, seed=seed).upcoming(count * shards)
