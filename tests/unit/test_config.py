"""Configuration: every form of every value, and errors that a person can act on."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cachedaemon import config
from cachedaemon.config import Secret, Settings, changes, folder_of, load, public_url, schemes, values
from cachedaemon.errors import ConfigError
from tests.fakes.fusefs import fuse_fs

URL = "https://host/shards/"
DOCS = Path(__file__).resolve().parents[2] / "docs/configuration.md"
NOWHERE = Path("/no/such/file.toml")


def loaded(tables: str = "", environ: Mapping[str, str] | None = None, **options: Any) -> Settings:
    """Settings of a file's text; with a source, so that the rest is what is tested."""
    flags = {"sources.s.url": URL} | options.pop("flags", {})
    options = {"root": True, "standard": NOWHERE} | options
    if not tables:
        return load(None, environ or {}, flags, **options)
    memory = os.memfd_create("config")
    try:
        os.write(memory, tables.encode())
        os.lseek(memory, 0, os.SEEK_SET)
        return load(f"/proc/self/fd/{memory}", environ or {}, flags, **options)
    finally:
        os.close(memory)


def refusal(tables: str = "", environ: Mapping[str, str] | None = None, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tables, environ, **options)
    return str(caught.value)


# --- where settings come from ------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_table() -> None:
    settings = loaded()
    assert settings.cache.dir == Path("/var/cache/cachedaemon")
    assert settings.server.socket == Path("/run/cachedaemon/cachedaemon.sock")
    assert (settings.cache.max_shards, settings.cache.max_bytes, settings.cache.policy) == (20, 0, "auto")
    assert (settings.cache.grace, settings.cache.scan) == (5.0, 60.0)
    limits = settings.cache.unpack_limits
    assert (limits.members, limits.bytes, limits.seconds) == (1_000_000, 100 * 10**9, 3600.0)
    assert (settings.server.socket_mode, settings.server.http) == (0o660, ("127.0.0.1", 9464))
    assert settings.server.page is True
    assert (settings.fetch.concurrency, settings.fetch.retries) == (16, 5)
    assert (settings.fetch.connect_timeout, settings.fetch.stall_timeout) == (10.0, 30.0)
    source = settings.sources["s"]
    assert (source.archives, source.verify_members, source.revalidate, source.settle) == ("index", False, "never", 2.0)
    assert (source.concurrency, source.bandwidth, source.insecure, source.headers) == (8, 0, False, {})


def test_flags_win_over_environment_and_that_over_the_file() -> None:
    file = "[cache]\nmax_shards = 1\nmax_bytes = 1\nscan = 1"
    environ = {"CACHEDAEMON_CACHE__MAX_SHARDS": "2", "CACHEDAEMON_CACHE__MAX_BYTES": "2kB"}
    cache = loaded(file, environ, flags={"cache.max_shards": 3}).cache
    assert (cache.max_shards, cache.max_bytes, cache.scan) == (3, 2000, 1.0)


def test_flag_that_was_not_given_changes_nothing() -> None:
    assert loaded("[cache]\nmax_shards = 7", flags={"cache.max_shards": None}).cache.max_shards == 7


def test_names_without_two_underscores_are_no_settings() -> None:
    loaded(environ={"CACHEDAEMON_PORT": "tcp://1.2.3.4:5", "CACHEDAEMON_SOCKET": "/x", "CACHEDAEMON_DIR": "/y"})


