"""The configured sources: which shard a request can mean, by the rule of the source's own origin."""

from __future__ import annotations

import pytest

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import BadRequest, UnknownSource
from cachedaemon.metrics import Metrics
from cachedaemon.model import Ref
from cachedaemon.sources import Sources

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sources() -> Sources:
    found = Sources(Metrics("test"))
    urls = {"web": "http://localhost/", "mount": "file:///nowhere/"}
    found.take(found.made({name: Source(url=url) for name, url in urls.items()}, Fetch(), anew=True))
    return found


@pytest.mark.parametrize("source", ["web", "mount"])
async def test_what_can_be_a_key(sources: Sources, source: str) -> None:
    for key in ("a.bin", "..a/b..", "a/...", "ä ö", "x" * 4096):
        assert sources.shard(source, key)[1] == Ref(source, key)
    for key in ("", "..", "../up", "a/../b", "./a", "a/.", "nul\0", "\ud800", "x" * 4097):
        with pytest.raises(BadRequest, match=source):
            sources.shard(source, key)
    with pytest.raises(UnknownSource, match="configured are mount, web"):
        sources.shard("other", "a.bin")


async def test_each_origin_states_its_rule_once(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sources["web"].origin, "check_key", asked.append)
    sources.shard("web", "../up")
    assert asked == ["../up"]
