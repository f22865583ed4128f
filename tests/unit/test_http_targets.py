"""Redirects and sites, byte for byte; which secrets go where."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cachedaemon.conformance import opened, read
from cachedaemon.errors import Missing, OriginRefused
from cachedaemon.origins.targets import followed, is_same_site, placed, sendable, without_user
from tests.contract.origins.places import certificates
from tests.fakes import content
from tests.fakes.origin import Origin

DATA = content.data("k", 1000)

# ---- pure


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("https://h/a%2Fb?x=%2b+'&y=\"{}|;#there", "https://h/a%2Fb?x=%2b+'&y=\"{}|;#there"),
        ("HTTPS://h", "HTTPS://h"),
        ("//o:8/a/../b", "http://o:8/a/../b"),
        ("/a/../b/./%2e%2E?", "http://h:1/a/../b/./%2e%2E?"),
        ("/sp ace\té", "http://h:1/sp%20ace%09%C3%A9"),
        ("/raw\udcff", "http://h:1/raw%FF"),
        ("b", "http://h:1/dir/b"),
        ("../b?x=%2F", "http://h:1/b?x=%2F"),
        ("?x=1;y", "http://h:1/dir/a?x=1;y"),
        ("", "http://h:1/dir/a?q"),
    ],
)
def test_where_a_redirect_leads(location: str, where: str) -> None:
    assert followed("http://h:1/dir/a?q", location) == where


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", "/"),
        ("http://h?x", "/?x"),
        ("http://h/a?", "/a?"),
        ("http://h/a#b", "/a"),
        ("http://h/a/../b//c;d?e?f=%zz&'\"", "/a/../b//c;d?e?f=%zz&'\""),
    ],
)
def test_what_goes_out(url: str, target: str) -> None:
    assert sendable(url).raw_path_qs == target
    assert str(sendable(url)) == f"http://h{target}", "as a proxy is asked"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h/a",
        "ftp://h/",
        "http:/h",
        "http:///a",
        "http://:80/",
        "http://h:x/",
        "http://[",
        "http://u@/",
    ],
)
def test_what_cannot_go_out(url: str) -> None:
    with pytest.raises(ValueError):
        sendable(url)


def test_sites() -> None:
    first = "http://h:80/a"
    for same in ("http://h/b", "HTTP://H/", "http://h:80", "https://h/", "https://h:443/"):
        assert is_same_site(first, same), same
    for other in ("http://h:81/", "https://h:80/", "https://h:8443/", "http://h.x/", "http://x.h/", "http://h@x/"):
        assert not is_same_site(first, other), other
    assert not is_same_site("https://h/", "http://h/"), "TLS may come in, never go"
    assert not is_same_site("http://h:8080/", "https://h/")


def test_user_and_password() -> None:
    assert without_user("http://h/@") == ("http://h/@", "")
    assert without_user("http://u:p@h/") == ("http://h/", "Basic dTpw")
    assert without_user("http://u:p%40%3A@h/") == ("http://h/", "Basic dTpwQDo=")
    assert without_user("http://u@x:p@h/") == ("http://h/", "Basic dUB4OnA=")


@pytest.mark.parametrize("key", ["@evil.example/x", ":81/x", ".evil.example/x", "x", "a/b", "?q", "#f", "\\evil"])
@pytest.mark.parametrize("url", ["http://h", "https://user:word@h:8", "HTTP://[::1]"])
def test_no_key_becomes_a_part_of_the_host(url: str, key: str) -> None:
    """Secrets go to the host that is configured, whatever a reader asks for."""
    whole = placed(url, key)
    assert whole.startswith(url + "/")
    assert urlsplit(whole).netloc == urlsplit(url).netloc


@pytest.mark.asyncio
async def test_a_source_without_a_path_asks_its_own_host() -> None:
    with Origin() as origin, Origin() as other:
        origin.put("a.bin", data=DATA)
        other.default(lambda name: other.put(name, data=b"not this one"))
        place = other.url.removeprefix("http://").rstrip("/")
        async with opened(origin.url.rstrip("/"), {"headers": {"X-Secret": "word"}}) as source:
            assert await read(source, "a.bin") == DATA
            with pytest.raises(Missing):
                await read(source, f"@{place}/x")
        assert other.gets == 0


def test_a_key_in_its_place() -> None:
    assert placed("http://h/a/", "k/ü?#.bin ") == "http://h/a/k/%C3%BC%3F%23.bin%20"
    assert placed("http://h/{key}?s=%2F", "k%2F+&;='\"") == "http://h/k%252F+&;='%22?s=%2F"
    assert placed("http://h/?f={key}&s=%2F", "k%2F+&;='\"") == "http://h/?f=k%252F%2B%26%3B%3D'%22&s=%2F"


# ---- over servers


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["x?", "x?sig=a%2Fb%2Bc%3D", "x%27/../y;z//?a=b?c&d='\"{}", "%7e~?%zz"])
async def test_a_location_goes_out_as_it_is(target: str) -> None:
    """C-10, for redirects: a signature covers every byte."""
    with Origin() as server, Origin() as other:
        for where in (f"/{target}", server.url + target, other.url + target):
            for site in (server, other):
                site.put(target, data=DATA)
            server.put("k.bin", redirect=where)
            async with opened(server.url) as origin:
                assert await read(origin, "k.bin") == DATA
            assert (server if where[0] == "/" else server if where.startswith(server.url) else other).log[-1].line == (
                f"GET /{target} HTTP/1.1"
            )


@pytest.mark.asyncio
async def test_secrets_stay_behind_for_good() -> None:
    """Another host must not have a source's secrets sent to a place of its choice either."""
    with Origin() as server, Origin() as other:
        server.put("k.bin", redirect=other.url + "on")
        other.put("on", redirect=server.url + "back", extra={"Set-Cookie": "a=b"})
        server.put("back", data=DATA)
        async with opened(server.url.replace("//", "//u:p@"), {"headers": {"X-Token": "t", "Cookie": "c=d"}}) as origin:
            assert await read(origin, "k.bin") == DATA
        first, last = server.log
        assert {"x-token", "cookie", "authorization"} <= set(first.headers)
        for request in (other.log[0], last):
            assert not {"x-token", "cookie", "authorization", "referer"} & set(request.headers)


