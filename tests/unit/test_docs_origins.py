"""The pages about origins: each is in the index, and every configuration on them loads as it stands."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.config import Settings, load, schemes
from cachedaemon.metrics import Metrics
from cachedaemon.origins import origin_of
from tests.conftest import PROJECT
from tests.contract.origins.places import certificates

PAGES = PROJECT / "docs/origins"
CREDENTIALS = {
    "minio.json": '{"access_key_id": "id", "secret_access_key": "key"}',
    "service-account.json": '{"access_token": "token"}',
    "connection-string": "AccountName=a;AccountKey=aHVudGVyMg==",
}
"""What is looked at when the configuration is read."""


def blocks() -> Iterator[pytest.ParameterSet]:
    """Every configuration of a page, with the page's name and its place there."""
    for page in sorted(PAGES.glob("*.md")):
        found = re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for number, block in enumerate(text for text in found if "[sources." in text):
            yield pytest.param(block, id=f"{page.stem}-{number}")


def pasted(block: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The block with its files below a folder, where they are; and the environment that it speaks of."""
    for path in set(re.findall(r'"(?:file:)?(/(?!/)[^"\s]+)"', block)):
        here = folder / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_text(content_of(here))
        block = block.replace(f'"{path}"', f'"{here}"').replace(f'"file:{path}"', f'"file:{here}"')
    return block, dict.fromkeys(re.findall(r'"env:(\w+)"', block), "text")


def content_of(path: Path) -> str:
    """What a file of that name may hold."""
    if path.suffix in (".crt", ".pem"):
        authority, _ = certificates(path.parent)
        return authority.read_text()
    return CREDENTIALS.get(path.name) or ("{}" if path.suffix == ".json" else "text")


def settings_of(block: str, folder: Path) -> Settings:
    text, environ = pasted(block, folder)
    config = folder / "cachedaemon.toml"
    config.write_text(text)
    homes = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    return load(str(config), {**homes, **environ}, {}, root=False)


@pytest.mark.asyncio
@pytest.mark.parametrize("block", [param for param in blocks() if not str(param.id).startswith("writing-")])
async def test_what_a_page_shows_can_be_pasted(block: str, folder: Path) -> None:
    settings = await asyncio.to_thread(settings_of, block, folder)
    assert settings.sources
    for name, source in settings.sources.items():
        await origin_of(name, source, settings.fetch, Metrics("test")).close()


def test_the_index_names_every_page_and_every_scheme() -> None:
    index = (PAGES / "README.md").read_text()
    assert set(re.findall(r"\]\(([a-z0-9]+\.md)\)", index)) == {path.name for path in PAGES.glob("[a-z]*.md")}
    for scheme in schemes():
        assert f"`{scheme}:" in index
