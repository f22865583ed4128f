"""What the calls of the API answer, as types: the description of the API and its reference are made from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on

_exactly = with_config(ConfigDict(extra="forbid", use_attribute_docstrings=True))
"""Nothing else is in an answer, and what its members mean stands below them."""

Archives = Annotated[str, Field(json_schema_extra={"enum": ["index", "unpack", "opaque"]})]
Policy = Annotated[str, Field(json_schema_extra={"enum": ["auto", "lru"]})]


@_exactly
class SourceHello(TypedDict):
    """A source, as clients need to know it."""

    url: str
    """Without user, password and query."""
    archives: Archives
    direct: bool
    """Whether a hit may be taken without the daemon: false where the source is asked for versions."""


@_exactly
class Hello(TypedDict):
    """Answer to `GET /v1/hello`."""

    version: str
    protocol: int
    cache_dir: str
    sources: dict[str, SourceHello]
    """By name."""


@_exactly
class Full(TypedDict):
    """Why nothing could make room when it was last tried."""

    leased: int
    """Shards that readers hold."""
    in_transfer: int
    waiting: int
    """Transfers that wait for room."""


@_exactly
class CacheStatus(TypedDict):
    """What is here, and how much may be."""

    shards: int
    bytes: int
    """Allocated on the disk."""
    reserved_bytes: int
    """For transfers under way."""
    max_shards: int
    """0: none."""
    max_bytes: int
    """0: none."""
    policy: Policy
    regret: float | None
    """Bytes fetched while plans ran, over the least that could have been; null before a plan has ended."""
    held_by_plans: int
    """Shards that the consumers of all plans hold at once."""
    full: Full | None
    """Null while there is room, or something could go."""


@_exactly
class Fetch(TypedDict):
    """A transfer, under way or waiting for its turn."""

    source: str
    key: str
    bytes: int
    """That have come."""
    size: int | None
    """Null before the origin has said it."""


@_exactly
class PlanStatus(TypedDict):
    """A plan that is in force."""

    id: str
    source: str
    keys: int
    """How many."""
    position: int
    """Index of the next key to open."""
    state: Literal["running", "idle"]


@_exactly
class SourceStatus(TypedDict):
    """A source, and what of it is here."""

    url: str
    """Without user, password and query."""
    urls: str | None
    """The file of whole URLs, where there is one."""
    archives: Archives
    direct: bool
    shards: int
    bytes: int
    fetching: int
    """Transfers under way or queued."""
    regret: float | None
    connections: int
    """That the origin is given now: fewer than `concurrency` while it is overloaded."""


@_exactly
class Status(TypedDict):
    """Answer to `GET /v1/status`."""

    version: str
    uptime: float
    """Seconds."""
    health: dict[str, str]
    """What is wrong, by area; empty when all is well."""
    cache: CacheStatus
    fetches: list[Fetch]
    waiters: int
    """Requests and jobs that wait for shards on their way."""
    plans: list[PlanStatus]
    sources: dict[str, SourceStatus]
    """By name."""


@_exactly
class Acquired(TypedDict):
    """Answer to `POST /v1/acquire`."""

    path: str
    """Of a file; of a folder where the source unpacks. Lock it, shared, within `cache.grace`."""
    size: int
    """Bytes of the file, or of all files in the folder."""
    result: Literal["hit", "miss", "joined"]
    """It was here; it was fetched; it was being fetched already."""


@_exactly
class Begun(TypedDict):
    """Answer to `POST /v1/prefetch` and `POST /v1/verify`."""

    job: str
    """For `GET /v1/jobs/{job}`."""


@_exactly
class JobError(TypedDict):
    """What went wrong with one shard."""

    source: str
    key: str
    code: str
    """As of an error."""
    message: str


@_exactly
class _Counts(TypedDict):
    job: str
    state: Literal["running", "done", "partial", "failed"]
    """`partial`: the rest would displace what this job brought and nobody has read yet."""
    total: int
    """Shards."""
    done: int
    """Of a verification: well in the end, or gone meanwhile."""
    failed: int
    bytes: int
    """That have come; of a verification, that were hashed."""
    errors: list[JobError]
    """The first hundred."""


@_exactly
class JobCounts(_Counts, total=False):
    """Answer to `GET /v1/jobs/{job}`, for an hour after the job's end. The last four are a verification's."""

    damaged: int
    fetched_again: int
    """Of the damaged ones."""
    gone: int
    """Evicted before their turn came."""
    absent: int
    """Not here when they were asked for."""


@_exactly
class _PlanFile(TypedDict):
    file: str
    """Hold a shared lock on it: when that is lost, the plan ends."""


@_exactly
class Planned(_PlanFile, total=False):
    """Answer to `PUT /v1/plans/{id}`."""

    warning: str
    """The consumers of all plans hold more shards than there is room for: they may wait for each other for ever."""


@_exactly
class ShardRow(TypedDict):
    """One shard that is here."""

    source: str
    key: str
    size: int
    state: Literal["ready", "suspect"]
    """`suspect`: left by an unclean boot, and not checked yet."""
    leased: bool
    """Whether a reader holds it."""
    last_used: float
    """Unix seconds."""
    path: str


@_exactly
class ShardPage(TypedDict):
    """Answer to `GET /v1/shards`."""

    shards: list[ShardRow]
    next: str | None
    """`after` of the next page; null on the last."""


@_exactly
class Health(TypedDict):
    """Answer to `GET /healthz`."""

    status: Literal["ok", "degraded"]
    reasons: dict[str, str]
    """What is wrong, by area."""


@_exactly
class Ready(TypedDict):
    """Answer to `GET /readyz`."""

    status: Literal["ready", "stopping"]


@_exactly
class DiskGlance(TypedDict):
    """The file system that the cache is on, in bytes."""

    total: int
    free: int
    kept: int
    """What is left to others."""


@_exactly
class CacheGlance(CacheStatus):
    """As in `GET /v1/status`, and more."""

    leased: int
    """Of the shards that were looked at."""
    disk: DiskGlance | None
    """Null while the disk says nothing."""


# Two whose members are named by words of Python's own.
Transfer = TypedDict(
    "Transfer",
    {
        "source": str,
        "key": str,
        "bytes": int,
        "size": int | None,
        "for": Literal["reader", "plan", "prefetch"],
        "waiters": int,
        "room": bool,
        "state": str,
    },
)
ToCome = TypedDict("ToCome", {"source": str, "key": str, "in": float})
for _kind in (Transfer, ToCome):
    with_config(ConfigDict(extra="forbid"))(_kind)


@_exactly
class PlanGlance(PlanStatus):
    """As in `GET /v1/status`, and more."""

    pace: float | None
    """Uses a second."""
    ready: int
    """Next uses that are here without a gap."""


@_exactly
class SourceGlance(TypedDict):
    """A source, without its URL."""

    name: str
    shards: int
    bytes: int
    fetching: int
    waiters: int
    plans: int
    connections: int
    most_connections: int
    rate: int
    """Bytes a second, of the last ten seconds."""
    failures: int
    """Tries that failed in the last minute."""
    regret: float | None


@_exactly
class Point(TypedDict):
    """What happened in a few seconds up to a moment."""

    at: float
    """Unix seconds."""
    seconds: float
    asked: int
    hits: int
    bytes: int
    waiters: int
    """At that moment."""
    regret: float | None


@_exactly
class _Map(TypedDict):
    each: int
    """Shards of a group; 1: each has a place of its own."""


@_exactly
class Map(_Map, total=False):
    """All shards in the order of their coming."""

    shards: list[tuple[str, str, Literal["l", "u", "s", "r", "x"], int]]
    """Source, key, state and size: leased, unread, wanted soon, resident, to be checked."""
    groups: list[tuple[int, int, int, int, int]]
    """Of each group: how many shards, and how many are leased, unread, wanted soon, to be checked."""


@_exactly
class Glance(TypedDict):
    """Answer to `GET /v1/glance`. Its form is the page's, and may change with it."""

    at: float
    """Unix seconds."""
    host: str
    version: str
    uptime: float
    health: dict[str, str]
    cache: CacheGlance
    waiters: int
    """Requests that wait."""
    mean_wait: float | None
    """Seconds, of those that were answered in the last minute."""
    transfers: list[Transfer]
    """The first of them."""
    transfers_in_all: int
    plans: list[PlanGlance]
    """The first of them."""
    plans_in_all: int
    to_come: list[ToCome]
    """What plans want next and is neither here nor on its way, with the seconds until then."""
    sources: list[SourceGlance]
    map: Map
    points: list[Point]