def test_environment_sets_sources_tables_and_headers() -> None:
    environ = {
        "CACHEDAEMON_SOURCES__IMAGENET__URL": "http://other/",
        "CACHEDAEMON_SOURCES__S__HEADERS__X_TOKEN": "two",
        "CACHEDAEMON_SOURCES__S__VERIFY_MEMBERS": "true",
        "CACHEDAEMON_CACHE__UNPACK_LIMITS": "{ members = 5, seconds = '1m' }",
    }
    settings = loaded('[sources.s]\nheaders = { X-Token = "one", B = "b" }', environ)
    assert settings.sources["imagenet"].url == "http://other/"
    assert {name: secret.value() for name, secret in settings.sources["s"].headers.items()} == {
        "B": "b",
        "x-token": "two",
    }
    assert settings.sources["s"].verify_members is True
    assert (settings.cache.unpack_limits.members, settings.cache.unpack_limits.seconds) == (5, 60.0)
    assert settings.cache.unpack_limits.bytes == 100 * 10**9


def test_source_flag_reaches_a_name_with_dots() -> None:
    assert loaded(flags={"sources.a.b-1.url": URL}).sources["a.b-1"].url == URL


def test_file_is_the_named_one_then_the_environments_then_the_standard_one(tmp_path: Path) -> None:
    for name in ("named", "environment", "standard"):
        (tmp_path / name).write_text(f'[log]\nlevel = "info"\n[sources.{name}]\nurl = "{URL}"')

    def names(path: str | None, environ: Mapping[str, str]) -> list[str]:
        return list(load(path, environ, {}, standard=tmp_path / "standard", root=True).sources)

    environ = {"CACHEDAEMON_CONFIG": str(tmp_path / "environment")}
    assert names(str(tmp_path / "named"), environ) == ["named"]
    assert names(None, environ) == ["environment"]
    assert names(None, {}) == ["standard"]


def test_user_without_root_gets_folders_of_their_own() -> None:
    settings = loaded(environ={"XDG_CACHE_HOME": "/c", "XDG_RUNTIME_DIR": "/r", "HOME": "/h"}, root=False)
    assert settings.cache.dir == Path("/c/cachedaemon")
    assert settings.server.socket == Path("/r/cachedaemon/cachedaemon.sock")
    for environ in ({"HOME": "/h"}, {"HOME": "/h", "XDG_CACHE_HOME": "relative"}):
        settings = loaded(environ=environ | {"XDG_RUNTIME_DIR": "/r"}, root=False)
        assert settings.cache.dir == Path("/h/.cache/cachedaemon")


def test_user_without_a_runtime_folder_is_told_the_setting() -> None:
    said = refusal(environ={"HOME": "/h"}, root=False)
    assert "server.socket" in said
    assert "XDG_RUNTIME_DIR" in said
    assert loaded(environ={"HOME": "/h"}, root=False, flags={"server.socket": "/s"}).server.socket == Path("/s")


# --- files that cannot be used -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("[cache]\nmax_shards = \n", 2, "Invalid value"),
        ("[cache]\n[cache]\n", 2, "Cannot declare"),
        ("a = 1\nb = [1,", 2, ""),
        ("x = '\udcff'", 1, "not UTF-8"),
    ],
)
def test_syntax_error_names_file_and_line(tmp_path: Path, text: str, line: int, cause: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        load(str(path), {}, {}, root=True)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    for path, cause in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "\0", "null")):
        with pytest.raises(ConfigError, match=cause) as caught:
            load(str(path), {}, {})
        assert tmp_path.name in str(caught.value)


def test_missing_file_of_the_environment_is_an_error() -> None:
    with pytest.raises(ConfigError, match="/no/such/file"):
        load(None, {"CACHEDAEMON_CONFIG": "/no/such/file"}, {})


def test_a_source_is_needed_to_serve_but_not_to_look() -> None:
    with pytest.raises(ConfigError, match="sources: there is none"):
        load(None, {}, {}, root=True, standard=NOWHERE)
    assert load(None, {}, {}, root=True, standard=NOWHERE, need_sources=False).sources == {}


# --- messages ----------------------------------------------------------------------------------------------------


