"""deploy/container/Containerfile: no root, no shell, nothing that is not there, and the same user as the manifests'."""

from __future__ import annotations

import re
from pathlib import Path

from cachedaemon.config import load
from tests.conftest import PROJECT
from tests.fakes.containerfile import parse
from tests.fakes.kustomize import build, containers

FOLDER = PROJECT / "deploy/container"
STAGES = parse((FOLDER / "Containerfile").read_text())
KNOWN = {"WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def test_every_instruction_is_known_and_needs_no_shell() -> None:
    steps = [step for stage in STAGES for step in stage.steps]
    assert {step.name for step in steps} == KNOWN
    for step in steps:
        if step.name in {"RUN", "HEALTHCHECK", "ENTRYPOINT", "CMD", "VOLUME"}:
            assert step.words is not None, step


def test_base_images_are_named_exactly() -> None:
    for stage in STAGES:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+-[a-z-]+", stage.base)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    for step in (step for stage in STAGES for step in stage.steps if step.name == "COPY"):
        words = step.text.split()
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in {stage.name for stage in STAGES}
            continue
        for source in words[:-1]:
            assert (PROJECT / source).exists(), source
            assert f"!{source.rstrip('/')}" in ignored, source


def test_what_pyproject_reads_is_copied() -> None:
    text = (PROJECT / "pyproject.toml").read_text()
    copied = " ".join(step.text for step in STAGES[0].steps if step.name == "COPY").split()
    assert re.findall(r'^readme = "(.*)"', text, re.MULTILINE)[0] in copied


def test_it_runs_as_the_manifests_user_from_where_it_was_installed() -> None:
    image = STAGES[-1]
    user, _, group = image.last("USER").text.partition(":")
    sidecar = next(containers(build(PROJECT / "deploy/kubernetes/overlays/sidecar")))
    rights = sidecar["securityContext"]
    assert (int(user), int(group)) == (rights["runAsUser"], rights["runAsGroup"])
    assert image.last("ENTRYPOINT").words == ["/opt/cachedaemon/bin/cachedaemon"]
    assert image.last("CMD").words == ["serve"]
    assert (image.last("HEALTHCHECK").words or [])[0] == "/opt/cachedaemon/bin/cachedaemon"
    after = [step.name for step in image.steps[[step.name for step in image.steps].index("USER") :]]
    assert "RUN" not in after
    assert "COPY" not in after


def test_its_configuration_is_the_daemons_own(folder: Path) -> None:
    found = load(str(FOLDER / "cachedaemon.toml"), {"CACHEDAEMON_SOURCES__S__URL": "https://host/x/"}, {})
    volumes = STAGES[-1].last("VOLUME").words or []
    assert [str(found.cache.dir.parent), str(found.server.socket.parent)] == volumes
    assert found.server.http is not None
    assert [str(found.server.http.port)] == STAGES[-1].last("EXPOSE").text.split()
    assert not found.server.page
    assert str(found.server.socket_group) == STAGES[-1].last("USER").text.partition(":")[2]
