"""Credentials of object stores in the forms that tools write them, as the options of the client library.

* S3: JSON as of `aws sts` and of credential processes, or an ini file as `~/.aws/credentials` with a profile `default`.
* Google Cloud Storage: the JSON of a service account or of `gcloud auth application-default login`, or
  `{"access_token": ..., "expiration": ...}`.
* Azure: a connection string, a shared access signature, or an account's key.
"""

from __future__ import annotations

import base64
import binascii
import configparser
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from cachedaemon.config.secret import Secret, json_of

Options = dict[str, str]

S3_FORMS = (
    "JSON with access_key_id, secret_access_key, and if need be session_token and expiration; or an ini file with "
    "aws_access_key_id and aws_secret_access_key under [default]"
)
GS_FORMS = (
    "the JSON of a service account; as file:PATH also that of `gcloud auth application-default login`; or JSON with "
    "access_token, and if need be expiration"
)
_VALUE = re.compile("[ -~]+")
"""What goes into a request's head; the client library does not bear anything else."""
_WHOLE = ("service_account_key", "application_credentials")
"""A document and a path, which the client library reads by itself."""
AZ_FORMS = "a connection string, a shared access signature (sv=...&sig=...), or an account's key in base64"


@dataclass(frozen=True, repr=False)
class Credentials:
    """Options of the client library that hold secrets, and when they expire: never shown."""

    options: Mapping[str, str]
    expires: float | None = None
    """Unix seconds; None: never, or nobody said."""
    digest: bytes = b""
    """Of the text that says so: other text makes other credentials."""

    def __repr__(self) -> str:
        """Nothing of it."""
        return "<credentials>"


def credentials_of(scheme: str, secret: Secret) -> Credentials:
    """What a source is configured with, for a store of this scheme. Reads the disk: call it in a thread.

    Raises ConfigError where the secret cannot be read, and ValueError that says what is allowed, and nothing of the text.
    """
    return parse(scheme, secret.document(), secret.file)


def parse(scheme: str, text: str, path: str | None) -> Credentials:
    """What `text` says for a store of this scheme; `path`: the file that it was read from, if any."""
    found = {"s3": _s3, "gs": _gs, "az": _az}[scheme](text.strip(), path)
    if not all(_VALUE.fullmatch(value) for name, value in found.options.items() if name not in _WHOLE):
        raise _refusal("printable ASCII in each of their values")
    return replace(found, digest=hashlib.sha256(text.encode()).digest())


def account_of(endpoint: str) -> str | None:
    """The account that an Azure endpoint names: by its host, or as an emulator does by its path; None: neither."""
    parts = urlsplit(endpoint)
    host, segment = parts.hostname or "", parts.path.strip("/")
    account, _, rest = host.partition(".")
    if rest.startswith(("blob.", "dfs.")):
        return account
    return segment if segment and "/" not in segment else None


def _s3(text: str, _: str | None) -> Credentials:
    said = _object(text) if text.startswith("{") else _profile(text)
    if said is None:
        raise _refusal(S3_FORMS)
    said = {_plain(name): value for name, value in said.items()}
    options = _texts(
        access_key_id=said.get("accesskeyid"),
        secret_access_key=said.get("secretaccesskey"),
        session_token=said.get("sessiontoken") or said.get("token"),
    )
    if not {"access_key_id", "secret_access_key"} <= options.keys():
        raise _refusal(S3_FORMS)
    return Credentials(options, _expiry(said.get("expiration"), S3_FORMS))


def _plain(name: str) -> str:
    """A field's name, whichever tool wrote it: `AccessKeyId`, `access_key_id` and `aws_access_key_id` are one."""
    return name.lower().removeprefix("aws_").replace("_", "")


def _profile(text: str) -> dict[str, Any] | None:
    read = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        read.read_string(text)
    except configparser.Error:
        return None
    return dict(read["default"]) if read.has_section("default") else None


def _gs(text: str, path: str | None) -> Credentials:
    said = _object(text)
    if said is None:
        raise _refusal(GS_FORMS)
    if "access_token" in said:
        options = _texts(bearer_token=said["access_token"])
    elif said.get("type") == "authorized_user" and path is not None:
        options = {"application_credentials": path}
    elif "private_key" in said:
        options = {"service_account_key": text}
    else:
        options = {}
    if not options:
        raise _refusal(GS_FORMS)
    return Credentials(options, _expiry(said.get("expiration"), GS_FORMS))


def _az(text: str, _: str | None) -> Credentials:
    if "AccountName=" in text or "BlobEndpoint=" in text:
        return Credentials(_connection_string(text))
    if "sig=" in text:
        return Credentials({"sas_key": text.removeprefix("?")})
    return Credentials({"account_key": _key(text)})


def _connection_string(text: str) -> Options:
    """Of Azure's storage: https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string."""
    said = dict(pair.strip().partition("=")[::2] for pair in text.split(";") if pair.strip())
    endpoint = said.get("BlobEndpoint", "").rstrip("/")
    account = said.get("AccountName") or account_of(endpoint)
    if not account:
        raise _refusal(AZ_FORMS)
    if not endpoint and "EndpointSuffix" in said:
        endpoint = f"{said.get('DefaultEndpointsProtocol', 'https')}://{account}.blob.{said['EndpointSuffix']}"
    options = _texts(account_name=account, sas_key=said.get("SharedAccessSignature", "").removeprefix("?"))
    if "AccountKey" in said:
        options["account_key"] = _key(said["AccountKey"])
    if not {"account_key", "sas_key"} & options.keys():
        raise _refusal(AZ_FORMS)
    return options | _texts(endpoint=endpoint)


def _key(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _refusal(AZ_FORMS) from None
    return text


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object; that of `aws sts` has its fields one step further in."""
    try:
        said = json_of(text)
    except ValueError:
        return None
    if isinstance(said, dict) and isinstance(said.get("Credentials"), dict):
        said = said["Credentials"]
    return said if isinstance(said, dict) else None


def _texts(**values: Any) -> Options:
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


def _expiry(value: Any, forms: str) -> float | None:
    """Unix seconds of an ISO 8601 time, taken for UTC where it names no zone."""
    if value is None or value == "":
        return None
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _refusal(f"{forms}; expiration is a time as in 2030-01-31T12:00:00Z") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _refusal(allowed: str) -> ValueError:
    return ValueError(f"the credentials cannot be read: allowed is {allowed}")
