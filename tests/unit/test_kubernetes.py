"""The manifests in deploy/kubernetes: valid, as narrow as they can be, and fitting the daemon that they run. C-70."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cachedaemon.config import Settings, load
from cachedaemon.daemon import DRAIN
from cachedaemon.server.watch import ROUTES
from tests.conftest import BY_DESIGN, PROJECT
from tests.fakes.kustomize import Resource, build, containers, pods, real, walk

OVERLAYS = sorted(path.name for path in (PROJECT / "deploy/kubernetes/overlays").iterdir())
GROUP = 64100
RELEASES = ["1.29", "1.33", kubernetes_validate.latest_version()]
"""The first with native sidecars switched on, the first where they are stable, the latest known here."""
ALLOWED = {
    "spec.template.spec.restartPolicy": {"Never", "OnFailure", "Always"},
    "spec.template.spec.initContainers.restartPolicy": {"Always"},
    "spec.updateStrategy.type": {"RollingUpdate", "OnDelete"},
    "spec.policyTypes": {"Ingress", "Egress"},
    ".ports.protocol": {"TCP"},
    ".seccompProfile.type": {"RuntimeDefault"},
    ".hostPath.type": {"Directory", "DirectoryOrCreate"},
    ".emptyDir.medium": {"", "Memory"},
    ".capabilities.drop": {"ALL"},
    ".capabilities.add": {"CHOWN", "FOWNER"},
}
"""Words that the schemas leave open."""


def overlay(name: str) -> list[Resource]:
    return build(PROJECT / "deploy/kubernetes/overlays" / name)


def example(name: str) -> list[Resource]:
    """An overlay with what is shown beside it."""
    beside = [p for p in (PROJECT / "deploy/kubernetes/overlays" / name).glob("*.yaml") if p.name == "trainer.yaml"]
    return overlay(name) + [one for path in beside for one in yaml.safe_load_all(path.read_text())]


@pytest.fixture(params=OVERLAYS)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return example(request.param)


def daemons(resources: list[Resource]) -> list[tuple[Resource, Resource]]:
    """(pod, container) of those that serve."""
    return [
        (pod, one)
        for pod in pods(resources)
        for one in containers([{"spec": {"template": pod}}])
        if one.get("args") == ["serve"]
    ]


def trainers(resources: list[Resource]) -> list[tuple[Resource, Resource]]:
    return [(pod, one) for pod in pods(resources) for one in pod["spec"]["containers"] if one["name"] == "trainer"]


def settings(resources: list[Resource], folder: Path) -> Settings:
    """What the daemon makes of its ConfigMap and Secret, which lie where its volume puts them."""
    ((pod, container),) = daemons(resources)
    place = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "config")
    for path, content in mounted(resources, pod).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content.replace(f"file:{place}", f"file:{folder}"))
    return load(str(folder / "cachedaemon.toml"), {}, {})


def mounted(resources: list[Resource], pod: Resource) -> dict[str, str]:
    """The files of the pod's volume "config"."""
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "config")
    files: dict[str, str] = {}
    for source in volume["projected"]["sources"]:
        ((kind, wanted),) = source.items()
        content = next(
            one.get("data") or one.get("stringData")
            for one in resources
            if (one["kind"].lower(), one["metadata"]["name"]) == (kind.lower(), wanted["name"])
        )
        items = wanted.get("items", [{"key": name, "path": name} for name in content])
        files |= {item["path"]: content[item["key"]] for item in items}
    return files


