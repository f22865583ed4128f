"""Sources that somebody else's library reads: what may be configured, how failures are told, where a page may lead."""

from __future__ import annotations

import errno
import ftplib
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from cachedaemon.config import Source, bare_environment, public_url, whole_environment
from cachedaemon.config.extras import problems
from cachedaemon.conformance import bytes_of, opened
from cachedaemon.errors import BadRequest
from cachedaemon.foreign.failures import failed
from cachedaemon.foreign.guard import Guard, is_public
from cachedaemon.foreign.process import Failure
from cachedaemon.foreign.trees import STEP_LEAST, STEP_MOST, Seen, Tree, next_step
from cachedaemon.model import Validators
from cachedaemon.origins.foreign import is_strong, validators


def said(url: str, **settings: object) -> list[str]:
    return list(problems("sources.s", Source.model_validate({"url": url, **settings})))


# --- configuration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "fsspec+sftp://user:word@host:2222/a b/ü/",
        "fsspec+ftp://host/set-{key}.zip",
        "fsspec+zip:///",
        "fsspec+github://",
        "ytdlp:",
        "ytdlp:https://host/watch?v={key}",
        "ytdlp:https://user:word@host:8443/videos/",
    ],
)
def test_urls_that_are_taken(url: str) -> None:
    assert Source.model_validate({"url": url}).url == url


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("fsspec+sftp:host", "allowed is fsspec"),
        ("fsspec+://host/", "allowed is fsspec"),
        ("fsspec+sftp://{key}/", "stands in the host"),
        ("fsspec+sftp://host/a?b=c", "storage options go into credentials"),
        ("fsspec+sftp://host/a#b", "storage options go into credentials"),
        ("fsspec+sftp://host/a\nb", "allowed is fsspec"),
        ("fsspec+http://host/", "allowed is http://"),
        ("fsspec+file:///srv/", "allowed is file://"),
        ("fsspec+local:///srv/", "allowed is file://"),
        ("fsspec+simplecache://x/", "no cap would count"),
        ("fsspec+zip://x::file:///etc/a.zip", "no cap would count"),
        ("ytdlp:{key}", "allowed are ytdlp:"),
        ("ytdlp:https://{key}/", "stands in the host"),
        ("ytdlp:https://host", "part of the host's name"),
        ("ytdlp:file:///etc/", "allowed are ytdlp:"),
        ("ytdlp:https://host/#{key}", "allowed are ytdlp:"),
        ("ytdlp:ytsearch:", "allowed are ytdlp:"),
    ],
)
def test_urls_that_are_refused(url: str, cause: str) -> None:
    with pytest.raises(ValidationError, match=cause):
        Source.model_validate({"url": url})


def test_what_a_url_shows() -> None:
    assert public_url("fsspec+sftp://user:word@host:22/set/") == "fsspec+sftp://host:22/set/"
    assert public_url("ytdlp:https://user:word@host/watch?v={key}") == "ytdlp:https://host/watch"
    assert public_url("ytdlp:") == "ytdlp:"


def test_what_is_missing_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("fsspec+sftp://h/") == said("ytdlp:") == []
    assert said("fsspec+nonsense://h/")[0].startswith("sources.s.url: fsspec has no protocol 'nonsense': allowed are ")
    assert said("fsspec+gcs://b/") == [
        "sources.s.url: fsspec+gcs needs a package that is not installed: Please install gcsfs to access Google Storage"
    ]
    for package in ("fsspec", "yt_dlp"):  # as where the extra was not installed
        monkeypatch.setitem(sys.modules, package, None)
    needs, checkout = "needs a package that is not installed: pip install ./client", "in a checkout of cachedaemon"
    assert said("fsspec+sftp://h/") == [f"sources.s.url: fsspec+sftp {needs} '.[fsspec]' {checkout} brings it"]
    assert said("ytdlp:") == [f"sources.s.url: ytdlp {needs} '.[ytdlp]' {checkout} brings it"]


def test_protocols_that_are_named_as_allowed_are_not_refused() -> None:
    allowed = said("fsspec+nonsense://h/")[0].partition("allowed are ")[2].split(", ")
    assert {"sftp", "ftp", "smb"} <= set(allowed)
    for protocol in allowed:
        Source.model_validate({"url": f"fsspec+{protocol}://h/"})


@pytest.mark.skipif(find_spec("smbclient") is not None, reason="smbprotocol is installed")
def test_a_package_is_named_as_it_is_installed() -> None:
    """The implementation of SMB imports `smbclient`, of which an index has nothing."""
    assert said("fsspec+smb://h/") == [
        "sources.s.url: fsspec+smb needs a package that is not installed: pip install smbprotocol"
    ]


