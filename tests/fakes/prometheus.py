"""A real Prometheus with a folder of its own, and its tool."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from tests.fakes.waiting import until


def promtool(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end; the test is skipped where there is none."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not there")
    return subprocess.run(
        ["promtool", *arguments], input=stdin, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


class Prometheus:
    """Scrapes one port of this machine every second while the block runs."""

    def __init__(self, folder: Path, target: int, port: int, *, rules: str) -> None:
        """`rules`: name of a rule file in the folder."""
        if shutil.which("prometheus") is None:
            pytest.skip("prometheus is not there")
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "cachedaemon", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        try:
            until(self._is_ready, 60, "Prometheus")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        """What its API says under `data`; AssertionError with its words on an error."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as cause:
            raise AssertionError(f"{query}: {cause.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples of an expression now."""
        return list(self.get("/api/v1/query", query=expression)["result"])
