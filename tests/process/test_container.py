"""The image and the manifests, carried out: its steps in a root of its own, its daemon as PID 1 with the rights and mounts of a pod.

What no container engine is needed for is done as one would do it; pulling, cgroups and the network of a pod are not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.fakes.containerfile import Container, parse
from tests.fakes.daemon import free_port
from tests.fakes.kustomize import Resource
from tests.fakes.origin import Origin
from tests.fakes.waiting import until
from tests.unit.test_kubernetes import GROUP, daemons, example, mounted, trainers

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]
IMAGE = parse((PROJECT / "deploy/container/Containerfile").read_text())
ENTRY = IMAGE[-1].last("ENTRYPOINT").words or []
TRAINER = """
import json, os, sys
from cachedaemon_client import CacheError, ShardCache

cache, found = ShardCache("train", wait=30), []
for _ in range(2):
    with cache.open("a.bin") as shard:
        found.append((shard.hit, shard.path.stat().st_size))
try:
    shard.path.unlink()
except OSError as cause:
    found.append(type(cause).__name__)
print(json.dumps(found))
"""

PREFETCH = """
from cachedaemon_client import ShardCache

cache = ShardCache("train")
for keys in (["slow.bin"], [f"small-{n}.bin" for n in range(100)]):
    cache.prefetch(keys)
print(1)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Container]:
    """The image, built and sealed."""
    with Container() as container:
        container.build(IMAGE, PROJECT)
        for place in ("/local/cachedaemon", "/run/cachedaemon", "/etc/cachedaemon"):
            container.outside("mkdir", "-p", f"{container.root}{place}")
        container.seal()
        yield container


class Pod:
    """The pods of an overlay: the daemon's container, and the trainer's beside it."""

    def __init__(self, overlay: str, image: Container, url: str) -> None:
        self.resources = example(overlay)
        ((self.pod, self.daemon),) = daemons(self.resources)
        self.image = image
        self.port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="cd-pod-", dir="/tmp"))
        self.process: subprocess.Popen[bytes] | None = None
        self._volumes(url)

    def _volumes(self, url: str) -> None:
        """As the kubelet makes them: emptyDirs and what is projected in the group of the pod, the node's folders root's."""
        for volume in self.pod["spec"]["volumes"]:
            path = self.home / volume["name"]
            path.mkdir()
            if "emptyDir" in volume:
                os.chown(path, 0, GROUP)
                path.chmod(0o2777)
        for name, text in mounted(self.resources, self.pod).items():
            path = self.home / "config" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("https://store.example.org/train/", url).replace("9464", str(self.port)))
            os.chown(path, 0, GROUP)
            path.chmod(0o440)

    def mount(self, container: Container, spec: Resource) -> None:
        for mount in spec["volumeMounts"]:
            container.bind(self.home / mount["name"], mount["mountPath"], read_only=mount.get("readOnly", False))

    def unmount(self) -> None:
        for mount in self.daemon["volumeMounts"]:
            self.image.outside("umount", f"{self.image.root}{mount['mountPath']}")

    def start(self) -> None:
        """Its initial containers that end, and then the daemon, until the startup probe has passed."""
        self.mount(self.image, self.daemon)
        for one in self.pod["spec"].get("initContainers", []):
            if "restartPolicy" not in one:
                ran = self.image.run(one["command"], bounding="-all,+chown,+fowner")
                assert ran.returncode == 0, ran.stdout
        rights = self.daemon["securityContext"]
        with (self.home / "log").open("ab") as log:
            self.process = self.image.popen(
                [*ENTRY, *self.daemon["args"]],
                user=rights["runAsUser"],
                group=rights["runAsGroup"],
                groups=[GROUP],
                bounding="-all",
                stdout=log,
                stderr=log,
            )
        until(lambda: self.probe("startupProbe") == 200, 60, f"the daemon\n{self.log}")

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()

    def probe(self, kind: str) -> int:
        """The status of one probe, 0 for no answer in its time."""
        probe = self.daemon[kind]
        try:
            url = f"http://127.0.0.1:{self.port}{probe['httpGet']['path']}"
            with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as cause:
            return cause.code
        except OSError:
            return 0

    def signal(self, number: int) -> None:
        """To the daemon itself: what stands before it hands nothing on, and does not take it along when it is killed."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    def ended(self) -> int:
        """Its exit status, once it has ended within its grace time."""
        assert self.process is not None
        return self.process.wait(self.pod["spec"]["terminationGracePeriodSeconds"])

    def train(self, script: str) -> Any:
        """What a trainer's container prints, in a root of its own."""
        ((pod, spec),) = trainers(self.resources)
        rights = spec["securityContext"]
        with Container() as container:
            self.mount(container, spec)
            ran = container.run(
                [sys.executable, "-c", script],
                user=rights["runAsUser"],
                group=rights["runAsGroup"],
                groups=pod["spec"]["securityContext"]["supplementalGroups"],
                bounding="-all",
                env={"PYTHONPATH": str(PROJECT / "client")},
            )
        assert ran.returncode == 0, f"{ran.stdout}\n{self.log}"
        return json.loads(ran.stdout)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.ended()
        self.unmount()
        subprocess.run(["rm", "-rf", str(self.home)], check=True)


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        yield origin


@pytest.fixture(params=["sidecar", "node"])
def pod(request: pytest.FixtureRequest, image: Container, origin: Origin) -> Iterator[Pod]:
    one = Pod(request.param, image, origin.url)
    try:
        one.start()
        yield one
    finally:
        one.close()


def test_a_trainer_of_another_user_reads_through_its_own_mounts(pod: Pod, origin: Origin) -> None:
    """The second open is a hit that asks nobody: locks reach across the read-only mount. The secret went to the origin."""
    origin.put("a.bin", 5000)
    assert pod.train(TRAINER) == [[False, 5000], [True, 5000], "OSError"]
    assert {request.headers["authorization"] for request in origin.log} == {"Bearer put-the-token-here"}
    checked = pod.image.run(
        IMAGE[-1].last("HEALTHCHECK").words or [], user=64099, group=GROUP, env={"PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert checked.returncode == 0, checked.stdout
    assert "healthy" in checked.stdout


def test_the_end_as_pid_1_in_the_middle_of_a_transfer(pod: Pod, origin: Origin) -> None:
    """C-70: SIGTERM, and once more; probes answer under load; the status is 0 in time and nothing is left in staging."""
    origin.put("slow.bin", 20_000_000, bps=100_000)
    for n in range(100):
        origin.put(f"small-{n}.bin", 2000)
    staging = pod.home / "cache/cache/staging"
    done = threading.Event()
    statuses: set[int] = set()

    def look() -> None:
        while not done.is_set():
            statuses.update(pod.probe(kind) for kind in ("readinessProbe", "livenessProbe"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        pod.train(PREFETCH)
        until(lambda: len(list((pod.home / "cache/cache/shards/train").glob("small-*"))) == 100, 60, "the small ones")
        assert list(staging.iterdir()), "the slow one is under way"
    finally:
        done.set()
        looking.join()
    assert statuses == {200}
    pod.signal(signal.SIGTERM)
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 0, pod.log
    assert not list(staging.iterdir())
    assert "Traceback" not in pod.log
