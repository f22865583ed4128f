"""Every error that leaves a layer of the daemon; each docstring says when it is raised.

A class states once how the API answers it: `code`, HTTP `status` and whether asking again can help (`retryable`).
Messages name the thing, the cause and what is allowed, never a URL, a secret or a local traceback.
"""

from __future__ import annotations

import errno
from typing import ClassVar

SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""What a call says that fails because this process, or the machine, is short of something. See `Shortage`."""


class CacheDaemonError(Exception):
    """Base of all errors that the API answers with a body of its own."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def details(self) -> dict[str, str]:
        """Members of the error body besides code, message and retryable."""
        return {}


class ConfigError(CacheDaemonError):
    """The configuration cannot be used: names the key's path, the value and what is allowed."""

    code = "bad_config"


class StartError(CacheDaemonError):
    """The daemon cannot start here: a directory, socket or port that is taken or unusable."""

    code = "cannot_start"


class BadRequest(CacheDaemonError):
    """The request's form is wrong: not JSON, a member missing or of a wrong type, a key that no source can have."""

    code, status = "bad_request", 400


class Forbidden(CacheDaemonError):
    """The peer's user may not do this."""

    code, status = "forbidden", 403


class UnknownSource(CacheDaemonError):
    """No source of that name is configured."""

    code, status = "unknown_source", 404


class Missing(CacheDaemonError):
    """The origin says for certain that it has no such object; an outage is never reported so."""

    code, status = "missing", 404


class NotFound(CacheDaemonError):
    """No such path, job or plan, or a shard to evict that is not here."""

    code, status = "not_found", 404


class MethodNotAllowed(CacheDaemonError):
    """The path exists, the method does not."""

    code, status = "method_not_allowed", 405


class Leased(CacheDaemonError):
    """The shard cannot be evicted: a reader holds it, or it is being fetched."""

    code, status, retryable = "leased", 409, True


class Locked(CacheDaemonError):
    """Somebody holds an exclusive lock on a shard that the daemon is not evicting."""

    code, status, retryable = "locked", 409, True


class TooLarge(CacheDaemonError):
    """The shard never fits: larger than the byte cap, or than the file system less `min_free`."""

    code, status = "too_large", 413


class TooMany(CacheDaemonError):
    """The peer's user has as much under way as one user may have (settings `server.user_...`), or too many look at the page."""

    code, status, retryable = "too_many", 429, True


class OriginRefused(CacheDaemonError):
    """The origin understands the request and will not answer it (401, 403, EACCES, another final 4xx)."""

    code, status = "origin_refused", 502


class Corrupt(CacheDaemonError):
    """The bytes that came are not the object: a digest or a length that stays wrong over all tries."""

    code, status = "corrupt", 502


class BadArchive(CacheDaemonError):
    """An archive that must not be read or unpacked; `reason` is one of `archives.REASONS`, `member` the name in it."""

    code, status = "bad_archive", 502

    def __init__(self, message: str, *, reason: str, member: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.member = member

    def details(self) -> dict[str, str]:
        """Reason, and the member where one is at fault."""
        return {"reason": self.reason} | ({"member": self.member} if self.member is not None else {})


class OriginUnavailable(CacheDaemonError):
    """The origin cannot be reached, does not answer in time, or says that it cannot answer now; retried first."""

    code, status, retryable = "origin_unavailable", 503, True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, as the origin asked


class Overloaded(OriginUnavailable):
    """The origin says, or shows by its silence, that it is asked for too much: 429, 503, no answer in time."""


class Cut(OriginUnavailable):
    """A transfer ended before the announced length."""


class Changed(OriginUnavailable):
    """The object changed while it was read; the next try reads the new one."""


class NoParts(OriginUnavailable):
    """The origin was asked for a part of an object and sent something else: the whole, or another part."""


class CacheFull(CacheDaemonError):
    """No room within `wait`: everything that could go is leased or in transfer; names how many are leased."""

    code, status, retryable = "cache_full", 503, True


class Stopping(CacheDaemonError):
    """The daemon is draining; its successor will answer."""

    code, status, retryable = "stopping", 503, True


class WaitExpired(CacheDaemonError):
    """The shard did not become local within `wait`; names the last cause."""

    code, status, retryable = "wait_expired", 504, True


class NoSpace(CacheDaemonError):
    """The cache's file system has no room, or fails: ENOSPC, EDQUOT, EIO, EROFS."""

    code, status, retryable = "no_space", 507, True


class Shortage(NoSpace):
    """The daemon is short of descriptors, threads, processes or memory: the disk is well, and so is what lies on it."""
