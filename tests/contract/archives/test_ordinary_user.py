"""Unpacking and indexing need no rights of root's."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from tests.contract.archives.running import ODD

NAMES = ["tar_inner_links.tar", "zip_plain.zip", "gz_multimember.tar.gz", "tar_private_modes.tar"]

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from cachedaemon.archives import kind_of
from cachedaemon.archives.tree import tree_digest
from cachedaemon.archives.workers import Limits, Modes, Workers
from cachedaemon.model import Stamp

async def main(place, *names):
    workers, digests = Workers(limits=Limits(1000, 1 << 30, 30), most=1), {}
    os.umask(0o077)
    for name in names:
        kind, archive = kind_of(name), place / name
        unpacking = workers.unpack(kind, archive, place / f"{name}.d", Modes(0o440, 0o750, os.getgid()))
        async for need in unpacking:
            pass
        digests[name] = [unpacking.result.digest, tree_digest(place / f"{name}.d")]
        if kind in ("zip", "tar"):
            found = os.stat(archive)
            stamp = Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            await workers.index(kind, archive, place / f"{name}.t", stamp, verify=True)
    await workers.close()
    print(json.dumps(digests))

asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""


def test_as_an_ordinary_user(as_user: Any, folder: Path) -> None:
    """C-48: modes and group are as given, whatever archive and umask say, for a daemon that is not root too."""
    place = folder / "place"
    place.mkdir()
    for name in NAMES:
        shutil.copy(ODD / name, place / name)
    as_user.own(place)
    done = as_user.run([sys.executable, "-c", SCRIPT, place, *NAMES])
    assert done.stderr == ""
    assert all(written == found for written, found in json.loads(done.stdout).values())
    for name in NAMES:
        for path in [place / f"{name}.d", *(place / f"{name}.d").rglob("*")]:
            seen = path.lstat()
            assert (seen.st_uid, seen.st_gid) == (as_user.uid, as_user.gid)
            if not stat.S_ISLNK(seen.st_mode):
                assert stat.S_IMODE(seen.st_mode) == (0o750 if path.is_dir() else 0o440)