def test_credentials_are_storage_options() -> None:
    assert said("fsspec+sftp://h/", credentials='{"password": "x"}') == []
    for text in ("s3cr3t", '{"s3cr3t":' * 5000):
        assert said("fsspec+sftp://h/", credentials=text) == [
            "sources.s.credentials: its value is refused: allowed is a JSON object of storage options"
        ]


def test_the_daemons_own_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHEDAEMON_SOURCES__S__CREDENTIALS", "NOTIFY_SOCKET", "PYTHONSTARTUP", "FSSPEC_SFTP"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    assert "mine" not in whole_environment().values()
    assert whole_environment()["SSH_AUTH_SOCK"] == "/run/agent"
    assert set(bare_environment()) == {"PYTHONPATH", "PYTHONUTF8", "PATH", "HOME"}


# --- failures ----------------------------------------------------------------------------------------------------


class AuthenticationException(Exception):
    """By name, as it is told without importing paramiko."""


def with_status(status: int) -> Exception:
    cause = Exception("https://user:word@host/ said no")
    cause.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return cause


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (FileNotFoundError("https://user:word@host/a"), "Missing"),
        (NotADirectoryError(), "Missing"),
        (PermissionError("word"), "OriginRefused"),
        (OSError(errno.EACCES, "word"), "OriginRefused"),
        (OSError(errno.EIO, "word"), "OriginUnavailable"),
        (ConnectionResetError(errno.ECONNRESET, "word"), "OriginUnavailable"),
        (socket.gaierror(-2, "word"), "OriginUnavailable"),
        (TimeoutError("word"), "OriginUnavailable"),
        (EOFError("word"), "OriginUnavailable"),
        (AuthenticationException("word"), "OriginRefused"),
        (ModuleNotFoundError("word", name="gcsfs"), "OriginRefused"),
        (TypeError("unexpected keyword argument 'word'"), "OriginRefused"),
        (ftplib.error_perm("530 word"), "OriginRefused"),
        (ftplib.error_temp("450 word"), "OriginUnavailable"),
        (ftplib.error_temp("421 word"), "Overloaded"),
        (with_status(404), "Missing"),
        (with_status(403), "OriginRefused"),
        (with_status(429), "Overloaded"),
        (with_status(503), "Overloaded"),
        (with_status(500), "OriginUnavailable"),
    ],
)
def test_failures_are_told_apart_and_never_in_their_own_words(cause: Exception, kind: str) -> None:
    told = failed(cause)
    assert told.kind == kind
    assert "word" not in told.why


def youtube_says(text: str) -> Exception:
    from yt_dlp.utils import ExtractorError

    return ExtractorError(text, expected=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Video unavailable. This video has been removed by the uploader", "Missing"),
        ("Video unavailable", "Missing"),
        ("Video unavailable. This video is private", "OriginRefused"),
        ("Private video. Sign in if you've been granted access to this video", "OriginRefused"),
        ("This video is not available in your country", "OriginRefused"),
        ("Sign in to confirm your age", "OriginRefused"),
        ("Requested format is not available", "OriginRefused"),
    ],
)
def test_what_a_site_says_of_a_video(text: str, kind: str) -> None:
    from cachedaemon.foreign.refusals import failed as video_failed

    assert video_failed(youtube_says(text)).kind == kind


def test_what_the_network_says_counts_more_than_what_the_extractor_makes_of_it() -> None:
    from yt_dlp.networking.exceptions import TransportError
    from yt_dlp.utils import DownloadError, ExtractorError

    from cachedaemon.foreign.refusals import failed as video_failed

    deep = ExtractorError("Unable to download webpage: not found", cause=TransportError("https://h/?sig=word"))
    told = video_failed(DownloadError("word", (ExtractorError, deep, None)))
    assert told.kind == "OriginUnavailable"
    assert "word" not in told.why


# --- validators and steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "found", "strong"),
    [
        ({"size": 3, "ETag": '"a"'}, Validators(etag='"a"'), True),
        ({"size": 3, "ETag": 'W/"a"'}, Validators(etag='W/"a"'), False),
        ({"size": 3, "generation": 7}, Validators(version="7"), True),
        ({"size": 3, "mtime": 12.5}, Validators(version="3", modified="12.5"), True),
        ({"size": 3}, Validators(), False),
        ({}, Validators(), False),
    ],
)
def test_what_tells_versions_apart(info: dict[str, object], found: Validators, *, strong: bool) -> None:
    """A size alone does not."""
    assert validators(Seen.of(info).said()) == found
    assert is_strong(found) is strong


