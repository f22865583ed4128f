"""Metrics, rules, dashboard and docs/metrics.md agree: every name that one of them uses is there, and stands in the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import PROJECT
from tests.fakes.daemon import Daemon, free_port
from tests.fakes.origin import Origin
from tests.fakes.prometheus import Prometheus, promtool
from tests.fakes.waiting import until

RULES = PROJECT / "deploy/prometheus/cachedaemon.rules.yml"
DASHBOARD = PROJECT / "deploy/grafana/cachedaemon.json"
PAGE = (PROJECT / "docs/metrics.md").read_text()
VARIABLES = {"$instance": "n.*", "$source": "s.*"}


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """By name: those that record, or those that alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression, as Grafana sends it."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


@pytest.fixture(scope="module")
def busy() -> Iterator[Daemon]:
    """A daemon of which every metric can be seen: a transfer, a removal, a plan that has ended."""
    with Origin() as origin, Daemon({"s": origin.url}, max_shards=2, http=True) as daemon:
        for name in ("a.bin", "b.bin", "c.bin"):
            origin.put(name, 1000)
            daemon.acquire("s", name)
        daemon.api("PUT", "/v1/plans/p", {"source": "s", "keys": ["a.bin", "c.bin"]})
        daemon.acquire("s", "a.bin")
        daemon.api("POST", "/v1/touch", {"source": "s", "used": [], "plan": "p", "position": 2})
        daemon.api("DELETE", "/v1/plans/p")
        until(lambda: "regret_ratio" in str(daemon.api("GET", "/metrics").body), 20, "the account of the plan")
        yield daemon


@pytest.fixture(scope="module")
def families(busy: Daemon) -> dict[str, Metric]:
    """Metric families by name."""
    return {one.name: one for one in text_string_to_metric_families(str(busy.api("GET", "/metrics").body))}


def exposed(families: dict[str, Metric]) -> set[str]:
    """Names of samples, as expressions use them."""
    return {sample.name for family in families.values() for sample in family.samples}


def used(expression: str) -> set[str]:
    """Names of metrics in an expression."""
    return set(re.findall(r"\b(?:cachedaemon|process|up)[a-z0-9_:]*", re.sub(r'"[^"]*"', "", expression)))


def test_conventions(busy: Daemon) -> None:
    """Names, units and help texts as Prometheus wants them."""
    checked = promtool("check", "metrics", stdin=str(busy.api("GET", "/metrics").body))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_page_has_every_metric_with_its_type_and_labels(families: dict[str, Metric]) -> None:
    rows = re.findall(r"^\| `(cachedaemon_\w+)` \| (\w+) \| [^|]+ \|([^|]*)\|", PAGE, re.MULTILINE)
    written = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    real = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families.values()
        if family.name.startswith("cachedaemon_")
    }
    assert written == real


def test_the_page_has_every_rule() -> None:
    assert set(re.findall(r"^### (Cachedaemon\w+)$", PAGE, re.MULTILINE)) == set(rules("alert"))
    assert set(re.findall(r"^\| `(cachedaemon:[\w:]+)` \|", PAGE, re.MULTILINE)) == set(rules("record"))


def test_rules_and_dashboard_use_what_is_there(families: dict[str, Metric]) -> None:
    there = exposed(families) | set(rules("record")) | {"up"}
    for rule in [*rules("alert").values(), *rules("record").values()]:
        assert used(rule["expr"]), rule
        assert used(rule["expr"]) <= there, rule
    for title, expression in panels():
        assert used(expression), title
        assert used(expression) <= there, title


def test_rules_are_valid_and_each_alert_is_tested() -> None:
    """`promtool test rules`: each alert fires on what it is for, and stays silent for what looks like it."""
    folder = RULES.parent
    for what in (
        ("check", "rules", RULES.name),
        ("check", "config", "scrape.yml"),
        ("test", "rules", "cachedaemon.test.yml"),
    ):
        checked = promtool(*what, cwd=folder)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    fires: dict[str, bool] = {}
    for one in yaml.safe_load((folder / "cachedaemon.test.yml").read_text())["tests"]:
        series = {_whose(re.sub(r"^\w+", "", given["series"])) for given in one["input_series"]}
        for tested in one.get("alert_rule_test", ()):
            if fired := {_whose(str(alert["exp_labels"])) for alert in tested["exp_alerts"]}:
                fires[tested["alertname"]] = bool(series - fired)
    assert fires == dict.fromkeys(rules("alert"), True)


def _whose(labels: str) -> tuple[str, ...]:
    """Instance and source in labels, as far as they are there."""
    return tuple(re.findall(r"\b(?:instance|source)\W+([\w-]+)", labels))


def test_pods_are_scraped_by_the_name_of_their_port() -> None:
    """What this promtool knows of it; it is built without Kubernetes."""
    scrape = yaml.safe_load((RULES.parent / "scrape-kubernetes.yml").read_text())["scrape_configs"][0]
    assert scrape["kubernetes_sd_configs"] == [{"role": "pod"}]
    kept = [rule["regex"] for rule in scrape["relabel_configs"] if rule.get("action") == "keep"]
    ports = re.findall(
        r"name: (\S*metrics)\b", "".join(p.read_text() for p in (PROJECT / "deploy/kubernetes").rglob("*.yaml"))
    )
    assert set(kept) == set(ports) == {"cache-metrics"}


def test_the_dashboard_is_one() -> None:
    """What Grafana asks of a dashboard that is imported, as far as it can be said without it."""
    board = json.loads(DASHBOARD.read_text())
    places = [(one["gridPos"]["y"], one["gridPos"]["x"]) for one in board["panels"]]
    assert places == sorted(set(places))
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= 24 for one in board["panels"])
    ids = [one["id"] for one in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(one["datasource"]["uid"] == "${datasource}" for one in board["panels"] if one["type"] != "row")
    assert {one["name"] for one in board["templating"]["list"]} == {"datasource", "instance", "source"}


@pytest.mark.slow
def test_a_real_prometheus_scrapes_evaluates_and_answers_the_dashboard(busy: Daemon, folder: Path) -> None:
    shutil.copy(RULES, folder)
    with Prometheus(folder, busy.port, free_port(), rules=RULES.name) as prometheus:
        until(lambda: prometheus.query('up{job="cachedaemon"} == 1'), 60, "a scrape")
        said = prometheus.get("/api/v1/targets")["activeTargets"][0]
        assert (said["health"], said["lastError"]) == ("up", "")
        assert float(said["lastScrapeDuration"]) < 1
        until(
            lambda: prometheus.query("cachedaemon:refetched_ratio:rate30m") is not None and _healthy(prometheus),
            60,
            "rules",
        )
        assert not prometheus.query("ALERTS{alertname='CachedaemonDown'}")
        for title, expression in panels():
            assert prometheus.query(expression) is not None, title
        shards = prometheus.query("cachedaemon_shards")
        assert [(row["metric"]["source"], row["value"][1]) for row in shards] == [("s", "2")]


def _healthy(prometheus: Prometheus) -> bool:
    """Whether every rule was evaluated, and none failed."""
    said = [rule["health"] for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert "err" not in said
    return bool(said) and set(said) == {"ok"}
