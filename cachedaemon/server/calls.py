"""What each call takes and answers, beside what its handler says: the API's description and its reference are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachedaemon import errors
from cachedaemon.server import replies
from cachedaemon.server.bodies import LONGEST_WAIT, OLDEST_USE
from cachedaemon.sources import LONGEST_KEY
from cachedaemon_client import wire

Schema = dict[str, Any]
Errors = tuple[type[errors.CacheDaemonError], ...]

JSON = "application/json"
EVENTS = "text/event-stream"

_TEXT: Schema = {"type": "string"}
_SOURCE: Schema = {"type": "string", "description": "name of a source"}
_KEY: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "description": "key of a shard"}
_INDEX: Schema = {"type": "integer", "minimum": 0}
_KEYS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}}

_FETCHING: Errors = (
    errors.Missing,
    errors.OriginRefused,
    errors.Corrupt,
    errors.OriginUnavailable,
)


@dataclass(frozen=True)
class Call:
    """One call. `body` is a dataclass of the client's wire types, `answer` a type of `replies`; None: nothing is in it."""

    answer: Any = None
    status: int = 200
    media: str = JSON
    body: type | None = None
    within: Mapping[str, Schema] = field(default_factory=dict)
    """What the daemon wants of the body's members beyond their types."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    """Of the query."""
    errors: Errors = ()
    """Besides what every call may answer: `BadRequest`, and a fault of the daemon's own."""
    note: str = ""
    """What a caller should know beyond the handler's first line."""
    leads_to: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Calls that take something out of this one's answer: by name of the handler, parameters and where they stand."""


CALLS: dict[tuple[str, str], Call] = {
    ("GET", "/v1/hello"): Call(replies.Hello),
    ("GET", "/v1/status"): Call(replies.Status),
    ("GET", "/v1/glance"): Call(replies.Glance, query={"since": {"type": "number", "description": "Unix seconds"}}),
    ("GET", "/v1/openapi.json"): Call({"type": "object"}),
    ("POST", "/v1/acquire"): Call(
        replies.Acquired,
        body=wire.Acquire,
        within={"key": _KEY, "wait": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT}},
        errors=(
            errors.UnknownSource,
            *_FETCHING,
            errors.Locked,
            errors.TooLarge,
            errors.TooMany,
            errors.BadArchive,
            errors.CacheFull,
            errors.Stopping,
            errors.WaitExpired,
            errors.NoSpace,
        ),
        note="The daemon holds the shard for `cache.grace` after its answer, so that there is time to take a lock: a shared "
        "`flock(2)` on the path, good if the path still leads to what was opened. With `wait` 0 nothing is fetched.",
    ),
    ("POST", "/v1/touch"): Call(
        status=204,
        body=wire.Touch,
        within={
            "used": {
                "type": "array",
                "items": {
                    "type": "array",
                    "prefixItems": [_TEXT, {"type": "number", "minimum": 0, "maximum": OLDEST_USE}],
                    "items": False,
                    "minItems": 2,
                },
            },
        },
        errors=(errors.UnknownSource, errors.NotFound, errors.Forbidden),
        note="The first touch of a key on the connection that acquired it ends the daemon's own hold on it.",
    ),
    ("POST", "/v1/prefetch"): Call(
        replies.Begun,
        status=202,
        body=wire.Prefetch,
        within={"keys": {"anyOf": [_KEYS, {"type": "null"}]}},
        errors=(errors.UnknownSource, *_FETCHING, errors.TooMany),
        note="In order, as far as the shards fit. Without keys: all that the origin lists; what cannot be listed is refused.",
        leads_to={"job": {"job": "$response.body#/job"}},
    ),
    ("POST", "/v1/verify"): Call(
        replies.Begun,
        status=202,
        body=wire.Verify,
        within={"keys": {"anyOf": [_KEYS, {"type": "null"}]}},
        errors=(errors.Forbidden, errors.UnknownSource),
        note="For root, the daemon's user and `server.admin_group`. Keys need a source.",
        leads_to={"job": {"job": "$response.body#/job"}},
    ),
    ("GET", "/v1/jobs/{job}"): Call(replies.JobCounts, errors=(errors.NotFound,)),
    ("PUT", "/v1/plans/{id}"): Call(
        replies.Planned,
        body=wire.PutPlan,
        within={"keys": _KEYS, "position": _INDEX, "holds": {"type": "integer", "minimum": 1}},
        errors=(errors.Forbidden, errors.UnknownSource, errors.TooMany, errors.NoSpace),
        note="The same id again replaces keys and position and keeps the file. A plan whose file was seen locked ends within 2 s "
        "of the lock's loss; one that was never locked lives for ten minutes after its last word.",
        leads_to={"end_plan": {"id": "$request.path.id"}},
    ),
    ("DELETE", "/v1/plans/{id}"): Call(status=204, errors=(errors.Forbidden, errors.NotFound, errors.NoSpace)),
    ("GET", "/v1/shards"): Call(
        replies.ShardPage,
        query={
            "source": _SOURCE,
            "prefix": {"type": "string", "description": "beginning of the keys"},
            "after": {"type": "string", "pattern": "/", "description": "`next` of the page before"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000},
        },
        errors=(errors.UnknownSource,),
    ),
    ("DELETE", "/v1/shards"): Call(
        status=204,
        query={"source": {**_SOURCE, "minLength": 1}, "key": {**_TEXT, "minLength": 1}},
        needed=("source", "key"),
        errors=(errors.Forbidden, errors.UnknownSource, errors.NotFound, errors.Leased, errors.NoSpace),
        note="For root, the daemon's user and `server.admin_group`.",
    ),
    ("GET", "/v1/events"): Call(
        _TEXT,
        media=EVENTS,
        query={"watch": {"type": "string", "description": "name of a source with `watch = true`"}},
        errors=(errors.UnknownSource, errors.TooMany),
        note="Each event has a name, and in `data` a JSON object with `source`, `key` and more: `ready` (`size`, `path`), `evicted` "
        "(`reason`), `failed` (`code`), `appeared` (`size`, `version`). With `watch` only that source's: `appeared` for each "
        "file that lies in its folder, then for each that comes; `away` (`message`) when the folder cannot be read, `back` when "
        "it can again, and `ended`, the last one, when the source's settings change. A comment comes every 15 s as a sign of life.",
    ),
    ("GET", "/metrics"): Call(
        _TEXT, media="text/plain", note="In Prometheus' text format; see the page about metrics."
    ),
    ("GET", "/healthz"): Call(replies.Health),
    ("GET", "/readyz"): Call(replies.Ready, note="503, with `stopping`, once the daemon has begun to end."),
    ("GET", "/"): Call(_TEXT, media="text/html"),
    ("GET", "/page/events"): Call(
        _TEXT,
        media=EVENTS,
        errors=(errors.TooMany,),
        note="The parts of a glance: `points` and `map` when they are new, then `now`. For sixteen at once, and for no page of another site.",
    ),
}
