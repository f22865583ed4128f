"""The pages as a whole: links lead somewhere, what is named is there, what is made from the code is fresh."""

from __future__ import annotations

import functools
import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import PROJECT

PAGES = sorted(
    [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), PROJECT / "bench/README.md", PROJECT / "client/README.md"]
)
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: its headings, as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if ":" in link:  # elsewhere
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_the_readme_leads_to_every_page() -> None:
    """Or to the index of their folder."""
    readme = PROJECT / "README.md"
    led = {(readme.parent / link.partition("#")[0]).resolve() for link in LINK.findall(readme.read_text())}
    indexed = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in PROJECT.glob("docs/*/README.md")
        for link in LINK.findall(index.read_text())
    }
    assert [page for page in PROJECT.glob("docs/**/*.md") if page.resolve() not in led | indexed] == []


def test_the_reference_is_fresh() -> None:
    """`make reference` writes it."""
    folder = PROJECT / "docs/reference"
    made = runpy.run_path(str(PROJECT / "scripts/reference.py"))["pages"]()
    assert {page.name for page in folder.iterdir()} == set(made)
    assert [name for name, text in made.items() if (folder / name).read_text() != text] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(name: str) -> None:
    """Tests above all: what is said to be held by one is."""
    text = (PROJECT / name).read_text()
    paths = re.findall(r"`((?:tests|bench|docs|scripts|cachedaemon|client|examples|deploy|systemd)/[\w./@-]+)`", text)
    assert len(paths) > 3
    assert [path for path in paths if not (PROJECT / path).exists()] == []
    tests = {path.name for path in PROJECT.glob("tests/**/*.py")}
    assert [one for one in re.findall(r"`(test_\w+\.py)`", text) if one not in tests] == []


def test_the_operators_guide_has_every_alert() -> None:
    """With a first step, and a link to what it means."""
    groups = yaml.safe_load((PROJECT / "deploy/prometheus/cachedaemon.rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    rows = re.findall(
        r"^\| \[(Cachedaemon\w+)\]\(metrics\.md#(\w+)\) \|", (PROJECT / "docs/operating.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted((alert, alert.lower()) for alert in alerts)


def test_the_operators_guide_has_every_reason_of_health() -> None:
    """Areas that are reported by name, and the work in the background, which is reported under its own."""
    code = "".join(path.read_text() for path in (PROJECT / "cachedaemon").rglob("*.py"))
    areas = set(re.findall(r'trouble\.report\(\s*"([a-z]+)"', code))
    upkeep = (PROJECT / "cachedaemon/upkeep.py").read_text()
    work = set(re.findall(r"self\._(\w+)", re.findall(r"for work in \((.*)\):", upkeep)[0]))
    others = set(re.findall(r'_lasting\("(\w+)"', upkeep))
    page = (PROJECT / "docs/operating.md").read_text().partition("## Health")[2].partition("## Alerts")[0]
    told = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ((?:`[\w ]+`(?:, )?)+) \|", page, re.MULTILINE))))
    assert len(areas | work | others) > 8
    assert (areas | work | others) - told == set()


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_layer_is_told_of(name: str) -> None:
    """As `pyproject.toml` has them for the linter."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = set(re.findall(r"\((\w+)\)", " ".join(contracts[0]["layers"])))
    section = {"ARCHITECTURE.md": "## Layers", "CONTRIBUTING.md": "## Shape"}[name]
    told = (PROJECT / name).read_text().partition(section)[2].partition("\n## ")[0]
    assert len(layers) > 30
    assert layers - set(re.findall(r"\w+", told)) == set()
