"""Every odd archive gives what is expected of it, unpacked and read in place (C-51, C-52, C-54, C-56)."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cachedaemon.archives import REASONS, kind_of
from cachedaemon.archives.tree import tree_digest
from cachedaemon.archives.workers import Limits, Workers
from cachedaemon.errors import BadArchive
from tests.contract.archives.running import BOUNDS, EXPECTED, MODES, ODD, files, index, reader, stamp, unpack

ARCHIVES: dict[str, Any] = EXPECTED["archives"]
READABLE = [name for name in ARCHIVES if kind_of(name) in ("zip", "tar")]


def wanted(name: str) -> dict[str, str]:
    """Members that can be read, by name, with their digests; a link has its target's."""
    members = ARCHIVES[name]["members"]
    digests = {member["name"]: member["sha256"] for member in members if "sha256" in member}
    links = [member for member in members if member["type"] == "symlink"]
    return digests | {link["name"]: digests[f"sub/{link['target']}"] for link in links}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_reasons_are_those_of_the_contract() -> None:
    assert list(REASONS) == EXPECTED["reasons"]


@pytest.mark.parametrize("name", ARCHIVES)
def test_unpacked(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if ARCHIVES[name]["expect"] == "reject":
        with pytest.raises(BadArchive) as refused:
            unpack(ODD / name, folder)
        assert refused.value.reason == ARCHIVES[name]["reason"]
        assert [path.name for path in tmp_path.iterdir() if path != folder] == []
        return
    result, asked = unpack(ODD / name, folder)
    assert {path: sha256(content) for path, content in files(folder).items()} == wanted(name)
    assert result["digest"] == tree_digest(folder)
    assert result["members"] == len(wanted(name))
    assert asked[-1][0] >= int(str(result["blocks"]))


@pytest.mark.parametrize("name", READABLE)
def test_read_in_place(name: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    if ARCHIVES[name]["expect"] == "reject":
        with pytest.raises(BadArchive) as refused:
            index(ODD / name, table)
        assert refused.value.reason == ARCHIVES[name]["reason"]
        assert not table.exists()
        return
    assert index(ODD / name, table) == len(wanted(name))
    with reader(ODD / name, table) as shard:
        assert set(shard.members) == set(wanted(name))
        for number, member in enumerate(shard.members):
            forms = (shard.read(member), shard.read(number), bytes(shard.view(member)), shard.open(member).read())
            assert {sha256(form) for form in forms} == {wanted(name)[member]}


@pytest.mark.parametrize("name", ["tar_private_modes.tar", "zip_plain.zip", "tar_inner_links.tar"])
def test_modes_are_as_given_whatever_archive_and_umask_say(name: str, tmp_path: Path) -> None:
    """C-48: members of mode 0600 can be read by the group all the same."""
    before = os.umask(0o077)
    try:
        unpack(ODD / name, tmp_path / "folder")
    finally:
        os.umask(before)
    for path in [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            assert stat.S_IMODE(mode) == (MODES.folder if stat.S_ISDIR(mode) else MODES.file)


def test_without_verification_content_is_not_read(tmp_path: Path) -> None:
    """A wrong CRC of a stored member is found when members are verified, and not before."""
    assert index(ODD / "zip_bad_crc.zip", tmp_path / "table", verify=False) == 2
    with pytest.raises(BadArchive, match="CRC") as refused:
        index(ODD / "zip_bad_crc.zip", tmp_path / "other", verify=True)
    assert refused.value.member == "0002.bin"


def test_links_stay_links(tmp_path: Path) -> None:
    unpack(ODD / "tar_inner_links.tar", tmp_path / "folder")
    assert os.readlink(tmp_path / "folder/sub/link.bin") == "0001.bin"
    assert (tmp_path / "folder/hard.bin").samefile(tmp_path / "folder/sub/0001.bin")


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_all_of_them_through_worker_processes(tmp_path: Path) -> None:
    """The same answers come out of the process, and after a refusal there is neither table nor folder."""
    workers = Workers(limits=Limits(BOUNDS.members, BOUNDS.bytes, 30), most=2)
    outcomes = {}
    try:
        for name in ARCHIVES:
            outcomes[name] = [await through(workers, name, tmp_path, unpacking=True)]
            if name in READABLE:
                outcomes[name].append(await through(workers, name, tmp_path, unpacking=False))
    finally:
        await workers.close()
    expected = {name: entry["reason"] or "ok" for name, entry in ARCHIVES.items()}
    assert {name: set(found) for name, found in outcomes.items()} == {name: {want} for name, want in expected.items()}


async def through(workers: Workers, name: str, place: Path, *, unpacking: bool) -> str:
    """The reason, or "ok"."""
    kind, out = kind_of(name), place / f"{name}-{unpacking}"
    assert kind is not None
    try:
        if unpacking:
            async for _ in workers.unpack(kind, ODD / name, out, MODES):
                pass
        else:
            await workers.index(kind, ODD / name, out, stamp(ODD / name), verify=True)
    except BadArchive as error:
        assert not there(out)
        return error.reason
    assert there(out)
    return "ok"


def there(path: Path) -> bool:
    return path.name in os.listdir(path.parent)
