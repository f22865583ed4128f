"""Modes, publishing and eviction, as root and as an ordinary user, and readers who are somebody else."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import OrdinaryUser
from tests.fakes import content, disk, packing, readers
from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

SIZE = 100_000
MEMBERS = {"a/x.jpg": b"x" * 5000, "y.jpg": b"y" * 100}
READ = """
cache = ShardCache("s")
with cache.open("a.bin") as shard:
    say(content.matches(shard.path, "a.bin", 100000))
with cache.open("b.zip") as shard:
    say(sorted(shard.members))
with ShardCache("u").open("b.zip") as shard:
    say([(shard.path / name).read_bytes() == body.encode() for name, body in ARG.items()])
"""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as made:
        made.put("a.bin", SIZE)
        made.put("b.zip", data=packing.zip_bytes(MEMBERS))
        for n in range(8):
            made.put(f"{n}.bin", SIZE)
            made.put(f"{n}.zip", data=packing.zip_bytes(MEMBERS))
        yield made


def _sources(origin: Origin) -> dict[str, dict[str, str]]:
    return {"s": {"url": origin.url}, "u": {"url": origin.url, "archives": "unpack"}}


def _daemon(origin: Origin, runs_as: OrdinaryUser | None, **how: object) -> Daemon:
    """Not started yet; its folder belongs to whom it runs as."""
    wrap = runs_as.command([]) if runs_as is not None else ()
    daemon = Daemon(_sources(origin), wrap=wrap, begin=False, **how)
    if runs_as is not None:
        runs_as.own(daemon.home)
    return daemon


@pytest.fixture(params=["root", "user"])
def runs_as(request: pytest.FixtureRequest) -> OrdinaryUser | None:
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        return None
    user: OrdinaryUser = request.getfixturevalue("as_user")
    return user


def _modes(daemon: Daemon) -> dict[str, tuple[int, int]]:
    """Mode and group of everything below the cache directory, by its path in it."""
    return {str(p.relative_to(daemon.cache)): (stat.S_IMODE(s.st_mode), s.st_gid) for p, s in disk.walk(daemon.cache)}


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o000])
def test_modes_whatever_the_umask(origin: Origin, runs_as: OrdinaryUser | None, umask: int) -> None:
    """C-48: without a group everybody may read, whatever the umask is; nobody but the daemon may write."""
    with _daemon(origin, runs_as, popen={"umask": umask}) as daemon:
        daemon.start()
        for source, key in (("s", "a.bin"), ("s", "b.zip"), ("u", "b.zip")):
            daemon.path(source, key)
        modes = {path: mode for path, (mode, _) in _modes(daemon).items()}
        for path in (
            "shards",
            "shards/s",
            "shards/u",
            "shards/u/b.zip",
            "shards/u/b.zip/a",
            "meta",
            "members/s",
            "plans",
        ):
            assert modes[path] == 0o755, path
        for path in (
            "shards/s/a.bin",
            "shards/s/b.zip",
            "shards/u/b.zip/a/x.jpg",
            "meta/s/a.bin.json",
            "members/s/b.zip",
        ):
            assert modes[path] == 0o444, path
        for path in ("staging", "trash", "suspect"):
            assert modes[path] == 0o700, path
        assert modes["daemon.lock"] == 0o600
        assert modes["daemon.json"] == 0o444
        assert stat.S_IMODE(daemon.cache.stat().st_mode) == 0o755


@pytest.mark.root
@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_a_group_may_read_and_nobody_else(origin: Origin, as_user: OrdinaryUser, umask: int) -> None:
    """C-48: the socket, folders, files and unpacked members belong to the group from the first moment."""
    group = grp.getgrgid(as_user.gid).gr_name
    server = {"socket_group": group, "socket_mode": "0660"}
    with _daemon(origin, None, popen={"umask": umask}, server=server) as daemon:
        daemon.start()
        for source, key in (("s", "a.bin"), ("s", "b.zip"), ("u", "b.zip")):
            daemon.path(source, key)
        modes = _modes(daemon)
        for path in ("shards", "shards/s", "shards/u/b.zip", "shards/u/b.zip/a", "meta/s", "members", "plans"):
            assert modes[path] == (0o750, as_user.gid), path
        for path in ("shards/s/a.bin", "shards/u/b.zip/a/x.jpg", "meta/s/a.bin.json", "members/s/b.zip"):
            assert modes[path] == (0o440, as_user.gid), path
        seen = daemon.socket.stat()
        assert (stat.S_IMODE(seen.st_mode), seen.st_gid) == (0o660, as_user.gid)
        arg = {name: body.decode() for name, body in MEMBERS.items()}
        said = readers.run(daemon, READ, arg, wrap=as_user.command([]))
        assert said == [True, sorted(MEMBERS), [True, True]]
        stranger = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "--"]
        for path in (daemon.cache / "shards/s/a.bin", daemon.socket):
            script = f"test ! -r {path} && test ! -w {path}"
            assert disk_says([*stranger, "sh", "-c", script]) == 0, path


@pytest.mark.root
def test_a_group_that_the_daemons_user_is_not_in_is_told(folder: Path, as_user: OrdinaryUser) -> None:
    folder.chmod(0o777)
    environment = {"CACHEDAEMON_SERVER__SOCKET_GROUP": str(as_user.gid + 1), "CACHEDAEMON_SERVER__HTTP": ""}
    said = [f"{name}={value}" for name, value in environment.items()]
    flags = ["--cache-dir", str(folder / "cache"), "--socket", str(folder / "s"), "--source", "s=http://127.0.0.1:9/"]
    ran = as_user.run(["env", *said, COMMAND, "serve", *flags])
    assert ran.returncode == 1
    assert f"{folder}/cache cannot be given to group {as_user.gid + 1} (server.socket_group)" in ran.stderr


def disk_says(command: list[str]) -> int:
    """Exit status of a program."""
    import subprocess

    return subprocess.run(command, check=False, cwd="/").returncode


def test_another_user_reads_and_leases(origin: Origin, runs_as: OrdinaryUser | None, as_user: OrdinaryUser) -> None:
    arg = {name: body.decode() for name, body in MEMBERS.items()}
    with _daemon(origin, runs_as, popen={"umask": 0o077}, server={"socket_mode": "0666"}) as daemon:
        daemon.start()
        said = readers.run(daemon, READ, arg, wrap=as_user.command([]))
        assert said == [True, sorted(MEMBERS), [True, True]]


def test_publishing_eviction_and_restart(origin: Origin, runs_as: OrdinaryUser | None) -> None:
    """Files and folders: a folder stays writable for its owner, or one who is not root could not rename it."""
    with _daemon(origin, runs_as, max_shards=3, grace="50ms") as daemon:
        daemon.start()
        for n in range(8):
            assert content.matches(daemon.path("s", f"{n}.bin"), f"{n}.bin", SIZE)
            path = daemon.path("u", f"{n}.zip")
            assert {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*.jpg")} == MEMBERS
        daemon.audit()
        daemon.kill9()
        daemon.start()
        assert daemon.status()["cache"]["shards"] == 3
        for one in daemon.shards():
            assert daemon.evict(one["source"], one["key"]).status in (204, 403)
        daemon.tables["sources"]["u"]["archives"] = "index"
        daemon.restart()
        daemon.path("u", "1.zip")
        until(lambda: disk.leftovers(daemon.cache) == [], 10)
        daemon.audit()


def test_after_another_boot(origin: Origin, runs_as: OrdinaryUser | None) -> None:
    """Suspects are set aside, proved and published again: folders too, by one who is not root."""
    with _daemon(origin, runs_as) as daemon:
        daemon.start()
        daemon.path("s", "a.bin")
        tree = daemon.path("u", "b.zip")
        daemon.stop()
        for meta in (daemon.cache / "meta").glob("*/*.json"):
            owner, text = meta.stat(), meta.read_text()
            meta.unlink()
            meta.write_text(text.replace('"synced": true', '"synced": false'))
            os.chown(meta, owner.st_uid, owner.st_gid)
        disk.other_boot(daemon.cache)
        origin.zero()
        daemon.start()
        until(lambda: len(disk.published(daemon.cache)) == 2, 20, daemon.log)
        assert content.matches(daemon.path("s", "a.bin"), "a.bin", SIZE)
        assert daemon.path("u", "b.zip") == tree
        assert origin.gets == 0
        assert Path(tree, "y.jpg").read_bytes() == MEMBERS["y.jpg"]
