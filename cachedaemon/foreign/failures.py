"""What went wrong in somebody else's library, as the daemon tells it: by the exception's class, and never by its text.

The text may hold a URL with a password, or whatever else the library was given.
"""

from __future__ import annotations

import errno
import ftplib
import os

from cachedaemon.foreign.process import Failure, Gone

_MISSING = (FileNotFoundError, NotADirectoryError)
_REFUSED = (PermissionError, IsADirectoryError, NotImplementedError, ValueError, TypeError, KeyError)
_MISSING_STATUS = frozenset({404, 410})
_BUSY_STATUS = frozenset({408, 425, 429, 503})
_REFUSED_ERRNO = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})
_REFUSED_WORDS = ("Authentication", "BadHostKey", "UnknownHostKey", "Forbidden", "Unauthorized", "Credential")
"""In the names of exceptions: they say that who asks is not trusted, or not who answers."""
_WORDS = {
    "AuthenticationException": "the server does not accept the credentials",
    "EOFError": "the server closed the connection",
    "NoValidConnectionsError": "the server cannot be reached",
    "TypeError": "the file system does not take its storage options",
    "TimeoutError": "the server does not answer in time",
    "UnknownHostKey": "the server's host key is not among the known hosts",
    "gaierror": "the server's name cannot be resolved",
}


def failed(cause: Exception) -> Failure:
    """A failure of fsspec, of one of its implementations, or of what these are built on."""
    if isinstance(cause, Failure | Gone):
        raise cause
    if isinstance(cause, ImportError):
        return Failure("OriginRefused", f"a module that this file system needs is not installed: {_module(cause)}")
    if isinstance(cause, _MISSING):
        return Failure("Missing", "no such object")
    if (status := _status(cause)) is not None:
        return Failure(kind_of(status), f"the origin answered {status}")
    if isinstance(cause, ftplib.Error):
        return _of_ftp(cause)
    return Failure(_kind(cause), _said(cause))


def kind_of(status: int) -> str:
    """The class of error that a status of HTTP stands for."""
    if status in _MISSING_STATUS:
        return "Missing"
    if status in _BUSY_STATUS:
        return "Overloaded"
    return "OriginUnavailable" if status >= 500 or status < 400 else "OriginRefused"


def _status(cause: Exception) -> int | None:
    """The status of HTTP that an exception carries, by the names that libraries have for it."""
    for one in (cause, getattr(cause, "response", None)):
        for name in ("status", "status_code"):
            if isinstance(found := getattr(one, name, None), int) and 300 <= found < 600:
                return found
    return None


def _of_ftp(cause: ftplib.Error) -> Failure:
    """A reply of FTP (RFC 959, 4.2): 4xx is for now, 5xx for good."""
    code = str(cause)[:3]
    said = f"the FTP server answered {code}" if code.isdigit() else "the FTP server answers what is no reply"
    if code == "421":
        return Failure("Overloaded", said)
    return Failure("OriginRefused" if code.startswith("5") else "OriginUnavailable", said)


def _kind(cause: Exception) -> str:
    is_refusal = isinstance(cause, _REFUSED) or any(word in type(cause).__name__ for word in _REFUSED_WORDS)
    if is_refusal or (isinstance(cause, OSError) and cause.errno in _REFUSED_ERRNO):
        return "OriginRefused"
    return "OriginUnavailable"


def _said(cause: Exception) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    name = type(cause).__name__
    return _WORDS.get(name, f"the file system fails ({name})")


def _module(cause: ImportError) -> str:
    return str(cause.name or getattr(cause.__cause__, "name", None) or "see the documentation of fsspec")
