"""`kustomize build`, as far as the manifests here use it; a word that is not known here is an error, and so is a file that is not there."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
KNOWN = {
    "apiVersion", "kind", "resources", "configMapGenerator", "secretGenerator", "labels", "images", "namespace", "patches"
}  # fmt: skip


def build(folder: Path) -> list[Resource]:
    """All resources of an overlay. Generated names have no digest behind them."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(said) - KNOWN:
        raise ValueError(f"{folder}: {unknown} is not known here")
    resources = [one for path in said.get("resources", ()) for one in _read(folder / path)]
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        for made in said.get(f"{kind[0].lower()}{kind[1:]}Generator", ()):
            _generate(resources, kind, field, made, folder)
    for patch in said.get("patches", ()):
        _patch(resources, patch)
    for image in said.get("images", ()):
        _name_image(resources, image)
    for resource in resources:
        metadata = resource["metadata"]
        if "namespace" in said:
            metadata["namespace"] = said["namespace"]
        for labels in said.get("labels", ()):
            metadata.setdefault("labels", {}).update(labels["pairs"])
    return resources


def _read(path: Path) -> list[Resource]:
    return build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _generate(resources: list[Resource], kind: str, field: str, made: dict[str, Any], folder: Path) -> None:
    there = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, made["name"])]
    if bool(there) != (made.get("behavior", "create") == "replace"):
        raise ValueError(f"{folder}: {kind} {made['name']} is there already, or is not there to be replaced")
    content = {name: (folder / name).read_text() for name in made["files"]}
    if there:
        there[0][field] = content
    else:
        resources.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": made["name"]}, field: content})


def _patch(resources: list[Resource], patch: dict[str, Any]) -> None:
    target, change = patch["target"], yaml.safe_load(patch["patch"])
    found = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])]
    if len(found) != 1:
        raise ValueError(f"{target} is there {len(found)} times")
    found[0].update(_merged(found[0], change))


def _merged(old: Any, new: Any) -> Any:
    """A strategic merge: tables by key, lists of named things by name, and kinds of one volume displace each other."""
    if isinstance(old, dict) and isinstance(new, dict):
        return copy.deepcopy(old) | {key: _merged(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list) and all("name" in one for one in old + new):
        named = {one["name"]: one for one in old}
        for one in new:
            named[one["name"]] = _merged(named.get(one["name"]), one)
        return list(named.values())
    return new


def _name_image(resources: list[Resource], image: dict[str, str]) -> None:
    for container in containers(resources):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def pods(resources: list[Resource]) -> Iterator[Resource]:
    """Their pod templates."""
    return (one["spec"]["template"] for one in resources if "template" in one.get("spec", {}))


def containers(resources: list[Resource]) -> Iterator[Resource]:
    """Every container of theirs, initial ones too."""
    for pod in pods(resources):
        yield from pod["spec"].get("initContainers", [])
        yield from pod["spec"]["containers"]


def walk(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value with the path of names that leads to it."""
    yield path, node
    items: list[tuple[str, object]] = []
    if isinstance(node, dict):
        items = [(f"{path}.{name}", value) for name, value in node.items()]
    elif isinstance(node, list):
        items = [(path, value) for value in node]
    for where, value in items:
        yield from walk(value, where)


def real() -> Callable[[Path], list[Resource]] | None:
    """The real one, where this machine has a kubectl that is new enough."""
    if shutil.which("kubectl") is None:
        return None

    def built(folder: Path) -> list[Resource]:
        made = subprocess.run(
            ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True, timeout=60
        )
        return list(yaml.safe_load_all(made.stdout))

    return built
