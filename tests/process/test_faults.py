"""Load, and what a machine or a network can take from a daemon: it degrades, says so, and is well again by itself."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import content, disk
from tests.fakes.api import Answer, UnixConnection
from tests.fakes.daemon import Daemon
from tests.fakes.exposition import samples
from tests.fakes.mounts import loop_fs, small_tmpfs
from tests.fakes.origin import Object, Origin, OriginProcess, shard_name
from tests.fakes.proxy import proxying
from tests.fakes.waiting import until

MIB = 1 << 20
BACK = 45
"""Seconds until health is well again; what failed counts for 30."""
pytestmark = pytest.mark.slow


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.default(lambda name: Object(name, 100_000))
        yield made


def reasons(daemon: Daemon) -> dict[str, str]:
    """What health says, which metrics agree with."""
    said = daemon.api("GET", "/healthz").body
    assert said["status"] == ("degraded" if said["reasons"] else "ok")
    return dict(said["reasons"])


def is_well(daemon: Daemon) -> bool:
    return not reasons(daemon) and daemon.metric("degraded") == 0


def threads(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def ask(link: UnixConnection, key: str, wait: float = 30) -> tuple[int, str]:
    """An acquire on a connection that is open already: status, and the key's path or the error's code."""
    body = json.dumps({"source": "s", "key": key, "wait": wait})
    link.request("POST", "/v1/acquire", body, {"Content-Type": "application/json"})
    answer = link.getresponse()
    said = json.loads(answer.read())
    return answer.status, said["path"] if answer.status == 200 else said["error"]["code"]


@contextlib.contextmanager
def connected(daemon: Daemon, count: int) -> Iterator[list[UnixConnection]]:
    """So many connections, whether they were let in or not."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(contextlib.closing(daemon.connection(30))) for _ in range(count)]
        for link in links:
            link.connect()
        yield links


# --- load ----------------------------------------------------------------------------------------------------------


def test_a_thousand_are_connected_and_two_hundred_ask(origin: Origin) -> None:
    """C-31: one transfer a shard, every answer right, and nothing is left when they have gone."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4000:
        pytest.skip("fewer than 4,000 descriptors")
    with Daemon({"s": origin.url}, max_shards=100) as daemon:
        daemon.path("s", "warm.bin")
        until(lambda: daemon.descriptors() < 40, 20)
        before, first = daemon.descriptors(), threads(daemon)
        with connected(daemon, 1000) as links, ThreadPoolExecutor(200) as pool:
            until(lambda: daemon.descriptors() >= 1000, 30)
            for _ in range(2):  # cold and then warm
                said = list(pool.map(lambda n: (n, *ask(links[n * 5], f"{n % 50}.bin")), range(200)))
                assert {status for _, status, _ in said} == {200}
                assert all(Path(path).name == f"{n % 50}.bin" for n, _, path in said)
            assert is_well(daemon)
            assert threads(daemon) < first + 20
        assert {origin[f"{n}.bin"].gets for n in range(50)} == {1}
        until(lambda: daemon.descriptors() <= before + 2, 30, "the descriptors back")
        daemon.audit()


# --- what a process may have ---------------------------------------------------------------------------------------


def scraped(daemon: Daemon, path: str) -> bytes:
    """An answer of the listener for scraping."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as link:
        link.request("GET", path)
        return link.getresponse().read()


def test_connections_wait_outside_while_there_are_no_descriptors_for_them(origin: Origin) -> None:
    """Those that are in are served all the while, health and metrics tell; those that wait are let in as others go."""
    with Daemon({"s": origin.url}, http=True, max_shards=60, wrap=["prlimit", "--nofile=128:128"]) as daemon:
        daemon.path("s", "warm.bin")
        with connected(daemon, 300) as links:
            until(lambda: b"connections" in scraped(daemon, "/healthz"), 20, "health tells")
            why = json.loads(scraped(daemon, "/healthz"))["reasons"]["connections"]
            assert "RLIMIT_NOFILE" in why
            assert samples(scraped(daemon, "/metrics").decode())["cachedaemon_degraded", frozenset()] == 1
            with ThreadPoolExecutor(40) as pool:
                said = list(pool.map(lambda n: ask(links[n], f"{n}.bin"), range(40)))
            assert {status for status, _ in said} == {200}, said
            assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < 128
            late = links.pop()
            for link in links:
                link.close()
            assert ask(late, "late.bin")[0] == 200
        until(lambda: daemon.descriptors() < 50, 20)
        until(lambda: is_well(daemon), BACK)
        assert daemon.log.count("RLIMIT_NOFILE") == 1, "one line, however long it lasts"
        daemon.audit()


