"""The thin client of cachedaemon: leases local shards without a round trip. Standard library only."""

from typing import TYPE_CHECKING, Any

from cachedaemon_client.cache import ShardCache
from cachedaemon_client.errors import (
    BadArchive,
    BadRequest,
    CacheError,
    CacheFull,
    Corrupt,
    DaemonUnavailable,
    LocksNotShared,
    NoSpace,
    OriginFailed,
    PlanWarning,
    Refused,
    ShardMissing,
    SourceUnknown,
    TooLarge,
    TooMany,
    WaitExpired,
)
from cachedaemon_client.job import Job
from cachedaemon_client.plan import Plan
from cachedaemon_client.shard import Shard

if TYPE_CHECKING:
    from cachedaemon_client.sampler import ShardSampler, sample_order, stream, worker_slice

__all__ = [
    "BadArchive",
    "BadRequest",
    "CacheError",
    "CacheFull",
    "Corrupt",
    "DaemonUnavailable",
    "Job",
    "LocksNotShared",
    "NoSpace",
    "OriginFailed",
    "Plan",
    "PlanWarning",
    "Refused",
    "Shard",
    "ShardCache",
    "ShardMissing",
    "ShardSampler",
    "SourceUnknown",
    "TooLarge",
    "TooMany",
    "WaitExpired",
    "sample_order",
    "stream",
    "worker_slice",
]

_SAMPLERS = ("ShardSampler", "sample_order", "stream", "worker_slice")


def __getattr__(name: str) -> Any:
    """The samplers, imported when they are first asked for: a program that only opens shards starts without them."""
    if name in _SAMPLERS:
        from cachedaemon_client import sampler  # noqa: PLC0415 - it is the point

        return getattr(sampler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