def test_unknown_key_names_its_path_and_the_nearest_one() -> None:
    said = refusal("[cache]\nmax_shard = 5")
    assert said.startswith("cache.max_shard: unknown key; did you mean cache.max_shards?")
    assert "sources.s.urll: unknown key; did you mean sources.s.url?" in refusal('[sources.s]\nurll = "hidden"')
    assert "cache.unpack_limits.member" in refusal("[cache]\nunpack_limits = { member = 5 }")
    assert refusal("[caches]\nx = 1").startswith("caches: unknown key; did you mean cache?")


def test_name_with_a_newline_stays_on_its_line() -> None:
    assert refusal('[cache]\n"a\\nlog.level: x" = 5').startswith("'cache.a\\nlog.level: x': unknown key")
    assert "\n" not in refusal(environ={"CACHEDAEMON_CACHE__A\nB": "5"})


def test_cause_with_a_newline_stays_on_its_line() -> None:
    said = refusal(flags={"sources.s.url": "s3://b/"}, environ={"CACHEDAEMON_SOURCES__S__CREDENTIALS": "env:A\nB"})
    assert said.splitlines() == [said]


def test_value_of_an_unknown_key_is_not_shown() -> None:
    assert "s3cr3t" not in refusal('[sources.s]\nheader = { Authorization = "s3cr3t" }\npassword = "s3cr3t"')


def test_each_problem_has_a_line_of_its_own() -> None:
    said = refusal('[cache]\nmax_shards = -1\npolicy = "fifo\\nx"\n[log]\nlevel = 3').splitlines()
    assert [line.partition(":")[0] for line in said] == ["cache.max_shards", "cache.policy", "log.level"]
    assert said[1] == 'cache.policy: \'fifo\\nx\' is refused: allowed are "auto", "lru"'


def test_problem_in_the_environment_names_the_variable() -> None:
    assert "CACHEDAEMON_CACHE__GRACE" in refusal(environ={"CACHEDAEMON_CACHE__GRACE": "soon"})
    assert "command line" in refusal(flags={"cache.max_shards": -1})


@pytest.mark.parametrize("text", ["cache = 3", "sources = 3", "sources.s = 3", "[cache]\nunpack_limits = 3"])
def test_a_value_in_place_of_a_table_is_refused(text: str) -> None:
    assert "allowed is a table" in refusal(text)


NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, list[object]] = {
    "cache.max_shards": [-1, 1.5, True, "5x", "x", "", "٣"],
    "cache.max_bytes": [-1, 1.5, True, NAN, "5 gb", "1.0001kB", "5B", "1e3", "99999999TB", "5\n", [], {}],
    "cache.min_free": ["100%", "-1%", "5 percent", "%", True, "5%%"],
    "cache.grace": [-1, INF, NAN, "5 days", "1:00", "s"],
    "cache.dir": ["", 3, "a\0b"],
    "cache.policy": ["fifo", "AUTO", 3],
    "server.socket": ["", 3],
    "server.socket_mode": [660, 0o660, "0888", "1777", "", "rw"],
    "server.socket_group": ["no-such-group-here", -1, 4294967295, "a\0b", True],
    "server.http": ["9464", ":9464", "host:", "host:65536", "http://host:1", "::1:9464", 9464],
    "server.page": ["yes", 1, 0.5],
    "log.level": ["loud", "", 3],
    "fetch.concurrency": [0, -1],
    "fetch.retries": [-1],
    "sources.s.archives": ["maybe", True],
    "sources.s.revalidate": ["sometimes", 0, "0s", -5, True, []],
    "sources.s.headers": [3, "x", []],
    "sources.s.proxy": ["ftp://x/", "x", 3],
    "sources.s.ca": ["/no/such/file"],
    "sources.s.urls": ["/no/such/file"],
    "sources.s.region": [3, "a\nb", "é", " ", "-eu", "a" * 64, "env:REGION", "https://h/"],
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, bad in REFUSED.items() for value in bad])
def test_impossible_value_is_refused_with_path_and_what_is_allowed(path: str, value: object) -> None:
    section, _, key = path.rpartition(".")
    written = str(value) if isinstance(value, float) else json.dumps(value)
    said = refusal(f"[{section}]\n{key} = {written}")
    assert said.startswith(f"{path}: ")
    assert "allowed" in said
    assert "\n" not in said