@pytest.fixture
def limited() -> Iterator[dict[str, Path]]:
    """A group of processes for memory, and one for how many there are (control groups, version 1)."""
    tops = {name: Path("/sys/fs/cgroup", name) for name in ("memory", "pids")}
    if os.geteuid() != 0 or not all((top / "cgroup.procs").exists() for top in tops.values()):
        pytest.skip("not here by design: no control groups of version 1 that may be changed")
    made = {name: top / f"cachedaemon-test-{os.getpid()}" for name, top in tops.items()}
    for group in made.values():
        group.mkdir()
    try:
        yield made
    finally:
        for group in made.values():
            until(lambda g=group: not (g / "cgroup.procs").read_text(), 20, f"the end of all in {group}")  # type: ignore[misc]
            group.rmdir()


def within(group: Path) -> list[str]:
    """What starts a command in a group."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


@pytest.mark.root
def test_little_memory_is_enough(limited: dict[str, Path]) -> None:
    """Sixteen shards of 32 MiB at once within 160 MiB, page cache included: nothing is killed, nothing fails."""
    group = limited["memory"]
    (group / "memory.limit_in_bytes").write_text(str(160 * MIB))
    with (
        OriginProcess(objects=16, size=32 * MIB) as origin,
        Daemon({"s": origin.url}, wrap=within(group)) as daemon,
        ThreadPoolExecutor(16) as pool,
    ):
        said = list(pool.map(lambda n: daemon.acquire("s", shard_name(n), 100).status, range(16)))
        assert set(said) == {200}
        assert "oom_kill 0" in (group / "memory.oom_control").read_text()
        assert is_well(daemon)
        daemon.audit()


@pytest.mark.root
def test_no_more_processes_and_threads(limited: dict[str, Path]) -> None:
    """Archives cannot be checked, and that is told as what it is; everything else goes on."""
    group = limited["pids"]
    with (
        OriginProcess(objects=4, size=20_000, members=5) as origin,
        Origin() as plain,
        Daemon({"z": origin.url, "s": plain.url}, fetch={"retries": 1}, wrap=within(group)) as daemon,
    ):
        plain.default(lambda name: Object(name, 100_000))
        (group / "pids.max").write_text((group / "pids.current").read_text().strip())
        answer = daemon.acquire("z", shard_name(0, "zip"), 20)
        assert (answer.status, answer.code, answer.body["error"]["retryable"]) == (507, "no_space", True)
        assert "no process" in answer.body["error"]["message"]
        assert "no process" in reasons(daemon)["shortage"]
        with ThreadPoolExecutor(16) as pool:
            assert {a.status for a in pool.map(lambda n: daemon.acquire("s", f"{n}.bin"), range(16))} == {200}
        (group / "pids.max").write_text("max")
        daemon.path("z", shard_name(0, "zip"))
        assert is_well(daemon)
        daemon.audit()


# --- the disk ------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize(("inodes", "missing"), [(0, "bytes are missing"), (200, "inodes are missing")])
def test_a_full_disk_is_told(origin: Origin, inodes: int, missing: str) -> None:
    """C-43: with nothing left to evict each request fails by itself; well again with the first shard that comes."""
    with small_tmpfs(24 * MIB, inodes=inodes) as place:
        how = {"max_shards": 4, "fetch": {"retries": 0}, "cache_dir": place / "cache"}
        with Daemon({"s": origin.url}, **how) as daemon:
            before = threads(daemon)
            used_up(place / "ballast", inodes)
            for n in range(8):
                answer = daemon.acquire("s", f"{n}.bin", 5)
                assert (answer.status, answer.code) == (507, "no_space")
                assert missing in answer.body["error"]["message"]
            assert missing in reasons(daemon)["room"]
            assert daemon.metric("degraded") == 1
            assert threads(daemon) <= before + 2
            assert disk.leftovers(daemon.cache) == []
            subprocess.run(["rm", "-r", str(place / "ballast")], check=True)
            daemon.path("s", "a.bin")
            assert is_well(daemon)


def used_up(folder: Path, inodes: int) -> None:
    """Files until no inode, or no block, is left."""
    folder.mkdir()
    with contextlib.suppress(OSError):
        for number in range(1000):
            (folder / f"{number}").write_bytes(b"" if inodes else bytes(MIB // 2))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """While the folder is on a mount that takes no change; what was open before stays as it was."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
