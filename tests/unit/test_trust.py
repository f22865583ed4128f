"""A socket whose name a stranger took before the daemon came: what it answers would be read as shards."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.cli.stream import events
from cachedaemon_client import Refused, ShardCache, aio
from cachedaemon_client.trust import check

STRANGER = 54_321
pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def open_folder(folder: Path) -> Path:
    """As /tmp is."""
    made = folder / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture
def taken(open_folder: Path) -> Iterator[Path]:
    path = open_folder / "d.sock"
    with socket.socket(socket.AF_UNIX) as link:
        link.bind(str(path))
        link.listen()
        os.chown(path, STRANGER, STRANGER)
        path.chmod(0o777)
        yield path


def test_a_strangers_socket_is_not_asked(taken: Path) -> None:
    said = f"{taken} belongs to uid {STRANGER}, in a folder where anybody may take a name: not asked"
    with ShardCache("s", socket=taken, wait=5) as cache, pytest.raises(Refused, match=said) as refused:
        cache.open("a.bin")
    assert refused.value.code == "unreachable"


def test_nor_by_the_command_that_listens(taken: Path) -> None:
    with pytest.raises(Refused, match="not asked"):
        next(events(str(taken)))


def test_nor_waited_for_by_a_watch(taken: Path) -> None:
    with pytest.raises(Refused, match="not asked"):
        ShardCache("s", socket=taken, wait=3600).watch()


@pytest.mark.asyncio
async def test_nor_by_the_other_clients_watch(taken: Path) -> None:
    async with aio.ShardCache("s", socket=taken, wait=3600) as cache:
        with pytest.raises(Refused, match="not asked"):
            await anext(cache.watch())


@pytest.mark.asyncio
async def test_nor_by_the_other_client(taken: Path) -> None:
    cache = aio.ShardCache("s", socket=taken, wait=5)
    with pytest.raises(Refused, match="not asked"):
        await cache.open("a.bin")
    await cache.close()


def test_a_folder_that_a_stranger_made_is_not_entered(open_folder: Path) -> None:
    inner = open_folder / "cachedaemon"
    inner.mkdir()
    os.chown(inner, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"{inner} belongs to uid {STRANGER}"):
        check(str(inner / "d.sock"))


def test_sockets_of_services_and_of_containers_are_asked(open_folder: Path, folder: Path) -> None:
    """A user of its own in a folder that only it may write in; a folder that containers share."""
    (own := open_folder / "own").mkdir()
    (own / "d.sock").touch()
    check(str(own / "d.sock"))
    (shared := folder / "shared").mkdir()
    shared.chmod(0o777)
    for path in (shared / "d.sock", folder / "d.sock"):
        path.touch()
        os.chown(path, STRANGER, STRANGER)
        check(str(path))
