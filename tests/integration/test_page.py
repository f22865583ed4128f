"""The page and its feed, as any program sees them: read-only, of this machine alone, live, and off where it is not wanted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import itertools
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from cachedaemon.cli.stream import parsed
from cachedaemon_client import ShardCache
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

NASTY = "</script><script>alert(1)</script>\r\ndata: no\n\n<img src=x onerror=alert(2)>.bin"


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(30):
            one.put(f"a-{number}.bin", 1000 + number)
        one.put(NASTY, 10)
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    secret = {"url": f"{origin.url}{{key}}?sig=SECRETSIG", "headers": {"Authorization": "Bearer SECRETTOKEN"}}
    with Daemon({"s": secret, "other": origin.url}, max_shards=20, grace="200ms", http=True) as one:
        yield one


def ask(daemon: Daemon, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    """Over the TCP listener."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as link:
        link.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = link.getresponse()
        return answer.status, answer.headers, answer.read().decode()


@contextlib.contextmanager
def looking(daemon: Daemon) -> Iterator[Iterator[dict[str, Any]]]:
    """What a browser hears, as it comes; each with its name under `event`."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as link:
        link.request("GET", "/page/events", headers={"Sec-Fetch-Site": "same-origin"})
        answer = link.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.headers["Content-Type"] == "text/event-stream"
        yield _heard(answer)


def _heard(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    # `points` is a list, which is no body of the API's own events: it is put under a name here.
    yield from parsed(
        line.replace(b"data: [", b'data: {"points":[').replace(b"]\n", b"]}\n") if line.startswith(b"data: [") else line
        for line in answer
    )


def first(events: Iterator[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in events if one["event"] == name)


# ---- the page


def test_the_page_is_one_file_that_runs_nothing_but_its_own(daemon: Daemon) -> None:
    status, headers, html = ask(daemon, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    for kind in ("style", "script"):
        (own,) = re.findall(f"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert set(re.findall(r"""https?://[^"'\s]+""", html)) == {"http://www.w3.org/2000/svg"}, "a name, no request"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| on\w+=| style=", html)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_no_other_site_gets_at_it(daemon: Daemon) -> None:
    _, headers, _ = ask(daemon, "/", Origin="https://elsewhere.example")
    assert not [name for name in headers if name.lower().startswith("access-control")]
    status, _, said = ask(daemon, "/page/events", Sec_Fetch_Site="cross-site")
    assert (status, json.loads(said)["error"]["code"]) == (403, "forbidden")
    assert ask(daemon, "/page/events", Sec_Fetch_Site="same-site")[0] == 403
    assert ask(daemon, "/", Host="elsewhere.example")[0] == 403
    assert ask(daemon, "/page/events", Host="elsewhere.example:80")[0] == 403