def test_a_disk_that_becomes_read_only(origin: Origin) -> None:
    """C-45: hits go on; what changes the disk fails with the right cause, an eviction too; health knows without being asked."""
    with (
        small_tmpfs(24 * MIB) as place,
        Daemon({"s": origin.url}, cache_dir=place / "cache", max_shards=3, fetch={"retries": 1}) as daemon,
    ):
        for key in ("a.bin", "b.bin"):
            daemon.path("s", key)
        held = daemon.descriptors()
        with read_only(daemon.cache):
            until(lambda: "read-only" in reasons(daemon).get("disk", ""), 20, "health tells")
            assert daemon.metric("degraded") == 1
            assert daemon.acquire("s", "a.bin").body["result"] == "hit"
            failing = [daemon.acquire("s", f"{n}.bin", 10) for n in range(5)] + [daemon.evict("s", "b.bin")]
            assert {(answer.status, answer.code) for answer in failing} == {(507, "no_space")}
            assert all("Read-only file system" in answer.body["error"]["message"] for answer in failing)
        for n in range(3):
            assert content.matches(daemon.path("s", f"{n}.bin"), f"{n}.bin", 100_000)
        until(lambda: is_well(daemon), BACK)
        assert daemon.descriptors() <= held + 3
        daemon.audit()


@pytest.mark.root
def test_a_disk_whose_blocks_fail_late(origin: Origin) -> None:
    """C-45: an ext4 whose image has no room: EIO when it is synced, then read-only. What is served is right; a new disk is well."""
    origin.default(lambda name: Object(name, 2 * MIB))
    with small_tmpfs(16 * MIB) as below, loop_fs("ext4", 48 * MIB, below) as place:
        how = {"cache_dir": place.path / "cache", "max_shards": 20, "fetch": {"retries": 0}, "check": False}
        with Daemon({"s": origin.url}, **how) as daemon:
            answers: list[Answer] = []

            def fails() -> bool:
                answers.append(daemon.acquire("s", f"{len(answers)}.bin", 20))
                return bool({"sync", "disk"} & reasons(daemon).keys()) and answers[-1].status != 200

            until(fails, 60, "the disk fails")
            assert {answer.code for answer in answers} == {None, "no_space"}
            assert daemon.metric("degraded") == 1
            for n, answer in enumerate(answers):
                if answer.status == 200 and (path := Path(answer.body["path"])).exists():
                    assert content.matches(path, f"{n}.bin", 2 * MIB)
            assert daemon.stop() == 0


# --- the origin, and what lies between -----------------------------------------------------------------------------


