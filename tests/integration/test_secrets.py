"""No secret of the configuration is ever shown, whatever fails, and however much is logged."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest

from cachedaemon.config import Settings, load
from cachedaemon.metrics import Metrics
from cachedaemon.origins import origin_of
from tests.fakes import stores
from tests.fakes.daemon import Daemon, free_port
from tests.fakes.origin import Object, Origin, Request, Status
from tests.fakes.waiting import until

MARK = "5ecret5ecret"
"""Stands in every secret here."""
KEY = base64.b64encode(f"{MARK}-of-an-account".encode()).decode()


def shapes() -> set[str]:
    """How a secret looks that is shown: as it is, and what all texts in base64 have in common that hold it."""
    inner = {base64.b64encode(b"x" * at + MARK.encode() + b"x" * 3).decode()[4 if at else 0 :][:12] for at in range(3)}
    return {MARK, KEY, *inner}


def echo(origin: Origin, status: int) -> None:
    """Everything is refused, with all that was sent in the answer's head and body."""

    def answer(one: Object, request: Request) -> None:
        sent = " ".join(f"{name}: {value}" for name, value in request.fields)
        body = f"<Error><Code>AccessDenied</Code><Message>{request.line} {sent}</Message></Error>".encode()
        one.always = Status(status, {"X-Echo": sent, "Location": f"/again?token={MARK}"}, body)

    origin.default(lambda name: Object(name, 10, on_get=answer))


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        yield made


def sources(origin: Origin, folder: Path) -> dict[str, Mapping[str, object]]:
    """One of each kind, with a secret wherever one can stand."""
    at = origin.url.removeprefix("http://")
    (folder / "token").write_text(f"Bearer {MARK}-of-a-file")
    (folder / "urls.json").write_text(json.dumps({"k.bin": f"{origin.url}signed?sig={MARK}"}))
    pair = {"access_key_id": f"{MARK}ID", "secret_access_key": f"{MARK}-key", "session_token": f"{MARK}-session"}
    (folder / "pair.json").write_text(json.dumps(pair))
    web = {"url": f"http://user:{MARK}@{at}set/{{key}}?sig={MARK}%2Fx", "headers": {"X-Token": f"{MARK}-of-a-header"}}
    return {
        "web": web,
        "file-header": {"url": origin.url, "headers": {"Authorization": f"file:{folder / 'token'}"}},
        "env-header": {"url": origin.url, "headers": {"Authorization": "env:THE_TOKEN"}},
        "proxied": {**web, "proxy": f"http://user:{MARK}@127.0.0.1:{free_port()}"},
        "proxy-refuses": {**web, "proxy": f"http://user:{MARK}@{at.rstrip('/')}"},
        "signed": {"urls": str(folder / "urls.json")},
        "gone": {"url": f"http://user:{MARK}@127.0.0.1:{free_port()}/?sig={MARK}"},
        "s3": {
            "url": "s3://bucket/set/",
            "endpoint": origin.url.rstrip("/"),
            "region": "us-east-1",
            "credentials": f"file:{folder / 'pair.json'}",
        },
        "az": {
            "url": "az://container/set/",
            "endpoint": f"{origin.url}{stores.ACCOUNT}",
            "credentials": f"AccountName={stores.ACCOUNT};AccountKey={KEY}",
        },
        "ais": {"url": "ais://bucket/set/", "endpoint": origin.url.rstrip("/"), "credentials": f"{MARK}-token"},
        "ftp": {"url": f"fsspec+ftp://user:{MARK}@127.0.0.1:{free_port()}/set/"},
        "videos": {"url": f"ytdlp:http://user:{MARK}@{at}watch?sig={MARK}&v={{key}}"},
    }


def clean(what: str, text: object) -> None:
    for shape in shapes():
        assert shape not in str(text), (
            f"{what} shows {shape!r}: ...{str(text)[max(0, str(text).find(shape) - 300) :][:500]}"
        )


class Events:
    """All that `/v1/events` says meanwhile."""

    def __init__(self, daemon: Daemon) -> None:
        self.heard = b""
        self._connection = daemon.connection(60)
        self._connection.request("GET", "/v1/events")
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while line := self._answer.readline():
            self.heard += line

    def __enter__(self) -> Self:
        """Listening."""
        return self

    def __exit__(self, *_: object) -> None:
        """Once the daemon has ended the answer."""
        self._thread.join(20)
        self._answer.close()
        self._connection.close()


def test_nothing_that_is_shown_holds_a_secret(origin: Origin, folder: Path) -> None:
    """Log at its most, metrics, events, answers, commands, a refused reload; while everything fails, in several ways."""
    all_of_them = sources(origin, folder)
    environ = {"THE_TOKEN": f"Bearer {MARK}-of-the-environment"}
    limits = {"retries": 0, "stall_timeout": "2s", "connect_timeout": "2s"}
    with (
        Daemon(all_of_them, fetch=limits, log={"level": "debug"}, env=environ, http=True) as daemon,
        ThreadPoolExecutor(len(all_of_them)) as pool,
        Events(daemon) as events,
    ):
        for status in (403, 500, 302):
            echo(origin, status)
            origin.shared.objects.clear()
            answers = list(pool.map(lambda name: daemon.acquire(name, "k.bin", 20), all_of_them))
            for name, answer in zip(all_of_them, answers, strict=True):
                assert answer.status >= 400, name
                clean(f"the answer for {name} after {status}", answer.body)
        for name in ("web", "s3", "proxied"):
            ran = daemon.cli("get", name, "k.bin", "--wait", "10")
            assert ran.status == 1
            clean(f"get {name}", ran.err + ran.out)
        origin.down()
        jobs = [daemon.prefetch(name, ["k.bin"]) for name in all_of_them]
        clean("a job", [daemon.job(job, 60) for job in jobs])
        for path in ("/v1/hello", "/v1/status", "/v1/shards", "/metrics", "/healthz"):
            clean(path, daemon.api("GET", path).body)
        daemon.tables["sources"]["web"] = {"url": f"htp://user:{MARK}@host/?sig={MARK}"}
        daemon.tables["sources"]["s3"] = {**all_of_them["s3"], "credentials": f'{{"access_key_id": "{MARK}"'}
        daemon.tables["sources"]["env-header"] = {"url": origin.url, "headers": {"X": f"{MARK}\n"}}
        daemon.reload()
        until(lambda: "the configuration is not reloaded" in daemon.log, 20, "the refusal")
        checked = daemon.cli("check-config", "--config", str(daemon.config))
        assert checked.status == 1
        clean("check-config", checked.err + checked.out)
        daemon.stop()
        assert b"event: failed" in events.heard
        clean("the events", events.heard)
        clean("the log", daemon.log)
        assert "Traceback" not in daemon.log


def test_nothing_that_a_debugger_prints_holds_a_secret(origin: Origin, folder: Path) -> None:
    """Settings and origins, as text, and settings as whoever dumps them gets them."""
    environ = {"THE_TOKEN": MARK, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    with Daemon(sources(origin, folder), begin=False) as daemon:
        daemon.write()
        settings: Settings = load(str(daemon.config), environ, {})
    clean("settings", repr(settings) + str(settings))
    clean("a dump", settings.model_dump_json(include={"sources": {"__all__": {"headers", "credentials"}}}))
    for name, source in settings.sources.items():
        if source.url.startswith("http"):
            clean(name, repr(origin_of(name, source, settings.fetch, Metrics("test"))))
