"""Failures of object stores in the daemon's own words.

The client library tells a few kinds of failures apart by class, and the rest only in a dump of its error values, which is
read here line by line. It is never passed on: it holds URLs, which may be signed.
"""

from __future__ import annotations

import re

from obstore.exceptions import GenericError, PreconditionError

from cachedaemon.errors import (
    CacheDaemonError,
    Changed,
    Missing,
    NoParts,
    OriginRefused,
    OriginUnavailable,
    Overloaded,
)
from cachedaemon.model import Ref

FOREIGN = Exception
"""What the client library raises: classes of its own, `FileNotFoundError` for a 404, `ValueError` for a time that no calendar
has, and where it panics a class that cannot be imported."""

_DUMP = "\nDebug source:\n"
_STATUS = re.compile(r"^\s*status: (\d{3}),$", re.MULTILINE)
_CODE = re.compile(r'^\s*"[^\n]*?<Code>(\w+)</Code>', re.MULTILINE)
_KIND = re.compile(r"^\s*kind: (Connect|Timeout|Request|Interrupted|Decode|Unknown),$", re.MULTILINE)
_SYSTEM = re.compile(r'^\s*message: "([^"\n]*)",$', re.MULTILINE)
_METADATA = re.compile(r"^\s*(?:uri: Some\()?http://(?:169\.254\.|metadata\.|\[fd00:ec2)", re.MULTILINE)
_NO_GET = re.compile(r"^\s*(?:method: (?:POST|PUT),|source: TokenRequest \{)$", re.MULTILINE)
_LISTING = re.compile(r"^\s*source: ListRequest \{$", re.MULTILINE)
_NO_PART = re.compile(r"^\s*source: (NotPartial|NoContentRange|UnexpectedRange|ParseContentRange)\b", re.MULTILINE)

_REJECTED = frozenset(
    {
        # S3 (API reference, error responses) and what speaks like it
        "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId",
        "SignatureDoesNotMatch", "InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure",
        "InvalidSecurity", "NotSignedUp",
        # Azure (common REST API error codes)
        "AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation",
        # Google Cloud Storage (XML API)
        "AuthenticationRequired", "UserProjectAccountProblem",
    }
)  # fmt: skip
"""Codes that say that these credentials are worth nothing, rather than that they may not do this."""
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ResourceNotFound", "ContainerBeingDeleted"})
_BUSY = frozenset(
    {"SlowDown", "RequestTimeout", "ServerBusy", "OperationTimedOut", "Throttling", "ThrottlingException"}
)
_CLOCK = "RequestTimeTooSkewed"
_ELSEWHERE = ": the bucket is in another region, or at another endpoint"
_FINAL = {
    "source: MissingContentLength": "the store sends no length, as for objects that it decompresses on their way",
    "inner: BareRedirect": "the store redirects" + _ELSEWHERE,
    "kind: Builder,": "the request cannot be made; plain http:// is allowed in the setting endpoint only",
    "InvalidCertificate(": "the store's certificate is not trusted",
}
"""What the dump of a failure has in it that another try does not mend."""


class Rejected(OriginRefused):
    """The store does not accept the credentials; others may be had."""


def mapped(cause: Exception, ref: Ref | str) -> CacheDaemonError:
    """A request that got no object."""
    said = dump(cause)
    status, code = _first(_STATUS, said), _first(_CODE, said)
    if _METADATA.search(said):
        return OriginUnavailable(
            f"{ref}: no credentials: none are configured, and the metadata service of this machine gives none"
        )
    if _is_of_a_provider(cause, said, status):
        return _not_provided(ref, status)
    if isinstance(cause, PreconditionError) or status == "416":
        return Changed(f"{ref}: the object changed while it was read")
    if status is not None:
        return _answered(ref, int(status), code)
    return _unanswered(ref, said)


def _is_of_a_provider(cause: Exception, said: str, status: str | None) -> bool:
    """Whether it was whoever gives out credentials that failed: the store is asked by GET, and its own refusals have classes."""
    return bool(_NO_GET.search(said)) or (
        isinstance(cause, GenericError) and status in ("401", "403", "404") and not _LISTING.search(said)
    )


def _not_provided(ref: Ref | str, status: str | None) -> CacheDaemonError:
    if status in ("400", "401", "403"):  # a web identity that has expired, a secret that was revoked
        return OriginRefused(f"{ref}: credentials rejected: whoever exchanges them for a token answered {status}")
    why = f"answered {status}" if status else "does not answer"
    return OriginUnavailable(f"{ref}: no credentials: whoever gives them out to this machine {why}")


def _answered(ref: Ref | str, status: int, code: str | None) -> CacheDaemonError:
    answer = f"{status} {code}" if code else str(status)
    if status in (429, 503) or code in _BUSY:
        return Overloaded(f"{ref}: the store answered {answer}")
    if status == 401 or code in _REJECTED:
        return Rejected(f"{ref}: credentials rejected: the store answered {answer}")
    if code in _NO_BUCKET:
        return OriginRefused(f"{ref}: the store has no such bucket or container ({answer})")
    if status == 404:
        return Missing(f"{ref}: the store answered {answer}")
    if status >= 500 or status == 408:
        return OriginUnavailable(f"{ref}: the store answered {answer}")
    return OriginRefused(f"{ref}: the store answered {answer}{_hint(status, code)}")


def _hint(status: int, code: str | None) -> str:
    if code == _CLOCK:
        return ": the clock of this machine is wrong"
    if status < 400:
        return _ELSEWHERE
    if status == 403:
        return ": no right to read it, or no such object and no right to list"
    return ""


def _unanswered(ref: Ref | str, said: str) -> CacheDaemonError:
    if _NO_PART.search(said):
        return NoParts(f"{ref}: the store sent something else than the part it was asked for")
    for sign, meaning in _FINAL.items():
        if sign in said:
            return OriginRefused(f"{ref}: {meaning}")
    kind = _first(_KIND, said)
    if kind is None:
        return OriginRefused(f"{ref}: the store cannot be asked, or its answer cannot be understood")
    return (Overloaded if kind == "Timeout" else OriginUnavailable)(f"{ref}: {words(said)}")


def words(said: str) -> str:
    """What happened to a connection, by the dump of an error."""
    kind, system = _first(_KIND, said), _first(_SYSTEM, said)
    if kind == "Timeout":
        return "the store does not answer in time"
    if "FromUtf8Error" in said:
        return "the store answered with a failure whose words are no text"
    if "dns error" in said:
        return "the name of the store's host cannot be resolved"
    if kind == "Connect":
        return f"the store cannot be reached: {system or 'no connection'}"
    return "the connection to the store ended"


def answered(cause: Exception) -> str | None:
    """The status of the answer that a failure is about, if there was one."""
    return _first(_STATUS, dump(cause))


def dump(cause: Exception) -> str:
    """The error's values, a line each: without what the server and the key can put into them in lines of their own."""
    return str(cause).rpartition(_DUMP)[2]


def _first(pattern: re.Pattern[str], said: str) -> str | None:
    found = pattern.search(said)
    return found[1] if found else None