def size(quantity: str) -> int:
    """Bytes of a quantity such as 200Gi."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[unit]


@pytest.mark.parametrize("release", RELEASES)
def test_they_are_valid(resources: list[Resource], release: str) -> None:
    for resource in resources:
        kubernetes_validate.validate(resource, release, strict=True)


def test_words_that_schemas_leave_open(resources: list[Resource]) -> None:
    for resource in resources:
        for path, value in walk(resource):
            for end, allowed in ALLOWED.items():
                if path.endswith(end) and not isinstance(value, list):
                    assert value in allowed, path


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_makes_of_them_what_these_tests_look_at(name: str) -> None:
    kustomize = real()
    if kustomize is None:
        pytest.skip(f"{BY_DESIGN}: no package brings a kubectl of today")
    built = kustomize(PROJECT / "deploy/kubernetes/overlays" / name)

    def plain(text: str) -> str:
        return re.sub(r"(cachedaemon)-[a-z0-9]{10}\b", r"\1", text)

    def known(resource: Resource) -> dict[str, Any]:
        if "data" in resource and resource["kind"] == "Secret":
            content = {name: base64.b64decode(value).decode() for name, value in resource.pop("data").items()}
            resource |= {"stringData": content}
            del resource["type"]
        return yaml.safe_load(plain(yaml.safe_dump(resource)))  # type: ignore[no-any-return]

    def by_name(resources: list[Resource]) -> dict[str, Resource]:
        return {f"{one['kind']} {one['metadata']['name']}": one for one in map(known, resources)}

    assert by_name(built) == by_name(overlay(name))


def test_every_container_has_no_more_rights_than_it_needs(resources: list[Resource]) -> None:
    for pod in pods(resources):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for one in containers([{"spec": {"template": pod}}]):
            rights = one["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"]["drop"] == ["ALL"]
            if one["name"] == "folders":  # what must be root's does one thing
                assert rights["capabilities"]["add"] == ["CHOWN", "FOWNER"]
            else:
                assert rights["runAsUser"] > 0
                assert "add" not in rights["capabilities"]
    for _, one in daemons(resources):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True


def test_images_are_named_exactly(resources: list[Resource]) -> None:
    for _, one in daemons(resources):
        assert re.fullmatch(r"(?:[\w./-]+/)?cachedaemon:\d+\.\d+\.\d+", one["image"])


def test_the_configuration_is_the_daemons_own(resources: list[Resource], folder: Path) -> None:
    ((pod, container),) = daemons(resources)
    found = settings(resources, folder)
    places = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert "subPath" not in {name for mount in places.values() for name in mount}
    assert places["/etc/cachedaemon"]["readOnly"] is True
    assert str(found.server.socket.parent) in places, "the folder of the socket is mounted, not the socket"
    assert str(found.cache.dir.parent) in places, "and the cache is a folder of the daemon's own in its volume"
    assert not {places[str(path)].get("readOnly") for path in (found.server.socket.parent, found.cache.dir.parent)} - {
        None
    }
    assert found.server.socket_group == container["securityContext"]["runAsGroup"] == GROUP
    assert pod["spec"]["securityContext"]["fsGroup"] == GROUP, "it may read the secret"
    assert next(v for v in pod["spec"]["volumes"] if v["name"] == "config")["projected"]["defaultMode"] == 0o440
    assert found.server.http is not None
    assert found.server.http.host == "0.0.0.0", "probes and scrapes come from outside"
    assert not found.server.page, "and so may anybody of the cluster"


def test_probes_ask_what_there_is(resources: list[Resource], folder: Path) -> None:
    """C-70: none is so strict that load makes it flap: each bears half a minute and more of silence."""
    ((_, container),) = daemons(resources)
    http = settings(resources, folder).server.http
    (port,) = container["ports"]
    assert http is not None
    assert port["containerPort"] == http.port
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[kind]
        assert probe["httpGet"]["port"] == port["name"]
        assert probe["httpGet"]["path"] in {path for _, path, _ in ROUTES}
        assert probe["timeoutSeconds"] >= 5
        assert probe["failureThreshold"] * probe["periodSeconds"] >= 30
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "a daemon that drains is no dead one"
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 600


def test_the_end_has_its_time(resources: list[Resource]) -> None:
    """C-70: SIGTERM comes first, and SIGKILL not before the daemon would have ended by itself."""
    for pod, _ in daemons(resources):
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 2 * DRAIN


def test_a_job_with_a_sidecar_completes() -> None:
    """C-70: the daemon is an initial container that stays, which ends with the trainer and is not waited for."""
    (job,) = [one for one in overlay("sidecar") if one["kind"] == "Job"]
    spec = job["spec"]["template"]["spec"]
    assert [(one["name"], one["restartPolicy"]) for one in spec["initContainers"]] == [("cachedaemon", "Always")]
    assert [one["name"] for one in spec["containers"]] == ["trainer"]
    assert spec["restartPolicy"] == "Never"
    assert "startupProbe" in spec["initContainers"][0], "the trainer starts when the daemon is ready"


def test_a_trainer_may_use_the_socket_and_read_the_files(resources: list[Resource], folder: Path) -> None:
    found = settings(resources, folder)
    for pod, trainer in trainers(resources):
        mounts = {mount["mountPath"]: mount for mount in trainer["volumeMounts"]}
        assert set(mounts) == {str(found.server.socket.parent), str(found.cache.dir.parent)}, "at the same places"
        assert all(mount["readOnly"] is True for mount in mounts.values())
        assert GROUP in pod["spec"]["securityContext"]["supplementalGroups"]
        assert trainer["securityContext"]["runAsUser"] != daemons(resources)[0][1]["securityContext"]["runAsUser"]


def test_volumes_are_there_and_the_same_on_the_node() -> None:
    for pod in pods(example("node")):
        names = {volume["name"] for volume in pod["spec"]["volumes"]}
        used = {m["name"] for one in containers([{"spec": {"template": pod}}]) for m in one["volumeMounts"]}
        assert used == names
    first, second = (
        {v["name"]: v["hostPath"]["path"] for v in pod["spec"]["volumes"] if "hostPath" in v}
        for pod in pods(example("node"))
    )
    assert first == second


def test_the_pod_has_the_room_that_the_cap_needs(folder: Path) -> None:
    """The formula of docs/kubernetes.md: 1.05 times the cap of bytes, and 1 GiB."""
    resources = overlay("sidecar")
    ((pod, container),) = daemons(resources)
    needed = 1.05 * settings(resources, folder).cache.max_bytes + (1 << 30)
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "cache")
    given = {
        size(volume["emptyDir"]["sizeLimit"]),
        *(size(container["resources"][k]["ephemeral-storage"]) for k in ("requests", "limits")),
    }
    assert needed <= min(given)
    assert needed > 1 << 30, "there is a cap of bytes"


def test_the_policy_lets_in_the_scrape_alone() -> None:
    (policy,) = [one for one in overlay("node") if one["kind"] == "NetworkPolicy"]
    ((pod, container),) = daemons(overlay("node"))
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == [container["ports"][0]["name"]]
