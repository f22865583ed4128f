"""What `s3://bucket/prefix`, `gs://bucket/prefix` and `az://container/prefix` mean: where a key goes in an object's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachedaemon.config.credentials import account_of, credentials_of
from cachedaemon.errors import ConfigError

if TYPE_CHECKING:
    from cachedaemon.config.settings import Source

KEY = "{key}"
SCHEMES = ("s3", "gs", "az")
_URL = re.compile(r"(s3|gs|az)://([A-Za-z0-9$][A-Za-z0-9._-]{0,221})(?:/(.*))?", re.IGNORECASE | re.DOTALL)
_ALLOWED = (
    "allowed are s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and az://CONTAINER/PREFIX; a prefix is taken as it stands (% is a "
    "percent sign), and has no ?, #, control character, empty or dotted segment"
)


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A source's URL taken apart."""

    scheme: str
    bucket: str
    before: str
    """Of an object's name, what stands before the key."""
    after: str
    """And behind it."""

    def name(self, key: str) -> str:
        """The object's name."""
        return self.before + key + self.after


def bucket_url(url: str) -> BucketUrl:
    """The parts of a URL; ValueError for one that names no bucket, or a prefix under which no name can be asked for."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(_ALLOWED)
    before, _, after = (found[3] or "").partition(KEY)
    parts = BucketUrl(found[1].lower(), found[2], before, after)
    if re.search("[?#]", before + after) or fault(parts.name("key")):
        raise ValueError(_ALLOWED)
    return parts


def fault(name: str) -> str | None:
    """Why an object's name cannot be asked for; None: it can.

    The names are those of paths: the client library joins and splits them at slashes, and would silently ask for another
    object without these.
    """
    if any(ord(c) < 32 or ord(c) == 127 for c in name):
        return "has a control character"
    segments = name.split("/")
    if "" in segments:
        return "begins or ends with a slash, or has two in a row"
    if "." in segments or ".." in segments:
        return "has a '.' or '..' segment"
    return None


def problems(path: str, scheme: str, source: Source, environ: Mapping[str, str]) -> Iterator[str]:
    """A line for each problem of an object store's source that no single setting has."""
    if source.anonymous and source.credentials is not None:
        yield f"{path}.anonymous: true is refused beside credentials: allowed is one of the two"
    options: Mapping[str, str] = {}
    if source.credentials is not None:
        try:
            options = credentials_of(scheme, source.credentials).options
        except (ConfigError, ValueError) as cause:
            yield f"{path}.credentials: {cause}"
            return
    if scheme == "az" and not _has_account(source, options, environ):
        yield (
            f"{path}.endpoint: no account is named: allowed are https://ACCOUNT.blob.core.windows.net here, a connection "
            "string in credentials, or the account's name in $AZURE_STORAGE_ACCOUNT_NAME"
        )


def _has_account(source: Source, options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether Azure's account is known, from where the client library and we take it."""
    named = any(environ.get(name) for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"))
    return named or "account_name" in options or account_of(source.endpoint or "") is not None
