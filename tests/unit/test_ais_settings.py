"""What a source of AIStore may be configured with, and what it means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachedaemon.config import ais_url
from cachedaemon.config.aistore import AisUrl
from tests.conftest import PROJECT
from tests.unit.test_config import loaded, refusal

GATEWAY = "http://gateway:51080"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("ais://b", AisUrl("b", "", "", "ais", "")),
        ("ais://b/", AisUrl("b", "", "", "ais", "")),
        ("AIS://b.c-d_e/a set/%41/", AisUrl("b.c-d_e", "a set/%41/", "", "ais", "")),
        ("ais://b/x-{key}.tar?provider=gs", AisUrl("b", "x-", ".tar", "gcp", "")),
        ("ais://b?provider=az", AisUrl("b", "", "", "azure", "")),
        ("ais://b/p/?provider=ais&namespace=@uuid%23name", AisUrl("b", "p/", "", "ais", "@uuid#name")),
        ("ais://b/?namespace=%23name", AisUrl("b", "", "", "ais", "@#name")),
    ],
)
def test_the_parts_of_a_url(url: str, parts: AisUrl) -> None:
    """What is a name of an object goes into it byte for byte; AIStore's other words for providers mean the same."""
    assert ais_url(url) == parts


@pytest.mark.parametrize(
    "url",
    [
        "ais://",
        "ais:b",
        "ais:///p",
        "ais://@uuid#ns/b",
        "ais://u:hunter2@b/p",
        "ais://b/p#x",
        "ais://b/a\tb",
        "ais://{key}/",
        "ais://b/p?provider=ftp",
        "ais://b/p?namespace=name",
        "ais://b/p?token=hunter2",
        "ais://b/{key}/{key}",
    ],
)
def test_urls_that_cannot_be_are_refused(url: str) -> None:
    said = refusal(flags={"sources.s.url": url})
    assert said.startswith("sources.s.url")
    assert "allowed is" in said
    assert "hunter2" not in said


def test_the_gateway_is_configured_or_in_the_environment() -> None:
    ais = {"sources.s.url": "ais://b/"}
    assert loaded(flags=ais, environ={"AIS_ENDPOINT": GATEWAY}).sources["s"].endpoint == GATEWAY
    own = loaded(f"[sources.s]\nendpoint = '{GATEWAY}'", flags=ais, environ={"AIS_ENDPOINT": "http://other"})
    assert own.sources["s"].endpoint == GATEWAY
    assert refusal(flags=ais) == (
        "sources.s.endpoint: is required: allowed is the URL of a gateway, here or in $AIS_ENDPOINT"
    )
    assert refusal(flags=ais, environ={"AIS_ENDPOINT": "gateway:51080"}).startswith("sources.s.endpoint: ")
    assert loaded(flags={"sources.s.url": "s3://b/"}, environ={"AIS_ENDPOINT": GATEWAY}).sources["s"].endpoint is None


def test_a_token_is_looked_at_when_the_daemon_starts(folder: Path) -> None:
    file = folder / "auth.token"
    given = f"[sources.s]\nendpoint = '{GATEWAY}'\ncredentials = 'file:{file}'"
    for text in ('{"token": "t0ken"}', '{\n  "token": "t0ken"\n}\n', "t0ken\n"):
        file.write_text(text)
        assert loaded(given, flags={"sources.s.url": "ais://b/"}).sources["s"].credentials is not None
    for text in ("{}", '{"token": 5}', "hunter2 hunter2", '{"token": "hunter2\\n"}', '{"hunter2":' * 5000):
        file.write_text(text)
        said = refusal(given, flags={"sources.s.url": "ais://b/"})
        assert said.startswith("sources.s.credentials: no token"), text
        assert "hunter2" not in said


def test_the_configurations_of_the_documentation_can_be_used() -> None:
    text = (PROJECT / "docs/origins/aistore.md").read_text()
    tables = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert tables
    for table in tables:
        loaded(table, flags={"sources.s.url": None}, environ={"AIS_AUTHN_TOKEN": "t0ken"})