def test_no_cap_at_all_is_refused_and_a_byte_cap_will_do() -> None:
    assert refusal("[cache]\nmax_shards = 0").startswith("cache.max_bytes: 0 is refused")
    assert loaded("[cache]\nmax_shards = 0\nmax_bytes = '1GB'").cache.max_bytes == 10**9


def test_socket_path_has_at_most_107_bytes() -> None:
    """C-63: the message says how long the path is and what is allowed."""
    longest = "/" + "a" * 106
    assert loaded(flags={"server.socket": longest}).server.socket == Path(longest)
    for path, length in ((longest + "a", 108), ("/" + "ä" * 53 + "bb", 109), ("/" + "a" * 149, 150)):
        said = refusal(flags={"server.socket": path})
        assert "server.socket" in said
        assert f"the path has {length} bytes; allowed are at most 107" in said


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (5, 5),
        ("5", 5),
        ("1kB", 1000),
        ("1.5GB", 1_500_000_000),
        ("2 TB", 2 * 10**12),
        ("1KiB", 1024),
        ("64MiB", 64 << 20),
        ("0.5GiB", 1 << 29),
        ("1TiB", 1 << 40),
        ("1MB", 10**6),
    ],
)
def test_sizes(written: object, size: int) -> None:
    assert values.size(written) == size


