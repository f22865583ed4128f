"""Where an origin's objects lie in a test, and how that place misbehaves on request: one class a kind of origin."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cachedaemon.conformance import STALL, Place, Then, Trait, nothing
from tests.contract.origins.aistore import ais_bucket
from tests.fakes.fusefs import FuseFs
from tests.fakes.origin import Origin, Status

Fuse = Callable[[], FuseFs]
"""Gives the mount that all tests share."""


class Web(Place):
    """An HTTP server."""

    lacks: Mapping[Trait, str] = {
        "listing": "a web server has no list of its objects",
    }

    def __init__(self, origin: Origin, settings: Mapping[str, object]) -> None:
        self.origin, self.url, self.settings = origin, origin.url, settings
        self._versions = 0

    def put(self, key: str, data: bytes) -> None:
        self._versions += 1
        self.origin.put(key, data=data, etag=f'"v{self._versions}"')

    def refuse(self, key: str) -> None:
        self.origin.put(key, always=Status(403))

    def down(self) -> None:
        self.origin.down()

    def up(self) -> None:
        self.origin.thaw()
        self.origin.up()

    def trickle(self, key: str) -> None:
        self.origin[key].bps = self.origin[key].size / (1.5 * STALL)

    def hang(self, key: str) -> None:
        self.origin.freeze()

    def cut(self, key: str, offset: int) -> Then:
        self.origin[key].cut = [offset]
        return nothing

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.origin[key].replace(data=data, etag='"2"')


class Folder(Place):
    """A folder on a disk."""

    settings: Mapping[str, object] = {"settle": 0}
    lacks: Mapping[Trait, str] = {
        "slowness": "a plain folder is never slow",
        "silence": "a plain folder never hangs",
    }

    def __init__(self, folder: Path) -> None:
        self.folder, self.away = folder / "set", folder / "away"
        self.folder.mkdir()
        self._last = 0
        self.put("another", b"so that the folder is not empty")
        self.url = f"file://{self.folder}/"

    def _at(self, key: str) -> Path:
        return self.folder / key

    def put(self, key: str, data: bytes) -> None:
        """Each with a time of its own, also where the file system's clock is coarse."""
        self._at(key).parent.mkdir(parents=True, exist_ok=True)
        self._at(key).write_bytes(data)
        self._last = max(self._last + 1, self._at(key).stat().st_mtime_ns)
        os.utime(self._at(key), ns=(self._last, self._last))

    def refuse(self, key: str) -> None:
        os.mkfifo(self._at(key))

    def down(self) -> None:
        self.folder.rename(self.away)

    def up(self) -> None:
        if self.away.exists():
            self.away.rename(self.folder)

    def cut(self, key: str, offset: int) -> Then:
        return lambda: os.truncate(self._at(key), offset)

    def change(self, key: str, data: bytes) -> Then:
        return lambda: self.put(key, data)


class Mount(Folder):
    """A folder behind a file system that can be slow, hang, and vanish with an empty folder left in its place."""

    lacks: Mapping[Trait, str] = {}

    def __init__(self, folder: Path, fuse: FuseFs) -> None:
        super().__init__(folder)
        self.fuse = fuse
        self.url = f"file://{fuse.path}/{folder.name}/set/"

    def down(self) -> None:
        self.folder.rename(self.away)
        self.folder.mkdir()

    def up(self) -> None:
        self.fuse.turn()
        if self.away.exists():
            self.folder.rmdir()
        super().up()

    def trickle(self, key: str) -> None:
        self.fuse.turn(delay=STALL / 5, ops=["read"])

    def hang(self, key: str) -> None:
        self.fuse.turn(hang=True)


@contextlib.contextmanager
def web(_: Path, __: Fuse) -> Iterator[Place]:
    """Http."""
    with Origin() as origin:
        yield Web(origin, {})


@contextlib.contextmanager
def tls_web(folder: Path, _: Fuse) -> Iterator[Place]:
    """https, with an authority of its own."""
    authority, context = certificates(folder)
    with Origin(tls=context) as origin:
        yield Web(origin, {"ca": str(authority)})


@contextlib.contextmanager
def plain(folder: Path, _: Fuse) -> Iterator[Place]:
    """file, on a disk."""
    yield Folder(folder)


@contextlib.contextmanager
def mounted(folder: Path, fuse: Fuse) -> Iterator[Place]:
    """file, on a mount, with a folder of its own in it."""
    mount = fuse()
    yield Mount(Path(tempfile.mkdtemp(dir=mount.folder)), mount)


PLACES = {"http": web, "https": tls_web, "file": plain, "mount": mounted, "ais": ais_bucket}


def certificates(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate, and the context of a server at 127.0.0.1 that it vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    authority, key, request, cert = (folder / name for name in ("ca.pem", "key.pem", "req.pem", "cert.pem"))
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    own = ["-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out", authority]
    _run([*new, *own])
    _run([*new, "-subj", "/CN=server", "-keyout", key, "-out", request])
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    sign = ["openssl", "x509", "-req", "-days", "2", "-in", request, "-CA", authority, "-CAkey", folder / "ca.key"]
    _run([*sign, "-CAcreateserial", "-extfile", folder / "san", "-out", cert])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return authority, context


def _run(command: list[str | Path]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise AssertionError(f"{command}: {ran.stderr}")