def test_an_origin_that_stops_and_goes_on() -> None:
    """Warm shards are served meanwhile, who cannot wait is told why, who waits gets the shard; health names the source."""
    fetch = {"retries": 20, "stall_timeout": "1s", "connect_timeout": "1s"}
    with (
        OriginProcess(objects=40, size=100_000) as origin,
        Daemon({"s": origin.url}, fetch=fetch, max_shards=50) as daemon,
        ThreadPoolExecutor(20) as pool,
    ):
        daemon.path("s", shard_name(0))
        before, first = daemon.descriptors(), threads(daemon)
        origin.freeze()
        waiting = [pool.submit(daemon.acquire, "s", shard_name(n), 100) for n in range(1, 20)]
        until(lambda: "source s" in reasons(daemon), 30, "health tells")
        assert daemon.metric("degraded") == 1
        assert daemon.metric("fetch_failures_total", source="s", reason="origin_unavailable") > 0
        began = time.monotonic()
        assert daemon.acquire("s", shard_name(0)).body["result"] == "hit"
        hurried = daemon.acquire("s", shard_name(30), 0.5)
        assert (hurried.status, hurried.code) == (504, "wait_expired")
        assert time.monotonic() - began < 20
        origin.thaw()
        assert {one.result().status for one in waiting} == {200}
        until(lambda: is_well(daemon), BACK)
        assert threads(daemon) <= first + 12
        until(lambda: daemon.descriptors() <= before + 12, 40, "connections that are kept, and no more")
        daemon.audit()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_network_that_is_slow_to_answer(origin: Origin) -> None:
    """What comes late comes; what comes later than `stall_timeout` is told, and comes once the network is quicker."""
    fetch = {"retries": 20, "stall_timeout": "2s"}
    async with proxying() as proxy:
        with Daemon({"s": {"url": origin.url, "proxy": proxy.url}}, fetch=fetch) as daemon:

            async def ask(keys: range) -> set[int]:
                asked = [asyncio.to_thread(daemon.acquire, "s", f"{n}.bin", 60) for n in keys]
                return {answer.status for answer in await asyncio.gather(*asked)}

            proxy.delay = 0.3
            assert await ask(range(4)) == {200}
            assert daemon.metric("fetch_failures_total") == 0
            proxy.delay = 4.0
            late = asyncio.create_task(ask(range(4, 8)))
            await asyncio.to_thread(until, lambda: "source s" in reasons(daemon), 30, "health tells")
            assert daemon.acquire("s", "0.bin").body["result"] == "hit"
            proxy.delay = 0.0
            assert await late == {200}
            await asyncio.to_thread(until, lambda: is_well(daemon), BACK)


@contextlib.contextmanager
def far_away() -> Iterator[list[str]]:
    """A network namespace that a link leads to: what starts a command in it. There it is 10.213.7.2 at the device far."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    name, near = f"cd-{os.getpid()}", f"cd{os.getpid() % 100_000}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"not here by design: no network namespaces ({made.stderr.strip()})")
    try:
        for words in (
            f"ip link add {near} type veth peer name far netns {name}",
            f"ip addr add 10.213.7.1/30 dev {near}",
            f"ip link set {near} up",
            f"ip -n {name} addr add 10.213.7.2/30 dev far",
            f"ip -n {name} link set far up",
            f"ip -n {name} link set lo up",
        ):
            subprocess.run(words.split(), check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.root
def test_a_network_that_loses_packets_and_then_all_of_them(folder: Path) -> None:
    """A queue too short for its link drops what exceeds it; then the link is down, and up again."""
    script = folder / "serve.py"
    for n in range(6):
        content.write(folder / f"{n}.bin", f"{n}.bin", 2 * MIB)
    script.write_text(
        "import http.server as h; h.ThreadingHTTPServer(('10.213.7.2', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    with far_away() as there:
        shaped = ["tc", "qdisc", "add", "dev", "far", "root", "tbf", "rate", "20mbit", "burst", "4kb", "limit", "12kb"]
        subprocess.run([*there, *shaped], check=True)
        server = subprocess.Popen([*there, "python3", str(script)], cwd=folder, stderr=subprocess.DEVNULL)
        fetch = {"retries": 30, "stall_timeout": "2s", "connect_timeout": "2s"}
        try:
            with Daemon({"s": "http://10.213.7.2:8080/"}, fetch=fetch) as daemon, ThreadPoolExecutor(6) as pool:
                for n, path in enumerate(pool.map(lambda n: daemon.path("s", f"{n}.bin", 60), range(4))):
                    assert content.matches(path, f"{n}.bin", 2 * MIB)
                told = subprocess.run(
                    [*there, "tc", "-s", "qdisc", "show", "dev", "far"], capture_output=True, text=True, check=True
                )
                assert "dropped 0," not in told.stdout, "nothing was lost"
                assert is_well(daemon)
                subprocess.run([*there, "ip", "link", "set", "far", "down"], check=True)
                waits = [pool.submit(daemon.acquire, "s", f"{n}.bin", 90) for n in (4, 5)]
                until(lambda: "source s" in reasons(daemon), 30, "health tells")
                assert daemon.acquire("s", "0.bin").body["result"] == "hit"
                subprocess.run([*there, "ip", "link", "set", "far", "up"], check=True)
                assert {one.result().status for one in waits} == {200}
                until(lambda: is_well(daemon), BACK)
        finally:
            server.kill()
            server.wait(10)
