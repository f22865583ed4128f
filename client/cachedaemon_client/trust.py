"""Whether the daemon at a socket can be who it says: below a folder such as /tmp anybody may take a name first."""

from __future__ import annotations

import errno
import os
import stat


def check(path: str) -> None:
    """`PermissionError` for a socket that lies below a sticky folder that everybody may write in, and is a stranger's there.

    What a daemon of somebody else's answers would be read as shards. Trusted are root and this process's own user; a
    folder that everybody may write in and that is not sticky says nothing: that is how containers share one.
    """
    step, above = path, os.path.dirname(path)
    while above != step:
        over = os.stat(above)
        if over.st_mode & stat.S_ISVTX and over.st_mode & stat.S_IWOTH:
            _expect_trusted(step)
        step, above = above, os.path.dirname(above)


def _expect_trusted(path: str) -> None:
    seen = os.lstat(path)
    if seen.st_uid not in (0, os.geteuid()):
        said = f"{path} belongs to uid {seen.st_uid}, in a folder where anybody may take a name: not asked"
        raise PermissionError(errno.EPERM, said)