@pytest.mark.parametrize("path", ["/", "/page/events"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_only_read(daemon: Daemon, path: str, method: str) -> None:
    assert ask(daemon, path, method)[0] == 405


def test_it_is_not_on_the_socket(daemon: Daemon) -> None:
    assert daemon.api("GET", "/").status == 404
    assert daemon.api("GET", "/page/events").status == 404


def test_off_it_is_gone_and_the_rest_stays(origin: Origin) -> None:
    with Daemon({"s": origin.url}, http=True, server={"page": False}) as daemon:
        assert [ask(daemon, path)[0] for path in ("/", "/page/events")] == [404, 404]
        assert [ask(daemon, path)[0] for path in ("/metrics", "/healthz", "/readyz")] == [200, 200, 200]
        assert daemon.api("GET", "/v1/glance").status == 200


# ---- the feed


def test_a_shard_that_arrives_is_shown_and_so_is_its_lease(daemon: Daemon) -> None:
    with looking(daemon) as events:
        before = first(events, "map")
        assert "a-0.bin" not in [row[1] for row in before["shards"]]
        with ShardCache("s", socket=str(daemon.socket)) as cache, cache.open("a-0.bin"):
            for said in events:
                if said["event"] == "map" and ["s", "a-0.bin", "l", 1000] in said["shards"]:
                    break
        for said in events:
            if said["event"] == "map" and ["s", "a-0.bin", "r", 1000] in said["shards"]:
                break
    assert daemon.evict("s", "a-0.bin").status == 204


def test_a_transfer_is_shown_with_who_waits(daemon: Daemon, origin: Origin) -> None:
    gate = Gate(2 << 20)
    origin.put("gated.bin", 3 << 20, gate=gate)
    with looking(daemon) as events, contextlib.closing(daemon.connection()) as asker:
        body = json.dumps({"source": "s", "key": "gated.bin", "wait": 30})
        asker.request("POST", "/v1/acquire", body, {"Content-Type": "application/json"})
        shown = next(one for one in events if one["event"] == "now" and one["waiters"] and one["transfers"][0]["bytes"])
        transfer = shown["transfers"][0]
        assert (transfer["key"], transfer["size"], transfer["for"]) == ("gated.bin", 3 << 20, "reader")
        assert 0 < transfer["bytes"] <= 2 << 20
        assert (transfer["waiters"], shown["sources"][0]["waiters"]) == (1, 1)
        gate.open()
        assert asker.getresponse().status == 200


def test_no_url_and_no_secret_is_in_it(daemon: Daemon, origin: Origin) -> None:
    daemon.path("s", "a-1.bin")
    origin.put("refused.bin", 10, always=None)
    assert daemon.acquire("s", "not-there.bin", wait=5).status == 404
    with looking(daemon) as events:
        text = json.dumps([next(events) for _ in range(4)])
    page, glance = ask(daemon, "/")[2], json.dumps(daemon.api("GET", "/v1/glance").body)
    for said in (text, page, glance):
        assert not [word for word in ("SECRET", "sig=", "127.0.0.1", str(daemon.home), "Bearer") if word in said]
    assert "http://" not in text


def test_a_key_cannot_break_out_of_its_event(daemon: Daemon) -> None:
    daemon.path("other", NASTY)
    with looking(daemon) as events:
        assert any(NASTY in [row[1] for row in one["shards"]] for one in events if one["event"] == "map")
        assert first(events, "now")["sources"][1]["shards"] == 1


def test_what_has_not_changed_is_not_told_again(daemon: Daemon) -> None:
    """The map is the large part, and mostly stays as it is."""
    with looking(daemon) as events:
        heard = [next(events) for _ in range(7)]
    maps = [one["shards"] for one in heard if one["event"] == "map"]
    assert len(maps) < len([one for one in heard if one["event"] == "now"])
    assert all(before != after for before, after in itertools.pairwise(maps))


def test_plots_are_not_empty_when_somebody_comes_to_look(daemon: Daemon) -> None:
    daemon.path("s", "a-2.bin")
    daemon.path("s", "a-2.bin")
    until(lambda: sum(p["hits"] for p in daemon.api("GET", "/v1/glance").body["points"]), 20, "a point with the hit")
    with looking(daemon) as events:
        points = first(events, "points")["points"]
    assert sum(point["hits"] for point in points) >= 1
    assert sum(point["asked"] for point in points) > sum(point["hits"] for point in points)
    assert all(0 < point["seconds"] < 60 for point in points)


def test_viewers_share_a_snapshot_a_second_and_are_bounded(daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        all_of_them = [stack.enter_context(looking(daemon)) for _ in range(16)]
        status, headers, said = ask(daemon, "/page/events")
        assert (status, json.loads(said)["error"]["code"]) == (429, "too_many")
        assert headers["Retry-After"]
        ats = [{first(events, "now")["at"] for _ in range(2)} for events in all_of_them]
        assert len(set.union(*ats)) <= 6, "not sixteen times two"
    until(lambda: _is_free(daemon), 10, "a place for a viewer")


def _is_free(daemon: Daemon) -> bool:
    try:
        with looking(daemon):
            return True
    except AssertionError:
        return False


def test_a_daemon_that_stops_waits_for_no_viewer(origin: Origin) -> None:
    with Daemon({"s": origin.url}, http=True) as daemon, looking(daemon) as events:
        next(events)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 1.9, "before answers are cut off"
        assert [one["event"] for one in events if one["event"] != "now"] == []


# ---- the snapshot of `/v1/glance`


def test_a_glance_has_all_that_the_feed_has(daemon: Daemon) -> None:
    said = daemon.api("GET", "/v1/glance").body
    with looking(daemon) as events:
        shown = first(events, "now")
    assert set(said) - {"map", "points"} == set(shown) - {"event"}
    last = said["points"][-1]["at"] if said["points"] else 0
    later = daemon.api("GET", f"/v1/glance?since={last}").body["points"]
    assert all(point["at"] > last for point in later)
    assert daemon.api("GET", "/v1/glance?since=soon").code == "bad_request"
    assert daemon.api("GET", "/v1/glance?since=inf").code == "bad_request"
