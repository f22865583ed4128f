"""How the client library is told of a store: where it is, its limits, and its credentials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store

from cachedaemon.config import BucketUrl, Credentials, Fetch, Source, account_of

AGENT = "cachedaemon"
_NEVER = timedelta(days=365)
_NO_RETRIES: Any = {"max_retries": 0}
"""The daemon's own tries know of room, turns and other transfers."""

Store = S3Store | GCSStore | AzureStore


def opened(url: BucketUrl, source: Source, fetch: Fetch, credentials: Credentials | None) -> Store:
    """A client of the store, with connections of its own. Asks nobody yet; reads files: call it in a thread.

    Without credentials it finds some by itself with the first request: in the environment, from the machine's or
    container's metadata service, or by a web identity.
    """
    make = {"s3": _s3, "gs": _gs, "az": _az}[url.scheme]
    return make(url.bucket, source, dict(credentials.options) if credentials else {}, fetch)


def _s3(bucket: str, source: Source, options: Any, fetch: Fetch) -> Store:
    options |= _given(endpoint=source.endpoint, region=source.region, skip_signature=source.anonymous)
    client = _client(source, fetch, options.get("endpoint"))
    return S3Store(bucket, config=options, client_options=client, retry_config=_NO_RETRIES)


def _gs(bucket: str, source: Source, options: Any, fetch: Fetch) -> Store:
    options |= _given(base_url=source.endpoint, skip_signature=source.anonymous)
    client = _client(source, fetch, options.get("base_url"))
    return GCSStore(bucket, config=options, client_options=client, retry_config=_NO_RETRIES)


def _az(container: str, source: Source, options: Any, fetch: Fetch) -> Store:
    options |= _given(endpoint=source.endpoint, skip_signature=source.anonymous)
    if "account_name" not in options:
        options |= _given(account_name=account_of(source.endpoint or ""))
    client = _client(source, fetch, options.get("endpoint"))
    return AzureStore(container, config=options, client_options=client, retry_config=_NO_RETRIES)


def _client(source: Source, fetch: Fetch, endpoint: str | None) -> Any:
    """Limits are those of connecting and of silence; the library's own limit of a whole transfer cuts slow ones."""
    return {
        "user_agent": AGENT,
        "timeout": _NEVER,
        "connect_timeout": _time(fetch.connect_timeout),
        "read_timeout": _time(fetch.stall_timeout),
        **_given(
            allow_http=(endpoint or "").lower().startswith("http://") or None,
            allow_invalid_certificates=source.insecure or None,
            proxy_url=source.proxy,
            root_certificate=source.ca and source.ca.read_bytes(),
        ),
    }


def _time(seconds: float) -> timedelta:
    return timedelta(seconds=seconds) if seconds else _NEVER


def _given(**values: Any) -> dict[str, Any]:
    """What was set; endpoints without a slash at the end, which the library would double."""
    return {
        name: value.rstrip("/") if name in ("endpoint", "base_url") else value
        for name, value in values.items()
        if value is not None
    }
