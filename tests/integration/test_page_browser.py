"""The page in a real browser: it loads without a complaint, asks nobody else, is live, and executes no key."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from cachedaemon_client import ShardCache
from tests.fakes.browser import Browser
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Gate, Object, Origin
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.browser import Tab

pytestmark = pytest.mark.slow

NASTY = (
    "<img src=x onerror=\"document.title='gotcha'\">.bin",
    "</script><script>document.title='gotcha'</script>.bin",
    "new\nline\u202e.bin",
)
CELLS = "document.querySelectorAll('.cell{}').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        one.default(lambda name: Object(name, 1000) if name.startswith("b-") else None)
        for number in range(9):
            one.put(f"a-{number}.bin", 1000 + number)
        for name in NASTY:
            one.put(name, 10)
        yield one


@pytest.fixture(scope="module")
def running(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url}, max_shards=12, grace="200ms", http=True) as one:
        yield one


@pytest.fixture
def daemon(running: Daemon) -> Iterator[Daemon]:
    """Empty again after each test."""
    yield running
    for row in running.shards():
        until(lambda key=row["key"]: running.evict("s", key).status == 204, 10, "the end of a lease")


@contextlib.contextmanager
def shown(browser: Browser, daemon: Daemon, **media: str) -> Iterator[Tab]:
    """The page, which must have nothing to complain of and ask nobody but the daemon."""
    home = f"http://127.0.0.1:{daemon.port}/"
    tab = browser.open(home, **media)
    tab.until("document.getElementById('link').textContent === 'live'")
    yield tab
    assert tab.run("document.readyState") == "complete"
    assert not tab.complaints
    assert {url for url in tab.requests if not url.startswith("data:")} <= {home, home + "page/events"}
    tab.close()


def test_shards_come_and_go_while_somebody_looks(browser: Browser, daemon: Daemon, origin: Origin) -> None:
    gate = Gate(2 << 20)
    origin.put("gated.bin", 3 << 20, gate=gate)
    with shown(browser, daemon) as tab:
        assert tab.run(CELLS.format(".e")) == 12, "the cap's places"
        daemon.path("s", "a-0.bin")
        tab.until(CELLS.format(".r") + " === 1")
        daemon.prefetch("s", ["gated.bin"])
        tab.until(CELLS.format(".f") + " === 1")
        tab.until("document.querySelector('#transfers tbody').innerText.includes('2.10 MB of 3.15 MB')")
        gate.open()
        tab.until(CELLS.format(".r") + " === 2")
        with ShardCache("s", socket=str(daemon.socket)) as cache, cache.open("a-0.bin"):
            tab.until(CELLS.format(".l") + " === 1")
        daemon.evict("s", "gated.bin")
        tab.until(CELLS.format(".r") + " === 1")
        assert "Nothing is being fetched." in tab.text()
        tab.until("document.getElementById('f-hits').textContent.includes('%')", 30)
        tab.until("document.querySelector('.stroke').getAttribute('d').length > 0", 30)


def test_no_key_is_executed(browser: Browser, daemon: Daemon) -> None:
    with shown(browser, daemon) as tab:
        for name in NASTY:
            daemon.path("s", name)
        tab.until(CELLS.format(".r") + " === 3")
        tab.run("document.getElementById('list').open = true")
        tab.until("document.querySelectorAll('#list tbody tr').length === 3")
        assert "gotcha" not in tab.run("document.title")
        assert tab.run("document.images.length") == 0
        assert tab.run("document.scripts.length") == 1
        shown_names = tab.run("[...document.querySelectorAll('#list td.key')].map(one => one.textContent)")
        assert sorted(shown_names) == sorted(f"s/{name}" for name in NASTY)


def test_light_dark_and_still(browser: Browser, daemon: Daemon) -> None:
    daemon.path("s", "a-0.bin")
    look = "getComputedStyle(document.body).{}"
    with shown(browser, daemon, prefers_color_scheme="light") as tab:
        light = (tab.run(look.format("backgroundColor")), tab.run(look.format("color")))
        tab.until(CELLS.format(".r"))
        moving = tab.run("getComputedStyle(document.querySelector('.cell i')).transitionDuration")
    with shown(browser, daemon, prefers_color_scheme="dark", prefers_reduced_motion="reduce") as tab:
        dark = (tab.run(look.format("backgroundColor")), tab.run(look.format("color")))
        tab.until(CELLS.format(".r"))
        still = tab.run("getComputedStyle(document.querySelector('.cell i')).transitionDuration")
    assert light != dark
    assert [_is_bright(colour) for colour in (*light, *dark)] == [True, False, False, True]
    assert (moving != "0s", still) == (True, "0s")


def _is_bright(colour: str) -> bool:
    parts = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3 > 128


def test_all_of_it_by_keyboard_and_in_words(browser: Browser, daemon: Daemon) -> None:
    daemon.path("s", "a-0.bin")
    daemon.path("s", "a-1.bin")
    with shown(browser, daemon) as tab:
        tab.until(CELLS.format(".r") + " === 2")
        assert tab.run("document.getElementById('map').getAttribute('aria-label')") == "Map of shards: 2 kept"
        labels = tab.run("[...document.querySelectorAll('svg')].map(one => one.getAttribute('aria-label'))")
        assert len(labels) == 4
        assert all(labels)
        tab.run("document.getElementById('map').focus()")
        tab.key("ArrowRight")
        tab.key("ArrowRight")
        assert tab.run("document.getElementById('told').textContent") == "s/a-1.bin: kept, 1.00 kB"
        tab.key("Home")
        assert tab.run("document.getElementById('told').textContent") == "s/a-0.bin: kept, 1.00 kB"
        unnamed = "[...document.querySelectorAll('button, summary')].filter(one => !one.textContent.trim()).length"
        assert tab.run(unnamed) == 0


def test_pause_closes_the_feed(browser: Browser, daemon: Daemon) -> None:
    with shown(browser, daemon) as tab:
        tab.until(CELLS.format(".r") + " === 0")  # the snapshot may be of a second ago, and of another test
        tab.run("document.getElementById('pause').click()")
        assert tab.run("document.getElementById('link').textContent") == "paused"
        daemon.path("s", "a-0.bin")
        tab.until("new Promise(done => setTimeout(() => done(true), 1500))")
        assert tab.run(CELLS.format(".r")) == 0
        tab.run("document.getElementById('pause').click()")
        tab.until(CELLS.format(".r") + " === 1")


def test_a_restart_is_waited_out(browser: Browser, daemon: Daemon) -> None:
    daemon.path("s", "a-0.bin")
    tab = browser.open(f"http://127.0.0.1:{daemon.port}/")
    tab.until(CELLS.format(".r") + " === 1")
    daemon.stop()
    tab.until("document.getElementById('health').textContent === 'not connected'")
    daemon.start()
    tab.until("document.getElementById('health').textContent === 'healthy'", 30)
    assert tab.run(CELLS.format(".r")) == 1
    tab.close()


def test_a_large_cache_is_a_map_of_groups(browser: Browser, origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=1000, http=True) as daemon:
        daemon.job(daemon.prefetch("s", [f"b-{number}" for number in range(620)]), 120)
        with shown(browser, daemon) as tab:
            tab.until("document.getElementById('map').children.length === 310")
            assert "each square is 2 shards" in tab.text()
            assert tab.run("document.getElementById('map').getAttribute('aria-label')").startswith(
                "Map of shards: 620 shards"
            )


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_narrow_and_wide_windows(browser: Browser, daemon: Daemon, width: int) -> None:
    daemon.path("s", "a-0.bin")
    tab = browser.open(f"http://127.0.0.1:{daemon.port}/", size=(width, 800))
    tab.until(CELLS.format(".r"))
    assert tab.run("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"
    assert len(tab.picture()) > 10_000
    tab.close()