@pytest.mark.asyncio
async def test_a_user_in_a_location_is_for_that_hop_alone() -> None:
    with Origin() as server, Origin() as other:
        server.put("k.bin", redirect=other.url.replace("//", "//them:pw@") + "on")
        other.put("on", redirect=server.url + "back")
        server.put("back", data=DATA)
        async with opened(server.url, {"headers": {"authorization": "mine"}}) as origin:
            assert await read(origin, "k.bin") == DATA
        assert server.log[0].headers["authorization"] == "mine"
        assert other.log[0].headers["authorization"] == "Basic dGhlbTpwdw=="
        assert "authorization" not in server.log[1].headers


@pytest.mark.asyncio
async def test_one_header_of_a_name_goes_out() -> None:
    """A configured one in place of what user and password stand for, in whatever case of letters."""
    with Origin() as server:
        server.put("k.bin", data=DATA)
        headers = {"authorization": "mine", "accept-encoding": "gzip", "user-agent": "me"}
        async with opened(server.url.replace("//", "//u:p@"), {"headers": headers}) as origin:
            assert await read(origin, "k.bin") == DATA
        names = [name.lower() for name, _ in server.log[0].fields]
        assert len(names) == len(set(names))
        assert {name: server.log[0].headers[name] for name in headers} == headers


@pytest.mark.asyncio
async def test_secrets_do_not_leave_tls(folder: Path) -> None:
    authority, tls = certificates(folder)
    with Origin(tls=tls) as server, Origin() as plain:
        plain.put("there", data=DATA)
        server.put("k.bin", redirect=plain.url + "there")
        async with opened(server.url, {"ca": str(authority), "headers": {"X-Token": "t"}}) as origin:
            assert await read(origin, "k.bin") == DATA
        assert server.log[0].headers["x-token"] == "t"
        assert "x-token" not in plain.log[0].headers


@pytest.mark.asyncio
async def test_a_redirect_to_no_web_server_says_so() -> None:
    with Origin() as server:
        server.put("k.bin", redirect="file:///SECRET")
        async with opened(server.url) as origin:
            with pytest.raises(OriginRefused, match=r"s/k.bin: the URL, or where it redirects to") as error:
                await read(origin, "k.bin")
        assert "SECRET" not in str(error.value)