@given(st.integers(0, 10**6), st.sampled_from(["kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_size_with_a_unit_is_the_number_times_the_unit(number: int, unit: str) -> None:
    base, power = (1024 if unit.endswith("iB") else 1000), "KMG".index(unit[0].upper()) + 1
    assert values.size(f"{number}{unit}") == number * base**power


@pytest.mark.parametrize(
    ("written", "seconds"), [(0, 0.0), (1.5, 1.5), ("250ms", 0.25), ("5s", 5.0), ("2m", 120.0), ("1.5h", 5400.0)]
)
def test_durations(written: object, seconds: float) -> None:
    assert values.duration(written) == seconds


@given(st.integers(0, 2**60), st.integers(0, 2**40))
def test_share_as_percentage_is_rounded_up_for_bytes_and_inodes(total: int, inodes: int) -> None:
    share = values.share("5%")
    assert share.of(total) == -(-total // 20)
    assert share.of_inodes(inodes, total) == -(-inodes // 20)


def test_share_in_bytes_takes_the_same_part_of_the_inodes() -> None:
    share = values.share("1GB")
    assert share.of(10**12) == 10**9
    assert share.of_inodes(1000, 10**12) == 1
    assert share.of_inodes(1000, 10**9) == share.of_inodes(1000, 10**6) == 1000
    assert share.of_inodes(0, 10**12) == share.of_inodes(0, 0) == 0


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("", None),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(written: str, address: tuple[str, int] | None) -> None:
    assert values.address(written) == address


def test_group_is_given_by_name_or_number() -> None:
    server = loaded("[server]\nsocket_group = 'root'\nadmin_group = 54321").server
    assert (server.socket_group, server.admin_group) == (0, 54321)
    assert loaded("[server]\nsocket_group = ''").server.socket_group is None


@pytest.mark.parametrize(("written", "mode"), [("0660", 0o660), ("660", 0o660), ("0o600", 0o600)])
def test_modes(written: str, mode: int) -> None:
    assert loaded(f"[server]\nsocket_mode = '{written}'").server.socket_mode == mode


@pytest.mark.parametrize(("written", "value"), [("never", "never"), ("always", "always"), ("5m", 300.0), (7, 7.0)])
def test_revalidate(written: object, value: str | float) -> None:
    assert values.revalidate(written) == value


def test_relative_paths_and_home_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/h")
    assert loaded(flags={"cache.dir": "c/../d"}).cache.dir == tmp_path / "d"
    assert loaded(flags={"cache.dir": "~/c"}).cache.dir == Path("/h/c")


# --- sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["S", "_s", "-s", ".s", "a/b", "ä", "a b", "", "a" * 201])
def test_source_names_that_no_folder_can_have_are_refused(name: str) -> None:
    said = refusal(f'[sources.{json.dumps(name)}]\nurl = "{URL}"')
    assert "is no good name: allowed are names of lower-case letters" in said


@pytest.mark.parametrize(
    "url",
    [
        "gopher://x/",
        "",
        "x",
        "/mnt/raid",
        "http:/host/",
        "http://",
        "http:///x",
        "http://h:0/",
        "http://h:99999/",
        "http://h/a b",
        "http://h/ä",
        "http://h/#x",
        "http://[::1/",
        "http://{key}/",
        "http://h/{key}/{key}",
        "HTTP:x",
        "file://host/x/",
        "file://x",
        "file:///x?y=1",
        "file:///x#y",
        "file:///a\nb/",
        "file:///a%00b/",
        "file:relative",
        "s3://",
        "s3:b",
        "s3://b@c/",
        "s3://b?x/",
        "s3://b/p?q",
        "s3://b/p#q",
        "gs://b//p/",
        "gs://b/../p/",
        "az://c/a\tb/",
        "az://{key}/",
    ],
)
def test_urls_that_cannot_be_are_refused(url: str) -> None:
    said = refusal(flags={"sources.s.url": url})
    assert said.startswith("sources.s.url")
    assert "allowed" in said or "no control characters" in said or "is required" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "url",
    [
        "http://h/a%2Fb?sig=a%2Fb%2Bc%3D&k={key}",
        "https://u:p@h:8443/x",
        "file:///mnt/my set/",
        "http://[::1]:8/x",
        "s3://b",
        "gs://b/a b%20/",
        "az://c/x-{key}.tar",
    ],
)
def test_good_urls_stay_as_they_are(url: str) -> None:
    environ = {"AZURE_STORAGE_ACCOUNT_NAME": "mine"}
    assert loaded(environ=environ, flags={"sources.s.url": url}).sources["s"].url == url


@pytest.mark.parametrize(
    "url", ["http://{key}/", "https://h.{key}:8/x", "s3://{key}/a", "ais://{key}/", "az://{key}?x"]
)
def test_key_in_a_host_is_told_as_the_cause(url: str) -> None:
    assert "{key} stands in the host's (or bucket's) name" in refusal(flags={"sources.s.url": url})


def test_schemes_are_those_that_messages_name() -> None:
    assert set(schemes()) == {"file", "http", "https", "ais", "s3", "gs", "az", "ytdlp"}


def test_a_source_needs_a_url() -> None:
    assert refusal("[sources.t]\narchives = 'opaque'").startswith("sources.t.url: is required")


def test_a_source_has_a_url_or_a_file_of_them(folder: Path) -> None:
    (folder / "urls").write_text("k http://h/k")
    listed = f"[sources.s]\nurls = '{folder}/urls'\n"
    assert loaded(listed, flags={"sources.s.url": ""}).sources["s"].urls == folder / "urls"
    assert refusal(listed).startswith("sources.s.urls: is refused beside a url: allowed is one of the two")
    assert "sources.s.region: has no effect" in refusal(listed + "region = 'r'", flags={"sources.s.url": ""})
    said = refusal(environ={"CACHEDAEMON_SOURCES__S__URLS": "/none"}, flags={"sources.s.url": ""})
    assert "(environment variable CACHEDAEMON_SOURCES__S__URLS): '/none' is refused: the file cannot be read" in said


def test_a_setting_may_stand_with_its_default() -> None:
    assert loaded("[sources.s]\nrevalidate = 'never'\nchecksums = ''\nregion = ''").sources["s"].region is None


def test_authorities_are_certificates(folder: Path) -> None:
    (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n")
    said = refusal(f"[sources.s]\nca = '{folder}/ca.pem'")
    assert said.startswith(f"sources.s.ca: '{folder}/ca.pem' is refused: there is no certificate that could be used")


@pytest.mark.parametrize("name", ["Range", "if-none-match", "Content-Length", "Transfer-Encoding", "CONNECTION"])
def test_headers_that_the_daemon_sets_are_refused(name: str) -> None:
    assert "the daemon sets it as a transfer needs it" in refusal(f"[sources.s]\nheaders = {{ {name} = 'x' }}")


SECRETS = ["hunter2", "tok3n", "us3r"]


@pytest.mark.parametrize(
    "url",
    [
        "https://us3r:hunter2@/x?sig=tok3n",
        "ftp://us3r:hunter2@h/x?sig=tok3n",
        "http://us3r:hun/ter2hunter2@h/#tok3n",
        "us3r:hunter2@h?tok3n",
        "us3r:hunter2@h://tok3n@x/",
        "s3://h/x?sig=tok3n@hunter2",
        "http://h/x y?hunter2",
    ],
)
def test_no_secret_of_a_url_is_in_a_message(url: str) -> None:
    said = refusal(flags={"sources.s.url": url}) + refusal(flags={"sources.s.proxy": "x" + url})
    if "://" in url:  # it was pasted into a wrong place
        said += refusal(flags={"sources.s.urls": url}) + refusal(flags={"sources.s.archives": url})
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://u:p@h:1/a/b?x=1#f", "https://h:1/a/b"),
        ("http://h", "http://h"),
        ("http://h?x=@y", "http://h"),
        ("file:///a/b@c/", "file:///a/b@c/"),
        ("http://h/a@1/", "http://h/a@1/"),
        ("u:p@h", "h"),
    ],
)
def test_public_url_has_no_user_and_no_query(url: str, public: str) -> None:
    assert public_url(url) == public


@given(st.text("abc:/@?#", max_size=20))
def test_public_url_of_anything_has_no_query_and_does_not_fail(text: str) -> None:
    assert "?" not in public_url("http://" + text)
    assert "#" not in public_url(text)


def test_settings_show_no_secret() -> None:
    file = """
    [sources.s]
    url = "https://us3r:hunter2@h/?sig=tok3n"
    headers = { Authorization = "Bearer tok3n" }
    proxy = "http://us3r:hunter2@proxy:1/"
    """
    settings = loaded(file, flags={"sources.s.url": None})
    shown = repr(settings) + str(settings) + repr(settings.sources["s"].headers) + str(settings.sources["s"])
    shown += str(settings.model_dump(include={"sources": {"s": {"headers"}}}))
    assert not [secret for secret in SECRETS if secret in shown]


# --- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "cause"),
    [
        ('{ Authorization = "file:/no/such/tok3n-file" }', "cannot be read (No such file or directory)"),
        ('{ Authorization = "env:NOT_SET" }', "NOT_SET is not set"),
        ('{ Authorization = "a\\nb" }', "control characters"),
        ('{ Authorization = "" }', "allowed is text, file:PATH or env:NAME"),
        ("{ Authorization = 3 }", "allowed is text, file:PATH or env:NAME"),
        ('{ "A B" = "x" }', "allowed are header names"),
        ('{ A = "x", a = "y" }', "twice"),
    ],
)
def test_headers_that_cannot_go_out_are_refused(headers: str, cause: str) -> None:
    said = refusal(f"[sources.s]\nheaders = {headers}")
    assert said.startswith("sources.s.headers")
    assert cause in said
    assert "\n" not in said


def test_secret_of_the_environment() -> None:
    settings = loaded('[sources.s]\nheaders = { A = "env:TOKEN" }', {"TOKEN": "tok3n"})
    assert settings.sources["s"].headers["A"].value() == "tok3n"


def test_secret_of_a_file_is_read_again_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    secret = Secret(f"file:{path}", {})
    assert secret.value() == "one"
    path.write_text("three")
    assert secret.value() == "three"
    new = tmp_path / "new"
    new.write_text("seven")  # same size: another inode
    new.rename(path)
    assert secret.value() == "seven"
    stat = path.stat()
    path.write_text("eight")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert secret.value() == "eight"
    path.unlink()
    assert secret.value() == "eight"


def test_a_file_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """At the start it is refused; a secret that was read before keeps its value."""
    path = tmp_path / "token"
    path.write_text("one")
    secret = Secret(f"file:{path}", {})
    assert secret.value() == "one"
    path.unlink()
    os.mkfifo(path)
    assert secret.value() == "one"
    for setting in (f"headers = {{ a = 'file:{path}' }}", f"ca = '{path}'", f"credentials = 'file:{path}'"):
        assert "cannot be read (it is no regular file)" in refusal(f"[sources.s]\n{setting}")


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb", b"\xff", b"a\0", b"x" * 70_000])
def test_secret_file_that_is_no_header_value_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Secret(f"file:{tmp_path / 'token'}", {}).value()
    assert str(tmp_path / "token") in str(caught.value)


def test_secrets_are_compared_by_how_they_are_given() -> None:
    assert Secret("a", {}) == Secret("a", {"X": "y"})
    assert Secret("a", {}) != Secret("b", {})


# --- a cache that overlaps a source ------------------------------------------------------------------------------


def overlap(cache: Path, url: str) -> str:
    return refusal(flags={"cache.dir": str(cache), "sources.s.url": url})


def apart(cache: Path, url: str) -> None:
    assert loaded(flags={"cache.dir": str(cache), "sources.s.url": url}).cache.dir == cache


def test_cache_overlapping_a_source_is_refused(tmp_path: Path) -> None:
    """C-28: the same folder, inside, around, through symbolic links, before the folder is there."""
    source = tmp_path / "raid/set"
    source.mkdir(parents=True)
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "up").symlink_to(tmp_path)
    url = f"file://{source}/"
    assert "cache.dir" in overlap(source, url)
    assert "the same as the folder of sources.s" in overlap(source, url)
    assert "inside" in overlap(source / "new/cache", url)
    assert "around" in overlap(tmp_path, url)
    assert "the same as" in overlap(tmp_path / "link", url)
    assert "inside" in overlap(tmp_path / "link/cache", url)
    assert "inside" in overlap(source / "cache", f"file://{tmp_path}/up/link/")
    assert "the same as" in overlap(source, f"file://{source}")
    assert "inside" in overlap(source / "c", f"file://localhost{source}/{{key}}/x.zip")
    assert "inside" in overlap(tmp_path / "not yet/cache", f"file://{tmp_path}/not%20yet/")
    assert "inside" in overlap(tmp_path / "cache", "FILE:///")


def test_cache_beside_a_source_is_fine(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    apart(tmp_path / "set-cache", f"file://{tmp_path}/set/")
    apart(tmp_path / "cache", f"file://{tmp_path}/set")
    apart(tmp_path / "set/cache", "http://host/set/")


@pytest.mark.root
def test_bind_mount_hides_no_overlap(folder: Path) -> None:
    """C-28: the paths differ, the folder is one."""
    (folder / "set/cache").mkdir(parents=True)
    (folder / "bound").mkdir()
    with bound(folder / "set", folder / "bound"):
        assert "inside" in overlap(folder / "bound/cache", f"file://{folder}/set/")
        assert "the same as" in overlap(folder / "bound", f"file://{folder}/set/")
        assert "around" in overlap(folder / "bound", f"file://{folder}/set/cache/")


@contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


def test_mount_that_hangs_does_not_hang_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at its folder is given up; what the paths as written say still counts."""
    monkeypatch.setattr("cachedaemon.config.checks._LOOK", 0.3)
    with fuse_fs(tmp_path) as mount:
        mount.freeze()
        apart(Path("/local/cache"), f"file://{mount.path}/set/")
        assert "inside" in overlap(Path("/local/cache"), f"file://{mount.path}/../../../local/")
        mount.thaw()


def test_folder_of_a_file_url(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert folder_of(f"file://{tmp_path}/set") == tmp_path / "set"
    assert folder_of(f"file://{tmp_path}/part-") == tmp_path
    assert folder_of(f"file://{tmp_path}/x/{{key}}/y") == tmp_path / "x"
    assert folder_of(URL) is None


# --- reload ------------------------------------------------------------------------------------------------------


def test_changes_say_what_can_be_taken_over() -> None:
    old = loaded('[sources.t]\nurl = "http://t/"')
    new = loaded(
        """
        [cache]
        dir = "/elsewhere"
        max_shards = 3
        unpack_limits = { members = 5 }
        [server]
        http = ""
        [log]
        format = "json"
        level = "debug"
        [sources.u]
        url = "http://u/"
        [sources.s]
        headers = { A = "b" }
        """
    )
    assert changes(old, old) == ([], [])
    reloadable, restart = changes(old, new)
    assert sorted(restart) == ["cache.dir", "log.format", "server.http"]
    assert reloadable == [
        "cache.max_shards",
        "cache.unpack_limits",
        "log.level",
        "sources.s.headers",
        "sources.t",
        "sources.u",
    ]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded().cache.max_shards = 5  # type: ignore[misc]


# --- documentation -----------------------------------------------------------------------------------------------


def fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield f"{prefix}.{name}", field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}.{name}")


def every_setting() -> list[tuple[str, FieldInfo]]:
    models = {name: field.annotation for name, field in Settings.model_fields.items() if name != "sources"}
    models["sources.NAME"] = config.Source
    return [found for prefix, model in models.items() for found in fields(model, prefix)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("path", "field"), every_setting(), ids=[path for path, _ in every_setting()])
def test_every_setting_is_described_and_documented(path: str, field: FieldInfo) -> None:
    """With the default that it has, and a word where a change needs a restart."""
    assert field.description
    rows = re.findall(rf"^\| `{re.escape(path)}` \| (.*?) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert len(rows) == 1
    if path not in ("cache.dir", "server.socket", "sources.NAME.url"):
        assert rows[0][0] == ("none" if field.default is None else f"`{json.dumps(field.default)}`")
    extra = field.json_schema_extra
    assert rows[0][1].endswith("| restart") == (isinstance(extra, dict) and extra["restart"])


def test_documentation_has_no_setting_that_is_not_there() -> None:
    assert set(re.findall(r"^\| `([a-z]+\.[^`]+)` \|", DOCS.read_text(), re.MULTILINE)) == {
        path for path, _ in every_setting()
    }


def test_example_of_the_documentation_is_a_good_configuration(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "c.toml").write_text(example)
    settings = load(str(tmp_path / "c.toml"), {}, {}, root=True)
    assert settings.cache.max_bytes == 500 * 10**9
    assert settings.sources["imagenet"].url.endswith("{key}?sig=a%2Fb%2Bc%3D")
    assert settings.sources["imagenet"].bandwidth == 250 * 10**6
    assert settings.sources["raid"].archives == "unpack"


def test_messages_of_the_documentation_are_real() -> None:
    for tables in (
        "[cache]\nmax_shard = 1",
        "[sources.s]\nurl = 'gopher://x/'",
        "[sources.s]\nurl = 'file:///x/'\netl = 'resize'",
    ):
        said = refusal(tables, flags={"sources.s.url": None} if "url" in tables else {})
        assert said[:75] in DOCS.read_text()
