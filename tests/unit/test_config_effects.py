"""Settings that do nothing for a source, and faults in several places: one look at the configuration tells of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachedaemon.config import schemes
from cachedaemon.config.effects import WITH_EFFECT
from tests.contract.origins.places import certificates
from tests.unit.test_config import loaded, refusal

URLS = {
    "file": "file:///mnt/set/",
    "http": "http://h/",
    "https": "https://h/",
    "ais": "ais://b/",
    "s3": "s3://b/",
    "gs": "gs://b/",
    "az": "az://c/",
    "ytdlp": "ytdlp:",
    "fsspec+": "fsspec+ftp://h/",
    "fsspec+sftp": "fsspec+sftp://h/",
    "fsspec+ssh": "fsspec+ssh://h/",
}
ENVIRON = {"AIS_ENDPOINT": "http://gateway:51080", "AZURE_STORAGE_ACCOUNT_NAME": "a"}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A value other than the default's, as TOML, for each setting of the table."""
    authority, _ = certificates(tmp_path_factory.mktemp("ca"))
    return {
        "settle": "'9s'",
        "headers": "{ Cookie = 's3cr3t' }",
        "proxy": "'http://proxy:8080'",
        "ca": f"'{authority}'",
        "insecure": "true",
        "endpoint": "'https://a.blob.core.windows.net'",
        "region": "'eu'",
        "anonymous": "true",
        "credentials": "'{}'",
        "etl": "'name'",
    }


def complaint(setting: str, scheme: str, values: dict[str, str]) -> str:
    """What is said of the setting on a source of the scheme; nothing where it is taken."""
    try:
        loaded(f"[sources.s]\n{setting} = {values[setting]}", ENVIRON, flags={"sources.s.url": URLS[scheme]})
    except Exception as cause:  # noqa: BLE001 - a fault of another kind is in the text
        return "".join(line for line in str(cause).splitlines() if "has no effect" in line)
    return ""


def test_the_table_names_schemes_that_there_are() -> None:
    assert set(schemes()) <= set(URLS)
    assert {scheme for some in WITH_EFFECT.values() for scheme in some} <= set(URLS)


@pytest.mark.parametrize("setting", WITH_EFFECT)
def test_a_setting_is_refused_wherever_it_does_nothing(setting: str, values: dict[str, str]) -> None:
    heeding = set(WITH_EFFECT[setting])
    for scheme, url in URLS.items():
        said = complaint(setting, scheme, values)
        if scheme in heeding or (scheme.startswith("fsspec+") and "fsspec+" in heeding):
            assert said == "", scheme
        else:
            kind = url.partition(":")[0]
            assert said.startswith(f"sources.s.{setting}: has no effect on a source of {kind}: allowed is it for ")
            assert "s3cr3t" not in said


def test_a_source_of_whole_urls_heeds_what_http_does(folder: Path) -> None:
    (folder / "urls").write_text("k http://h/k")
    listed = f"[sources.s]\nurls = '{folder}/urls'\n"
    loaded(listed + "proxy = 'http://p:1'\nheaders = { A = 'b' }", flags={"sources.s.url": ""})
    assert "sources.s.settle: has no effect on a source of http" in refusal(
        listed + "settle = 1", flags={"sources.s.url": ""}
    )


def test_one_look_tells_of_faults_of_every_kind() -> None:
    """What single settings are refused for hides nothing of the other sources, nor of the cache."""
    said = refusal(
        """
        [cache]
        max_shards = 0
        [log]
        level = "loud"
        [sources.a]
        url = "s3://b/"
        credentials = "file:/none"
        [sources.b]
        url = "ais://b/"
        [sources.c]
        url = "file:///mnt/"
        proxy = "http://p:1"
        [sources.d]
        url = "az://c/"
        [sources.e]
        archives = "opaque"
        """
    ).splitlines()
    assert sorted(line.partition(": ")[0] for line in said) == [
        "cache.max_bytes",
        "log.level",
        "sources.a.credentials",
        "sources.b.endpoint",
        "sources.c.proxy",
        "sources.d.endpoint",
        "sources.e.url",
    ]


def test_what_depends_on_a_refused_setting_is_not_guessed_at() -> None:
    """A cap that cannot be read may be there, and a source without its url is not called one that lacks it."""
    said = refusal("[cache]\nmax_shards = 0\nmax_bytes = 'x'\n[sources.a]\nurl = 'gopher://h/'\nsettle = 1")
    assert [line.partition(":")[0] for line in said.splitlines()] == ["cache.max_bytes", "sources.a.url"]


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("[sources.t]\nurl = 3", "sources.t.url: a number is refused: allowed are file://"),
        ("[sources.t]\nurl = true", "sources.t.url: true or false is refused"),
        ("[sources]\nt = 3", "sources.t: a number is refused: allowed is a table"),
        ("[sources.t]\nurl = 'http://h/'\nproxy = ['hunter2']", "sources.t.proxy: a list is refused"),
        ("[cache]\nmax_shards = {}", "cache.max_shards: a table is refused"),
        ("[sources.t]\nurl = 1979-05-27", "sources.t.url: a time is refused"),
    ],
)
def test_kinds_of_values_are_named_as_people_do(tables: str, says: str) -> None:
    assert says in refusal(tables)


def test_sources_that_are_no_table_are_refused_in_words() -> None:
    said = refusal("sources = 3", flags={"sources.s.url": None})
    assert said == "sources: a number is refused: allowed is a table"
