"""All settings, as data: name, type, default, description, and whether a change needs a restart."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from cachedaemon.config import urls, values
from cachedaemon.config.secret import Secret
from cachedaemon.config.values import Address, Share
from cachedaemon.errors import ConfigError

_OWN_HEADERS = frozenset({
    "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect",
    "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since",
})  # fmt: skip
"""How a request is framed, and which part or version of an object it is for."""

SOURCE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")

Size = Annotated[int, PlainValidator(values.size)]
Duration = Annotated[float, PlainValidator(values.duration)]
Free = Annotated[Share, PlainValidator(values.share)]
Switch = Annotated[bool, PlainValidator(values.flag)]
AnyCount = Annotated[int, PlainValidator(values.count(0))]
Positive = Annotated[int, PlainValidator(values.count(1))]
Place = Annotated[Path, PlainValidator(values.path)]
SocketPlace = Annotated[Path, PlainValidator(values.socket_path)]
Mode = Annotated[int, PlainValidator(values.mode)]
Group = Annotated[int | None, PlainValidator(values.optional(values.group))]
Listener = Annotated[Address | None, PlainValidator(values.address)]
Text = Annotated[str | None, PlainValidator(values.optional(values.text))]
Region = Annotated[str | None, PlainValidator(values.optional(values.region))]
Key = Annotated[str | None, PlainValidator(values.optional(values.key))]
Authorities = Annotated[Path | None, PlainValidator(values.optional(values.authorities))]
ReadableFile = Annotated[Path | None, PlainValidator(values.optional(values.readable))]
HttpUrl = Annotated[str | None, PlainValidator(values.optional(urls.check_http))]
Revalidate = Annotated[str | float, PlainValidator(values.revalidate)]


def _one_of(*words: str) -> Any:
    return PlainValidator(values.one_of(*words))


def _source_url(value: object) -> str:
    return "" if value == "" else urls.source_url(value)


def _source_name(name: str) -> str:
    if not SOURCE_NAME.fullmatch(name):
        msg = (
            "allowed are names of lower-case letters, digits, '.', '_' and '-' that begin with a letter or digit, "
            "at most 200 characters"
        )
        raise ValueError(msg)
    return name


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        msg = "allowed are header names as in RFC 9110: letters, digits and !#$%&'*+.^_`|~-"
        raise ValueError(msg)
    if name.lower() in _OWN_HEADERS:
        msg = "the daemon sets it as a transfer needs it; allowed are headers of other names"
        raise ValueError(msg)
    return name


def _secret(value: object, info: ValidationInfo, read: Callable[[Secret], str] = Secret.value) -> Secret:
    """Read once, so that a wrong path or name is found at start."""
    if not isinstance(value, str) or not value:
        msg = "allowed is text, file:PATH or env:NAME"
        raise ValueError(msg)
    secret = Secret(value, (info.context or {}).get("environ", {}))
    try:
        read(secret)
    except ConfigError as error:
        msg = f"{error}; allowed is text, file:PATH or env:NAME"
        raise ValueError(msg) from None
    return secret


def _maybe_document(value: object, info: ValidationInfo) -> Secret | None:
    return None if value is None or value == "" else _secret(value, info, Secret.document)


def _table(value: object) -> object:
    """A table that came through the environment is written as in TOML: `{ members = 5 }`."""
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"] if "\n" not in value else value
    except tomllib.TOMLDecodeError:
        return value


def _distinct(headers: dict[str, Secret]) -> dict[str, Secret]:
    if len({name.lower() for name in headers}) < len(headers):
        msg = "a header stands in it twice; allowed is each name once, in any case of letters"
        raise ValueError(msg)
    return headers


# Whoever dumps settings gets no secret: pydantic would write down what a dataclass is made of.
_hidden = PlainSerializer(lambda secret: None if secret is None else repr(secret))

SecretText = Annotated[Secret, PlainValidator(_secret), _hidden]
Headers = Annotated[
    dict[Annotated[str, AfterValidator(_header_name)], SecretText], BeforeValidator(_table), AfterValidator(_distinct)
]


def _setting(default: object, description: str, *, restart: bool = False, shown: bool = True) -> Any:
    return Field(
        default=default,
        description=description,
        repr=shown,
        validate_default=True,
        json_schema_extra={"restart": restart},
    )


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)


class UnpackLimits(_Section):
    """What one archive may hold and take; 0 means no limit."""

    members: AnyCount = _setting(1_000_000, "members of one archive")
    bytes: Size = _setting("100GB", "bytes of one archive's members together")
    seconds: Duration = _setting(3600, "time to check or unpack one archive")


class Cache(_Section):
    """Where shards are kept, and how many."""

    dir: Place = _setting(..., "folder of the cache, on a file system of this node", restart=True)
    max_shards: AnyCount = _setting(20, "the shard cap; 0: none (then `max_bytes` must be set)")
    max_bytes: Size = _setting(0, "the byte cap; 0: none")
    min_free: Free = _setting("5%", "part of the file system (or bytes) that is left to others; inodes likewise")
    policy: Annotated[str, _one_of("auto", "lru")] = _setting(
        "auto", "which shard goes: `auto` follows the plans, `lru` the last use"
    )
    grace: Duration = _setting("5s", "how long the daemon holds a shard for an asker that has not locked it yet")
    scan: Duration = _setting("60s", "time between two looks for files changed behind the daemon's back; 0: never")
    unpack_limits: Annotated[UnpackLimits, BeforeValidator(_table)] = _setting(
        {}, "limits for one archive: `members`, `bytes` and `seconds`"
    )


class Server(_Section):
    """Where the daemon listens, and for whom."""

    socket: SocketPlace = _setting(..., "the Unix socket, at most 107 bytes", restart=True)
    socket_mode: Mode = _setting("0660", "mode of the socket, octal", restart=True)
    socket_group: Group = _setting(None, "group (name or number) of the socket and the cache", restart=True)
    admin_group: Group = _setting(
        None, "group that may evict and verify, besides root and the daemon's user", restart=True
    )
    user_waiters: AnyCount = _setting(1024, "requests of one user that wait for shards at once; 0: no limit")
    user_plans: AnyCount = _setting(1000, "plans of one user at once; 0: no limit")
    user_prefetches: AnyCount = _setting(256, "prefetches of one user under way at once; 0: no limit")
    user_listeners: AnyCount = _setting(256, "streams of events of one user at once; 0: no limit")
    user_keys: AnyCount = _setting(10_000_000, "keys in all plans and prefetches of one user under way; 0: no limit")
    http: Listener = _setting(
        "127.0.0.1:9464", 'HTTP listener for metrics, health and the page; `""` turns it off', restart=True
    )
    page: Switch = _setting(default=True, description="the page on the HTTP listener", restart=True)


class Log(_Section):
    """How the daemon logs to standard error."""

    format: Annotated[str, _one_of("text", "json")] = _setting("text", "`text` or `json`", restart=True)
    level: Annotated[str, _one_of("debug", "info", "warning", "error")] = _setting(
        "info", "least level: `debug`, `info`, `warning` or `error`"
    )


class Fetch(_Section):
    """Limits of transfers, over all sources."""

    concurrency: Positive = _setting(16, "connections for transfers over all sources")
    retries: AnyCount = _setting(5, "failures in a row that a transfer bears")
    connect_timeout: Duration = _setting("10s", "time to reach an origin; 0: no limit")
    stall_timeout: Duration = _setting("30s", "longest time without a byte in a transfer; 0: no limit")


class Source(_Section):
    """An origin prefix under a name."""

    url: Annotated[str, PlainValidator(_source_url)] = _setting(
        "", "where the shards are; a key is appended, or put where `{key}` stands", shown=False
    )
    archives: Annotated[str, _one_of("index", "unpack", "opaque")] = _setting(
        "index", "what happens to zip and tar: `index` reads in place, `unpack` makes folders, `opaque` looks at none"
    )
    verify_members: Switch = _setting(default=False, description="check every member's CRC when an archive arrives")
    revalidate: Revalidate = _setting(
        "never", "`never` (shards never change), `always`, or for how long an answer of the origin holds"
    )
    settle: Duration = _setting("2s", "age from which a file of a `file` source counts as written")
    watch: Switch = _setting(
        default=False, description="tell of each file that appears in the folder of a `file` source"
    )
    checksums: Key = _setting(None, "key of a manifest of digests beside the shards, which vouches for all of them")
    urls: ReadableFile = _setting(None, "file that maps keys to whole URLs, in place of `url`; read again on a change")
    headers: Headers = _setting({}, "request headers; a value can be `file:PATH` or `env:NAME`")
    concurrency: Positive = _setting(8, "connections for transfers from this source")
    bandwidth: Size = _setting(0, "bytes per second from this source; 0: no limit")
    proxy: HttpUrl = _setting(None, "HTTP proxy for this source", shown=False)
    ca: Authorities = _setting(None, "file of the certificates (PEM) that the origin is trusted by")
    insecure: Switch = _setting(default=False, description="trust any certificate: for trials only")
    endpoint: HttpUrl = _setting(
        None, "object stores: URL of the service; AIStore: of a gateway, else `$AIS_ENDPOINT`", shown=False
    )
    region: Region = _setting(None, "object stores: region")
    anonymous: Annotated[bool | None, PlainValidator(values.optional(values.flag))] = _setting(
        None, "object stores: do not sign requests"
    )
    credentials: Annotated[Secret | None, PlainValidator(_maybe_document), _hidden] = _setting(
        None,
        "object stores: credentials, best as `file:PATH` or `env:NAME`; AIStore: the token; fsspec: storage options",
    )
    etl: Text = _setting(None, "AIStore: name of the transformation")

    @field_validator("endpoint", mode="before")
    @classmethod
    def _gateway(cls, value: object, info: ValidationInfo) -> object:
        """What AIStore's own clients read from the environment (api/env.go)."""
        if urls.scheme_of(info.data.get("url", "")) != "ais" or value not in (None, ""):
            return value
        return (info.context or {}).get("environ", {}).get("AIS_ENDPOINT")


Sources = dict[Annotated[str, AfterValidator(_source_name)], Annotated[Source, BeforeValidator(_table)]]


class Settings(_Section):
    """The whole configuration. Sizes are bytes, durations seconds, and 0 stands for "no limit"."""

    cache: Cache
    server: Server
    log: Log
    fetch: Fetch
    sources: Sources
