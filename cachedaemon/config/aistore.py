"""What `ais://bucket/prefix` means: a bucket of an AIStore cluster, and where a key goes in the names of its objects.

Providers and namespaces are those of AIStore (api/apc/provider.go, cmn/bck.go): a cluster's own buckets, those of the
stores behind it, and those of other clusters. Both stand in the URL's query, by the names that AIStore's API has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from cachedaemon.config.secret import Secret, json_of
from cachedaemon.errors import ConfigError

if TYPE_CHECKING:
    from cachedaemon.config.settings import Source

KEY = "{key}"
_PROVIDERS = {
    "ais": "ais", "aws": "aws", "s3": "aws", "gcp": "gcp", "gs": "gcp", "azure": "azure", "az": "azure", "oci": "oci",
    "ht": "ht",
}  # fmt: skip
_URL = re.compile(r"ais://([A-Za-z0-9._-]{1,64})(?:/([^?#\x00-\x1f\x7f]*))?(?:\?([!-~]*))?", re.IGNORECASE)
_NAMESPACE = re.compile(r"(?:@([A-Za-z0-9_-]*))?(?:#([A-Za-z0-9_-]*))?")
_ALLOWED = (
    "allowed is ais://BUCKET/PREFIX, with ?provider= (ais, aws, gcp, azure, oci or ht) and &namespace= (@CLUSTER%23NAME) "
    "for buckets that are not the cluster's own"
)


@dataclass(frozen=True, slots=True)
class AisUrl:
    """A source's URL taken apart."""

    bucket: str
    before: str
    """Of an object's name, what stands before the key."""
    after: str
    """And behind it."""
    provider: str
    namespace: str
    """Empty for the cluster's own; else as AIStore writes it, `@cluster#name`."""


def ais_url(url: str) -> AisUrl:
    """The parts of a URL; ValueError for one that names no bucket. What is a name goes into it as it stands."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(_ALLOWED)
    asked = dict(parse_qsl(found[3] or "", keep_blank_values=True))
    provider = _PROVIDERS.get(asked.pop("provider", "ais"))
    space = _NAMESPACE.fullmatch(asked.pop("namespace", ""))
    if provider is None or space is None or asked:
        raise ValueError(_ALLOWED)
    before, _, after = (found[2] or "").partition(KEY)
    namespace = f"@{space[1] or ''}#{space[2] or ''}" if any(space.groups()) else ""
    return AisUrl(found[1], before, after, provider, namespace)


def ais_token(secret: Secret) -> str:
    """The token: alone, or in the JSON that `ais auth login` writes. Reads the disk; ConfigError when there is none."""
    text = secret.document()
    try:
        token = json_of(text)["token"] if text.startswith("{") else text
    except (ValueError, KeyError):
        token = None
    if not isinstance(token, str) or not re.fullmatch("[!-~]+", token):
        msg = "no token: allowed is one in printable ASCII without spaces, or the JSON that `ais auth login` writes"
        raise ConfigError(msg)
    return token


def problems(path: str, source: Source) -> Iterator[str]:
    """A line for each problem of an AIStore source that no single setting has."""
    if source.endpoint is None:
        yield f"{path}.endpoint: is required: allowed is the URL of a gateway, here or in $AIS_ENDPOINT"
    if source.credentials is not None:
        try:
            ais_token(source.credentials)
        except ConfigError as cause:
            yield f"{path}.credentials: {cause}"