def test_a_slow_file_system_is_asked_for_less_at_once() -> None:
    assert next_step(STEP_LEAST, 0.01) == 2 * STEP_LEAST
    assert next_step(STEP_MOST, 0.01) == STEP_MOST
    assert next_step(1 << 20, 0.3) == 1 << 20
    assert next_step(1 << 20, 2) == 1 << 19
    assert next_step(STEP_LEAST, 20) == STEP_LEAST


def test_common_calls_of_a_file_system() -> None:
    """In pieces of a known size, to the end where the size is not told, and listed."""
    memory = Tree("memory://set/", {})
    data = bytes_of("a", 3 * STEP_LEAST + 7)
    memory.fs.pipe("/set/deep/a b?.bin", data)
    for start, stop in ((0, len(data)), (5, 6), (7, 7), (STEP_LEAST, len(data))):
        got = bytearray()
        memory.pour("deep/a b?.bin", start, stop, got.extend)
        assert got == data[start:stop]
    got = bytearray()
    memory.pour_whole("deep/a b?.bin", got.extend)
    assert got == data
    assert memory.look("deep/a b?.bin").size == len(data)
    assert [key for keys in memory.walk() for key in keys] == ["deep/a b?.bin"]
    with pytest.raises(FileNotFoundError):
        memory.look("none.bin")
    with pytest.raises(IsADirectoryError):
        memory.look("deep")
    with pytest.raises(Failure, match="folder is not there"):
        Tree("memory://nowhere/", {}).look("none.bin")


# --- where a page may lead ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a01:203", False),
        ("2002:7f00:1::", False),
        ("a-name", False),
    ],
)
def test_public_addresses(host: str, *, public: bool) -> None:
    assert is_public(host) is public


def refuses(guard: Guard, address: object) -> bool:
    try:
        guard("socket.connect", (None, address))
    except PermissionError:
        return True
    return False


def test_only_the_configured_host_may_be_a_private_one() -> None:
    """At its own port, and the proxy; nothing else of the node's network, however the page comes to it."""
    guard = Guard("http://127.0.0.1:8000/watch", "http://127.0.0.2:3128")
    assert not refuses(guard, ("127.0.0.1", 8000))
    assert not refuses(guard, ("127.0.0.2", 3128))
    assert not refuses(guard, ("93.184.216.34", 443))
    assert not guard.refused
    for address in (("127.0.0.1", 22), ("127.0.0.3", 8000), ("::1", 8000, 0, 0), "/run/docker.sock"):
        assert refuses(guard, address)
    assert guard.refused
    assert not refuses(Guard("https://127.0.0.1/x"), ("127.0.0.1", 443))


@pytest.mark.asyncio
async def test_a_key_is_no_url() -> None:
    """With `ytdlp:` alone it is an id of YouTube; else it is escaped into the configured page's address."""
    async with opened("ytdlp:") as youtube:
        youtube.check_key("dQw4w9WgXcQ")
        for key in ("https://evil/x", "evil.com/abc", "ytsearch:abcd", "dQw4w9WgXc", "dQw4w9WgXcQ&x=1", "file:/etc/a"):
            with pytest.raises(BadRequest, match="no id of a video"):
                youtube.check_key(key)


TARGETS: list[tuple[str, str, str]] = [
    ("ytdlp:", "dQw4w9WgXcQ", "https://www.youtube.com/watch?v=dQw4w9WgXcQ"),
    ("ytdlp:https://h/w?v={key}&x=1", "a&b=c/d#e", "https://h/w?v=a%26b%3Dc%2Fd%23e&x=1"),
    ("ytdlp:https://h/w/", "a/b?c#d%20", "https://h/w/a/b%3Fc%23d%2520"),
    ("ytdlp:https://h/w/", "//evil/x", "https://h/w///evil/x"),
    ("ytdlp:https://h/", "@evil/x", "https://h/@evil/x"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("url", "key", "target"), TARGETS)
async def test_where_a_key_goes(url: str, key: str, target: str) -> None:
    async with opened(url) as origin:
        target_of: Callable[[str], str] = origin._target  # type: ignore[attr-defined]
        assert target_of(key) == target


def test_a_failure_is_handed_on_as_it_is() -> None:
    with pytest.raises(Failure) as error:
        failed(Failure("Changed", "why"))
    assert error.value.kind == "Changed"


def test_helpers_import_nothing_of_the_daemon(folder: Path) -> None:
    """They start fast: neither its loop nor its web client comes along."""
    import subprocess

    code = "import sys, cachedaemon.foreign.anything; print([m for m in ('aiohttp', 'pydantic', 'prometheus_client') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stdout.strip() == "[]"
