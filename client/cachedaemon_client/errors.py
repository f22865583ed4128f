"""What a reader can be told. Each class says when it is raised; each error has `code`, `source`, `key`, `retryable`."""

from __future__ import annotations

from typing import Any


class CacheError(Exception):
    """Base of all errors of this client; raised itself when none of the others fits."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        source: str | None = None,
        key: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.source = source
        self.key = key
        self.retryable = retryable

    def __str__(self) -> str:
        """The message alone, whatever built-in exception a class also is."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between worker processes whole."""
        return (_rebuilt, (type(self), self.args, self.__dict__))


def _rebuilt(kind: type[CacheError], args: tuple[Any, ...], state: dict[str, Any]) -> CacheError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class DaemonUnavailable(CacheError, ConnectionError):
    """No daemon answered at the socket within `wait`."""


class ShardMissing(CacheError, FileNotFoundError):
    """The origin has no such object."""


class SourceUnknown(CacheError):
    """The daemon has no source of that name."""


class Refused(CacheError, PermissionError):
    """This user may not do that; with code `unreachable`: may not use the daemon's socket."""


class BadRequest(CacheError, ValueError):
    """The request cannot be meant: a key that no shard can have, an argument of a wrong form."""


class OriginFailed(CacheError):
    """The origin refused the request, or stayed unavailable over all tries."""


class Corrupt(CacheError):
    """What the origin sent is not the object, or a member that is read in place is not what the archive announced."""


class BadArchive(CacheError):
    """The archive must not be read; `reason` says why, `member` which of its members is at fault."""

    def __init__(self, message: str, *, reason: str | None = None, member: str | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.reason = reason
        self.member = member


class CacheFull(CacheError):
    """Within `wait` no shard could go: all are leased or in transfer."""


class TooLarge(CacheError):
    """The shard can never fit under the cap."""


class NoSpace(CacheError):
    """The cache's disk is full or failing."""


class TooMany(CacheError):
    """This user has as many requests, plans or prefetches under way as the daemon lets one user have."""


class LocksNotShared(CacheError):
    """The cache lies where this process's locks do not reach the daemon's, so that a lease would protect nothing."""


class WaitExpired(CacheError, TimeoutError):
    """The shard did not become local within `wait`."""


class PlanWarning(UserWarning):
    """A plan whose consumers hold, with those of all others, more shards than fit, and may wait for ever; or a loader's that was refused."""


BY_CODE: dict[str, type[CacheError]] = {
    "missing": ShardMissing,
    "unknown_source": SourceUnknown,
    "forbidden": Refused,
    "bad_request": BadRequest,
    "origin_refused": OriginFailed,
    "origin_unavailable": OriginFailed,
    "corrupt": Corrupt,
    "bad_archive": BadArchive,
    "cache_full": CacheFull,
    "too_large": TooLarge,
    "no_space": NoSpace,
    "wait_expired": WaitExpired,
    "too_many": TooMany,
    "stopping": DaemonUnavailable,
}


def from_answer(status: int, body: Any, source: str | None = None, key: str | None = None) -> CacheError:
    """The error that an answer with this status and JSON body stands for."""
    said = body.get("error") if isinstance(body, dict) else None
    if not isinstance(said, dict):
        return CacheError(f"the daemon answered {status}: {body!r}", source=source, key=key, retryable=status >= 500)
    code = str(said.get("code", "error"))
    more: dict[str, Any] = {"code": code, "source": source, "key": key, "retryable": bool(said.get("retryable"))}
    kind = BY_CODE.get(code, CacheError)
    if kind is BadArchive:
        more |= {"reason": said.get("reason"), "member": said.get("member")}
    return kind(str(said.get("message", code)), **more)
