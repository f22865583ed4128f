"""A real headless browser, told what to do over its debugging pipe (Chrome DevTools Protocol, JSON between NULs).

In a test::

    with Browser() as browser:
        tab = browser.open("http://127.0.0.1:9464/")
        tab.until("document.querySelectorAll('.cell.r').length === 5")
        assert not tab.complaints
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / ".tools"
DEBIAN = "usr/lib/chromium/chromium-headless-shell"
"""The program itself: what Debian puts on the path is a script that knows no other place than /usr."""


def program() -> str:
    """The browser; the test skips where there is none."""
    found = next(
        (path for name in (f"/{DEBIAN}", f"{TOOLS}/{DEBIAN}", "chromium") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip("no chromium-headless-shell here")
    return found


class Browser:
    """One process, with a profile of its own that goes with it."""

    def __init__(self) -> None:
        self._home = tempfile.mkdtemp(prefix="cd-browser-")
        self._number = 0
        self._read = b""
        self._tabs: dict[str, Tab] = {}

    def __enter__(self) -> Self:
        """Running."""
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        command = [
            program(),
            "--headless",
            "--no-sandbox",  # the tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._home}",
        ]
        # The protocol is spoken on descriptors 3 and 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", *command],
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home},
        )
        os.close(its_in)
        os.close(its_out)
        self._in, self._out = ours_in, ours_out
        return self

    def __exit__(self, *_: object) -> None:
        """Gone, with its profile."""
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._in)
            os.close(self._out)
            shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method: str, tab: str | None = None, **params: Any) -> Any:
        """One call, and its answer; what happens meanwhile is told to its tab."""
        self._number += 1
        said = {"id": self._number, "method": method, "params": params} | ({"sessionId": tab} if tab else {})
        os.write(self._out, json.dumps(said).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            if (of := self._tabs.get(answer.get("sessionId", ""))) is not None:
                of.hear(answer["method"], answer["params"])
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self._in], [], [], 60)[0]:
                raise AssertionError("the browser says nothing for a minute")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise AssertionError("the browser has ended")
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str, *, size: tuple[int, int] = (1280, 900), **media: str) -> Tab:
        """A new tab; `media`: features that pages ask for, such as prefers_color_scheme="dark"."""
        target = self.call("Target.createTarget", url="about:blank", width=size[0], height=size[1])["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.call("Page.navigate", url=url)
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []
        """What stood in its console as a warning or an error."""
        self.requests: list[str] = []
        """URLs that it asked for."""

    def call(self, method: str, **params: Any) -> Any:
        """See `Browser.call`."""
        return self._browser.call(method, self._session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Something happened in it."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("warning", "error"):
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("warning", "error", "assert"):
                self.complaints.append(json.dumps(params["args"]))

    def close(self) -> None:
        """Close it."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise AssertionError(f"{script}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"new Promise(done => requestAnimationFrame(() => done({script})))")):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s: {script}; it shows:\n{self.text()}")
        return value

    def text(self) -> str:
        """What stands in it."""
        return str(self.run("document.body.innerText"))

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        said = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(said["data"])
