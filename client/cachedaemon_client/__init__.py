"""The thin client of cachedaemon: leases local shards without a round trip. Standard library only."""

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
    Refused,
    ShardMissing,
    SourceUnknown,
    TooLarge,
    WaitExpired,
)
from cachedaemon_client.job import Job
from cachedaemon_client.plan import Plan
from cachedaemon_client.sampler import ShardSampler, sample_order, stream, worker_slice
from cachedaemon_client.shard import Shard

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
    "Refused",
    "Shard",
    "ShardCache",
    "ShardMissing",
    "ShardSampler",
    "SourceUnknown",
    "TooLarge",
    "WaitExpired",
    "sample_order",
    "stream",
    "worker_slice",
]
